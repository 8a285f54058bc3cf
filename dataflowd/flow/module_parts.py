"""Splits one Python module of a flow into parts: the code that runs when it is imported, and code that counts where it is used.

A function or a constant of the top level is a part of its own if two things are certain: its definition has no side
effect, and only code that names it can reach it. All other code of the top level (imports, classes, conditions, calls) runs
with the import and is one part, named by the file. Some code reaches other code without naming it (exec, importlib,
globals): then `hides` says where that code may be. Nothing is imported or executed. The digests do not depend on Python's
minor version.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from dataflowd.flow.module_names import FUNCTION, Chain, Names, Target, bound_by, chain_of, imported_names
from dataflowd.flow.module_state import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MODULES_KEPT = 1000
DIGEST_SHOWN = 16

# Where code may be that is reached without being named: nowhere, in this module and its imports, or in any module.
Hides: TypeAlias = Literal["nothing", "module", "directory"]

_WITH_DOCSTRING = (ast.Module, *FUNCTION, ast.ClassDef)
# Words by which code is reached that the text does not name. _LOOKS_ANYWHERE: in any module; _LOOKS_AROUND: in this module
# and its imports.
_LOADERS = (
    "importlib",
    "importlib.util",
    "importlib.machinery",
    "importlib.abc",
    "runpy",
    "pkgutil",
    "imp",
    "zipimport",
    "builtins",
)
_LOOKS_ANYWHERE = {
    "exec",
    "eval",
    "compile",
    "__import__",
    "__builtins__",
    *(f"import {name}" for name in _LOADERS),
}
_LOOKS_ANYWHERE |= {
    "sys.modules",
    "sys.path",
    "sys.meta_path",
    ".import_module",
    ".exec_module",
    ".load_module",
    ".addPyFile",
}
_LOOKS_ANYWHERE |= {"importlib.import_module", "importlib.reload", "importlib.util", "importlib.machinery"}
_LOOKS_AROUND = {
    "*",
    "globals",
    "locals",
    "vars",
    "dir",
    ".__globals__",
    ".f_globals",
    "._getframe",
    ".currentframe",
    ".__subclasses__",
}
_HAS_DATA = ("importlib",)  # importlib.resources and importlib.metadata import no module of the flow


@dataclass(frozen=True)
class Uses:
    """The names that a piece of code uses."""

    chains: frozenset[Chain] = frozenset()
    imports: frozenset[str] = frozenset()
    bound: Mapping[str, frozenset[Target]] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    digest: str
    uses: Uses


@dataclass(frozen=True)
class Module:
    """`keeps_state`: a function of the module may change a value that another one reads, so all of them count together."""

    top: Part
    parts: Mapping[str, Part] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    hides: Hides = "nothing"
    keeps_state: bool = False


def imported_by(path: Path, package: str) -> tuple[str, ...]:
    """All names that the module imports, also inside functions. Cached, because every attempt asks for it."""
    return _imported_by(path, package, *_version(path))


def analysed(path: Path, package: str, own: frozenset[str]) -> Module:
    """The parts of a module. `own`: the first words of its imports of the flow's own modules."""
    return _analysed(path, package, own, *_version(path))


def _version(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


@lru_cache(maxsize=MODULES_KEPT)
def _imported_by(path: Path, package: str, *_version: int) -> tuple[str, ...]:
    tree = _parsed(path.read_bytes())
    return () if tree is None else tuple(sorted(set(imported_names(ast.walk(tree), package))))


@lru_cache(maxsize=MODULES_KEPT)
def _analysed(path: Path, package: str, own: frozenset[str], *_version: int) -> Module:
    """A module that cannot be parsed counts as its text: the hash must exist even for code that will fail."""
    text = path.read_bytes()
    tree = _parsed(text)
    if tree is None:
        return Module(Part(_digest(text), Uses()), hides="module")
    try:
        return _module(tree, package, own)
    except RecursionError:  # an expression with hundreds of calls; its imports can still be found
        uses = Uses(imports=frozenset(imported_names(ast.walk(tree), package)))
        return Module(Part(_digest(text), uses), hides="module")


def _parsed(text: bytes) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _module(tree: ast.Module, package: str, own: frozenset[str]) -> Module:
    drop_docstrings(tree)
    scope = Names(tree, package, own)
    apart = {}
    rest: list[ast.stmt] = []
    for statement in tree.body:
        name = scope.separate(statement)
        if name is None:
            rest.append(statement)
        else:
            apart[name] = Part(_digest(dumped(statement).encode()), _uses([statement], package))
    top = Part(_digest("\n".join(map(dumped, rest)).encode()), _uses(rest, package))
    return Module(top, apart, frozenset(scope.count), _hides(tree), State(scope).is_kept(tree))


def dumped(value: object) -> str:
    """As ast.dump, but the same under every Python: empty fields and fields of newer versions are left out."""
    if isinstance(value, ast.AST):
        fields = (
            f"{name}={dumped(inner)}"
            for name, inner in _fields(value)
            if name not in ("ctx", "kind", "type_comment", "type_ignores")
            and inner is not None
            and inner != []
        )
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, list):
        return f"[{', '.join(map(dumped, value))}]"
    return repr(value)


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.JoinedStr) and name == "values":
            # Only Python 3.12 ends some f-strings with an empty text.
            yield name, [each for each in value if not (isinstance(each, ast.Constant) and each.value == "")]
        else:
            yield name, value


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[: 2 * DIGEST_SHOWN]


def drop_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]


# --- which names a piece of code uses ---


def _uses(nodes: Iterable[ast.AST], package: str) -> Uses:
    """All names, without regard to their scope. If a name means something else here, the hash covers more, never less."""
    chains: set[Chain] = set()
    found: list[ast.AST] = []
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        found.append(node)
        chain = chain_of(node)
        if chain:
            chains.add(chain)
        else:
            waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Global):
            chains.update((name,) for name in node.names)
    return Uses(frozenset(chains), frozenset(imported_names(found, package)), bound_by(found, package))


def _hides(tree: ast.Module) -> Hides:
    """Where code may be that this module reaches without naming it."""
    hides: Hides = "nothing"
    for node in ast.walk(tree):
        words = _words(node)
        if words & _LOOKS_ANYWHERE:
            return "directory"
        if words & _LOOKS_AROUND or (
            isinstance(node, FUNCTION) and node in tree.body and node.name == "__getattr__"
        ):
            hides = "module"
    return hides


def _words(node: ast.AST) -> set[str]:
    """The words of a node: a name as it is, an attribute after a dot, an import in full."""
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Attribute(attr=attribute):
            return {"." + attribute, ".".join(chain_of(node)[:2])}
        case ast.Import(names=names):
            return {f"import {alias.name}" for alias in names}
        case ast.ImportFrom(module=module, names=names):
            named = {f"{module}.{alias.name}" for alias in names}
            return named if module in _HAS_DATA else named | {f"import {module}"}
        case ast.alias(name="*"):
            return {"*"}
    return set()
