"""Finds the code that a job's function reaches in its flow's directory, as parts with a digest each.

The search begins with the function's module: its import runs the top level of the module and of all modules that it
imports. Then the function, the functions and constants that it names, and so on, count as parts (see module_parts). If the
text does not tell which code is reached, more code counts, never less: the whole module, all modules that it imports, or
every module of the directory. Modules outside the directory do not count; they belong to the installation.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.flow.module_parts import Module, Uses, analysed, imported_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dataflowd.flow.module_names import Chain, Target

_NOT_CODE = {"__pycache__", "node_modules", "site-packages"}
_VIRTUAL = "pyvenv.cfg"
_INIT = "__init__.py"


def parts_of(references: Iterable[str], directory: Path) -> dict[str, str]:
    """The parts that `module:function` references reach: `file` or `file:name`, each with its digest."""
    return _Reach(directory).parts(references)


def file_of(module: str, directory: Path) -> Path | None:
    beside = directory.joinpath(*module.split("."))
    for path in (beside.with_name(beside.name + ".py"), beside / _INIT):
        if path.is_file():
            return path
    return None


def prefixes(name: str) -> Iterator[str]:
    """Importing a.b.c executes a, a.b and a.b.c."""
    words = name.split(".")
    for length in range(1, len(words) + 1):
        yield ".".join(words[:length])


class _Reach:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._namespaces: set[str] = set()
        self._found: dict[str, str] = {}
        self._modules: dict[str, Module | None] = {}
        self._done: set[tuple[object, ...]] = set()
        self._waiting: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def parts(self, references: Iterable[str]) -> dict[str, str]:
        for reference in references:
            module, _, function = reference.partition(":")
            self._found[f"reference {reference}"] = ""
            self._soon(self._import, module)
            self._soon(self._follow, (module, function.partition(".")[0]), ())
        while self._waiting:
            step, arguments = self._waiting.pop()
            step(*arguments)
        return self._found

    def _soon(self, step: Callable[..., None], *arguments: object) -> None:
        """Queues a step, each step once. A queue, because a chain of calls may be deeper than Python's stack."""
        if (key := (step.__name__, *arguments)) not in self._done:
            self._done.add(key)
            self._waiting.append((step, arguments))

    def _import(self, name: str) -> None:
        for module in prefixes(name):
            self._soon(self._execute, module)

    def _execute(self, name: str) -> None:
        module = self._module(name)
        if module is None:
            return
        self._found[self._label(name)] = module.top.digest
        self._use(name, module.top.uses)
        if module.hides == "directory":
            self._soon(self._everything)
        if module.hides != "nothing":
            self._soon(self._closure, name)
        if module.keeps_state:
            self._soon(self._whole, name)

    def _use(self, name: str, uses: Uses) -> None:
        module = self._module(name)
        for imported in uses.imports:
            self._soon(self._import, imported)
        for chain in uses.chains:
            for target in uses.bound.get(chain[0], ()):
                self._soon(self._follow, target, chain[1:])
            if module is not None:
                self._name(name, module, chain)

    def _name(self, name: str, module: Module, chain: Chain) -> None:
        """Follows a name of the module's top level, with its attributes."""
        part = module.parts.get(chain[0])
        if part is not None:
            self._soon(self._part, name, chain[0])
        for target in module.top.uses.bound.get(chain[0], ()):
            self._soon(self._follow, target, chain[1:])

    def _part(self, name: str, part: str) -> None:
        module = self._module(name)
        if module is not None:
            self._found[f"{self._label(name)}:{part}"] = module.parts[part].digest
            self._use(name, module.parts[part].uses)

    def _follow(self, target: Target, attributes: Chain) -> None:
        """Follows a name that an import has bound: a module, or a name in a module, which may be a module too."""
        name, imported = target
        words = attributes if imported is None else (imported, *attributes)
        module, length = self._module(name), self._inner(name, words)
        if module is None and not length:
            if not words and name in self._namespaces:
                self._soon(self._everything)
            return
        self._soon(self._import, name)
        if length:
            self._soon(self._follow, (_joined(name, words[:length]), None), words[length:])
        if module is not None and words and words[0] in module.names:
            self._name(name, module, words)
        elif module is not None and not length:
            # The module is passed on as a value, or its attribute is not defined in its text.
            self._soon(self._whole, name)

    def _inner(self, name: str, words: Chain) -> int:
        """How many of the words lead to a module below `name`; 0: none do."""
        lengths = range(1, len(words) + 1)
        return next((n for n in lengths if self._module(_joined(name, words[:n])) is not None), 0)

    def _whole(self, name: str) -> None:
        """Counts every part of the module."""
        self._soon(self._import, name)
        module = self._module(name)
        for part in module.parts if module else ():
            self._soon(self._part, name, part)

    def _closure(self, name: str) -> None:
        """Counts every part of the module and of all modules that it imports."""
        self._soon(self._whole, name)
        module = self._module(name)
        if module is None:
            return
        for uses in (module.top.uses, *(part.uses for part in module.parts.values())):
            for imported in uses.imports:
                for prefix in prefixes(imported):
                    if self._module(prefix) is not None:
                        self._soon(self._closure, prefix)

    def _everything(self) -> None:
        for directory, inner, files in os.walk(self._directory):
            inner[:] = sorted(
                one
                for one in inner
                if not one.startswith(".")
                and one not in _NOT_CODE
                and not Path(directory, one, _VIRTUAL).exists()
            )
            for file in files:
                if file.endswith(".py"):
                    path = Path(directory, file).relative_to(self._directory)
                    words = path.parent.parts if file == _INIT else path.with_suffix("").parts
                    if words:
                        self._soon(self._whole, ".".join(words))

    def _module(self, name: str) -> Module | None:
        """None: the module is not in the flow's directory, or is a directory without __init__.py."""
        if name not in self._modules:
            path = file_of(name, self._directory) if name else None
            self._modules[name] = None if path is None else self._analysed(name, path)
        return self._modules[name]

    def _analysed(self, name: str, path: Path) -> Module:
        package = name if path.name == _INIT else name.rpartition(".")[0]
        own = [
            one
            for one in imported_by(path, package)
            if any(file_of(p, self._directory) for p in prefixes(one))
        ]
        self._namespaces.update(prefix for one in own for prefix in prefixes(one))
        return analysed(path, package, frozenset(one.partition(".")[0] for one in own))

    def _label(self, name: str) -> str:
        path = file_of(name, self._directory)
        return path.relative_to(self._directory).as_posix() if path else name


def _joined(name: str, words: Chain) -> str:
    return ".".join(filter(None, (name, *words)))
