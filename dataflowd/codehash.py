"""The version of a job's code: a hash of its module and of all that it imports from the flow's directory.

It is taken from syntax trees, so that comments, formatting and docstrings do not count: a chunk does not become stale
because somebody explained a line. Modules from elsewhere do not count either; they are the installation's. Nothing is
imported or executed. A Spark SQL file counts as its text without comments and blanks at the ends of lines, a command
as its words, and what the files hold that they name.
"""

from __future__ import annotations

import ast
import hashlib
import os
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

MODULES_KEPT = 1000
_WITH_DOCSTRING = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def of_python(references: Iterable[str], directory: Path) -> str:
    """Of `module:function` references: the job's own, and those of its custom checks."""
    found: dict[str, str] = {}
    for reference in references:
        found[f"reference {reference}"] = ""
        _collect(reference.partition(":")[0], directory, found)
    return _digest(found)


def of_sql(name: str, directory: Path) -> str:
    lines = (directory / name).read_text(encoding="utf-8").splitlines()
    kept = (line.strip() for line in lines)
    return _digest({name: "\n".join(line for line in kept if line and not line.startswith("--"))})


def of_command(words: Sequence[str], directory: Path) -> str:
    """A word that names a file counts as what the file holds, wherever it lies."""
    return _digest({f"word {place}": _content(directory / word, word) for place, word in enumerate(words)})


def _content(path: Path, word: str) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if names_file(path) else word


def names_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - a word that is too long for a name is no file either


def _collect(module: str, directory: Path, found: dict[str, str]) -> None:
    """A module that cannot be parsed counts as its text: the hash must exist even for code that will fail."""
    if module in found:
        return
    path = _file(module, directory)
    if path is None:
        return
    status = path.stat()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found[module], imported = _parsed(path, package, status.st_mtime_ns, status.st_size, status.st_ino)
    for name in imported:
        for prefix in _prefixes(name):
            _collect(prefix, directory, found)


@lru_cache(maxsize=MODULES_KEPT)
def _parsed(path: Path, package: str, *_version: int) -> tuple[str, tuple[str, ...]]:
    """What the module means, and the names that it imports. Asked for every attempt, so a file is parsed once a version."""
    text = path.read_bytes()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return hashlib.sha256(text).hexdigest(), ()
    imported = tuple(_imported(tree, package))
    return ast.dump(_without_docstrings(tree)), imported


def _file(module: str, directory: Path) -> Path | None:
    beside = directory.joinpath(*module.split("."))
    for path in (beside.with_name(beside.name + ".py"), beside / "__init__.py"):
        if path.is_file():
            return path
    return None


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


def _prefixes(name: str) -> Iterator[str]:
    """Importing a.b.c executes a, a.b and a.b.c."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


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
