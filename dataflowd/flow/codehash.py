"""The version of a job's code: a hash of all code that its function reaches in the flow's directory, and of each part.

The hash is taken from syntax trees, so that comments, formatting and docstrings do not count: a new comment makes no chunk
stale. Nothing is imported or executed. A Spark SQL file counts as its text without comments and without blanks at the ends
of lines. A command counts as its words and the contents of the files that they name.

The parts are stored with the hash, so that `chunks --stale` can say what changed. Release 0.1 hashed whole modules. That
hash is also computed (`whole_hash`), so that chunks of release 0.1 are not stale after an upgrade.
"""

from __future__ import annotations

import ast
import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dataflowd.flow import reach
from dataflowd.flow.module_names import imported_names
from dataflowd.flow.module_parts import drop_docstrings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

MODULES_KEPT = 1000
PARTS_KEPT = 1000
PART_DIGITS = 32


@dataclass(frozen=True)
class Code:
    """`whole_hash`: the hash that release 0.1 gave the same code; None if it is the same."""

    hash: str
    parts: Mapping[str, str]
    whole_hash: str | None = None


def of_python(references: Sequence[str], directory: Path) -> Code:
    """The code of `module:function` references: the job's own, and those of its custom checks."""
    parts = reach.parts_of(references, directory)
    return Code(_digest(parts), _few(parts), of_modules(references, directory))


def of_modules(references: Iterable[str], directory: Path) -> str:
    """The hash of the references' modules and of all modules that they import, each as a whole."""
    found: dict[str, str] = {}
    for reference in references:
        found[f"reference {reference}"] = ""
        _collect(reference.partition(":")[0], directory, found)
    return _digest(found)


def of_sql(name: str, directory: Path) -> Code:
    lines = (directory / name).read_text(encoding="utf-8").splitlines()
    kept = (line.strip() for line in lines)
    text = {name: "\n".join(line for line in kept if line and not line.startswith("--"))}
    return Code(_digest(text), _short(text))


def of_command(words: Sequence[str], directory: Path) -> Code:
    """A word that names a file counts as the content of the file."""
    contents = {f"word {place}": _content(directory / word, word) for place, word in enumerate(words)}
    # A word that names no file is not stored itself: it may be a whole script.
    named = {
        word if names_file(directory / word) else f"word {place + 1} of the command": contents[
            f"word {place}"
        ]
        for place, word in enumerate(words)
    }
    return Code(_digest(contents), _short(named))


def _short(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: hashlib.sha256(text.encode()).hexdigest()[:PART_DIGITS] for name, text in texts.items()}


def _few(parts: dict[str, str]) -> Mapping[str, str]:
    """The parts that are stored with each version. More than PARTS_KEPT are summed up by file."""
    if len(parts) <= PARTS_KEPT:
        return parts
    files: dict[str, str] = {}
    for name in sorted(parts):
        file = name.partition(":")[0]
        files[file] = hashlib.sha256(f"{files.get(file)}{parts[name]}".encode()).hexdigest()[:PART_DIGITS]
    return files


def _content(path: Path, word: str) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if names_file(path) else word


def names_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises if a word is too long for a file name


def _collect(module: str, directory: Path, found: dict[str, str]) -> None:
    """Adds a module and all that it imports to `found`."""
    if module in found:
        return
    path = reach.file_of(module, directory)
    if path is None:
        return
    status = path.stat()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found[module], imported = _parsed(path, package, status.st_mtime_ns, status.st_size, status.st_ino)
    for name in imported:
        for prefix in reach.prefixes(name):
            _collect(prefix, directory, found)


@lru_cache(maxsize=MODULES_KEPT)
def _parsed(path: Path, package: str, *_version: int) -> tuple[str, tuple[str, ...]]:
    """The module's syntax tree as text, and the names that it imports. Cached, because every attempt asks for it.

    A module that cannot be parsed counts as its text: the hash must exist even for code that will fail.
    """
    text = path.read_bytes()
    try:
        tree = ast.parse(text)
        imported = tuple(imported_names(ast.walk(tree), package))
        drop_docstrings(tree)
        return ast.dump(tree), imported
    except (SyntaxError, ValueError, RecursionError):
        return hashlib.sha256(text).hexdigest(), ()


def _digest(found: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0{found[name]}\0".encode())
    return digest.hexdigest()
