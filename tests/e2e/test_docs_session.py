"""Runs the commands of docs/ as a reader types them.

Other tests run the rest: test_move runs docs/move.md, test_backup docs/upgrade.md, test_ctl_weekend docs/operate.md, test_readme_session
docs/deploy.md and docs/scripts.md, and tests/spark/test_docs.py what needs Spark.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dataflowd.model.errors import EXIT
from tests import published, readme

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

DOCS = readme.DOCS
TYPED = {
    "contributing.md",
    "deploy.md",
    "move.md",
    "operate.md",
    "reading.md",
    "scripts.md",
    "stale.md",
    "upgrade.md",
}
# Pages whose commands need other data. test_large_source.py, test_outside.py and test_past.py test the same commands.
HANDLE = "1.00000000-0000-0000-0000-000000000000"
SHOWN = {"batches.md", "outside.md", "past.md"}


def test_every_page_with_commands_is_typed_by_a_test() -> None:
    found = {page.name for page in readme.pages() if readme.page_blocks(page, "console")}
    assert found == TYPED | SHOWN, "type the commands of the new page in a test"


def test_the_commands_of_the_other_pages_exist(run_ctl: RunCtl) -> None:
    lines = [
        line
        for name in sorted(SHOWN)
        for block in readme.page_blocks(DOCS / name, "console")
        for line in block.splitlines()
        if "dataflowctl " in line
    ]
    assert len(lines) > 5
    for line in lines:
        typed = line[line.index("dataflowctl ") :].partition(")")[0]
        said = run_ctl(*shlex.split(typed, comments=True)[1:], env={"DATAFLOW_HANDLE": HANDLE})
        assert said.returncode not in {0, EXIT["USAGE"], EXIT["INTERNAL"]}, (line, said.stdout, said.stderr)
        assert "Traceback" not in said.stderr, (line, said.stderr)


def test_the_parts_of_the_tests_that_the_page_names_exist() -> None:
    """Collects these tests without running them: they run in the session that runs all tests."""
    parts = [
        shlex.split(command)
        for command in readme.commands("Run a part of the tests", path=DOCS / "contributing.md")
    ]
    assert {tuple(words[:3]) for words in parts} == {(".venv/bin/python", "-m", "pytest")}
    named = [[word for word in words[3:] if word != "-k"] for words in parts]
    paths = sorted({word for words in named for word in words if "/" in word})
    asked = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", *paths]
    done = subprocess.run(asked, cwd=readme.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr)
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    for path, *rest in named:
        keywords = [word for word in rest if "/" not in word]
        assert any(line.startswith(path) and all(word in line for word in keywords) for line in collected), (
            path
        )


@pytest.fixture
def orders(run_ctl: RunCtl, settings: Settings, tmp_path: Path) -> None:
    published.orders(run_ctl, settings, tmp_path)


@pytest.mark.usefixtures("orders")
def test_a_whole_dataset_is_read_from_outside_as_the_page_says(
    run_ctl: RunCtl, connection: psycopg.Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = DOCS / "reading.md"
    title = next(iter(readme.sections(page)))
    [statement] = readme.blocks(title, "sql", page)
    rows = connection.execute(statement.encode()).fetchall()
    assert [(dataid, version) for dataid, version, *_ in rows] == [("2026-01-01", 1), ("2026-01-02", 2)]

    listed, located = readme.commands(title, path=page)
    chunks = json.loads(run_ctl(*shlex.split(listed)[1:]).stdout)
    locations = [location for *_, location, _ in rows]
    assert [chunk["location"] for chunk in chunks] == locations
    said = run_ctl(*shlex.split(located)[1:])
    assert said.returncode == 0, said.stderr
    assert all(location in said.stdout for location in locations)

    monkeypatch.setenv("DATAFLOW_DSN", dsn)
    [block] = readme.blocks("With pandas or Arrow", "python", page)
    found: dict[str, object] = {}
    exec(compile(block, str(page), "exec"), found)  # noqa: S102 - a page of ours
    assert sorted(found["orders"]["order_id"]) == published.CURRENT  # type: ignore[index]


@pytest.mark.usefixtures("orders")
def test_what_comes_from_outside_is_where_its_dataset_says(
    settings: Settings, connection: psycopg.Connection
) -> None:
    [(location, rows)] = connection.execute(
        "SELECT location, rows FROM dataflow.published WHERE datasetid = 'raw_orders' AND dataid = '2026-01-03'"
    ).fetchall()
    assert (location, rows) == (f"{settings.effective_root}/raw/2026-01-03.csv", None)


@pytest.mark.usefixtures("orders")
def test_stale_chunks_are_seen_and_made_again_as_the_page_says(
    run_ctl: RunCtl,
) -> None:
    assert run_ctl("ready", "raw_orders", "2026-01-01").returncode == 0
    page = DOCS / "stale.md"
    listed, previewed, resubmitted = (
        run_ctl(*shlex.split(command)[1:])
        for command in readme.commands(next(iter(readme.sections(page))), path=page)
    )
    assert "INPUT" in listed.stdout
    assert "2026-01-01" in listed.stdout
    assert "2026-01-02" not in listed.stdout
    assert "nothing was changed" in previewed.stdout
    assert "resubmit: 1 run" in resubmitted.stdout
    assert "2026-01-01" not in run_ctl("chunks", "orders", "--stale").stdout
