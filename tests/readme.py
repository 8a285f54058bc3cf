"""Reads README and docs/ for tests: by section, by block, by command."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference.md"


def sections(path: Path = README) -> dict[str, str]:
    """The text below each heading of the second level."""
    found, title, is_code = dict[str, list[str]](), "", False
    for line in path.read_text(encoding="utf-8").splitlines():
        is_code ^= line.lstrip().startswith("```")
        if line.startswith("## ") and not is_code:
            title = line.removeprefix("## ")
        found.setdefault(title, []).append(line)
    return {title: "\n".join(lines) + "\n" for title, lines in found.items()}


def section(title: str, path: Path = README) -> str:
    return sections(path)[title]


def blocks(title: str, language: str, path: Path = README) -> list[str]:
    """The code of a language in a section; a block in a list is indented."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", section(title, path), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for _, code in found]


def pages() -> list[Path]:
    return sorted(DOCS.glob("*.md"))


def page_blocks(path: Path, language: str) -> list[str]:
    """The code of a language in all sections of a page."""
    return [code for title in sections(path) for code in blocks(title, language, path)]


def commands(title: str, prompt: str = "$", path: Path = README) -> list[str]:
    """The commands that a reader types, without their comments."""
    lines = [line for block in blocks(title, "console", path) for line in block.splitlines()]
    typed = [line.removeprefix(f"{prompt} ") for line in lines if line.startswith(f"{prompt} ")]
    return [re.sub(r"\s+# .*", "", line) for line in typed]


def anchors(path: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them: the part of a link after #."""
    lines = _without_code(path.read_text(encoding="utf-8")).splitlines()
    headings = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def _without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def inline_commands(path: Path, program: str) -> list[str]:
    """The commands of a program inside sentences and tables."""
    return re.findall(rf"`({program} [^`]+)`", _without_code(path.read_text(encoding="utf-8")))


def session(title: str, path: Path = README) -> list[tuple[str, list[str]]]:
    """Each command of a section, with the output that the page shows."""
    found: list[tuple[str, list[str]]] = []
    for line in (line for block in blocks(title, "console", path) for line in block.splitlines()):
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found
