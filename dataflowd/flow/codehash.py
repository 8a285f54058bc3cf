"""The version of a job's code: a hash of what its function reaches in the flow's directory, and of each part of that.

It is taken from syntax trees, so that comments, formatting and docstrings do not count: a chunk does not become stale
because somebody explained a line. Nothing is imported or executed. A Spark SQL file counts as its text without comments
and blanks at the ends of lines, a command as its words, and what the files hold that they name.

The parts are kept with the hash, so that `chunks --stale` can say what changed. Release 0.1 took all modules whole; that
hash is told beside the new one, so that what it made is not stale after an upgrade.
"""

from __future__ import annotations

import ast
import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dataflowd.flow import reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

MODULES_KEPT = 1000
PARTS_KEPT = 1000
PART_DIGITS = 32
_WITH_DOCSTRING = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Code:
    """`whole_hash`: what release 0.1 called the same code, where that differs."""

    hash: str
    parts: Mapping[str, str]
    whole_hash: str | None = None


def of_python(references: Sequence[str], directory: Path) -> Code:
    """Of `module:function` references: the job's own, and those of its custom checks."""
    parts = reach.parts_of(references, directory)
    return Code(_digest(parts), _few(parts), of_modules(references, directory))


def of_modules(references: Iterable[str], directory: Path) -> str:
    """Of the modules of these references and all that they import, each as a whole: what a process has loaded."""
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
    """A word that names a file counts as what the file holds, wherever it lies."""
    contents = {f"word {place}": _content(directory / word, word) for place, word in enumerate(words)}
    # A word itself is not stored: in a command it may be a whole script.
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
    """They are stored with each version of the code; of a great many only the files are told."""
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
    return os.path.isfile(path)  # noqa: PTH113 - a word that is too long for a name is no file either


def _collect(module: str, directory: Path, found: dict[str, str]) -> None:
    """A module that cannot be parsed counts as its text: the hash must exist even for code that will fail."""
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
    """What the module means, and the names that it imports. Asked for every attempt, so a file is parsed once a version."""
    text = path.read_bytes()
    try:
        tree = ast.parse(text)
        imported = tuple(_imported(tree, package))
        return ast.dump(_without_docstrings(tree)), imported
    except (SyntaxError, ValueError, RecursionError):
        return hashlib.sha256(text).hexdigest(), ()


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Wherever an import stands, also inside a function. `from a import b` may mean the module a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package else []
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            name = ".".join(part for part in (base, node.module) if part)
            if name:
                yield name
            yield from (f"{name}.{alias.name}" if name else alias.name for alias in node.names)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _digest(found: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0{found[name]}\0".encode())
    return digest.hexdigest()
