"""Every claim of docs/security.md names a test that shows it, and README promises what that page says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.readme import README, ROOT

PAGE = ROOT / "docs" / "security.md"
PROMISE = re.compile(r"^The promise: (.*)$", re.MULTILINE)
NAMED = re.compile(r"`((?:tests/[a-z0-9_/]+/)?test_[a-z0-9_]+\.py)::(test_[a-z0-9_]+)`")
HOSTILE = Path("tests/hostile")


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 50
    for file, name in named:
        path = ROOT / (file if "/" in file else HOSTILE / file)
        assert path.exists(), path
        assert name in functions_of(path), f"{path} has no {name}"


def test_nothing_holds_without_a_test_that_attacks_it() -> None:
    """A row whose second cell begins with `yes` names a test in its last cell."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    claimed = [row.strip("| ").split(" | ") for row in rows]
    kept = [cells for cells in claimed if len(cells) > 1 and cells[1].startswith("yes")]
    assert len(kept) > 15
    for cells in kept:
        assert NAMED.search(cells[-1]), cells


def test_readme_promises_what_the_page_says() -> None:
    promise = PROMISE.search(PAGE.read_text(encoding="utf-8"))
    assert promise is not None
    assert promise[1] in README.read_text(encoding="utf-8")
