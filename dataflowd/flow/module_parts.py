"""Splits one Python module of a flow into parts: the code that runs when it is imported, and code that counts where it is used.

A function or a constant of the top level is a part of its own if two things are certain: its definition has no side
effect, and only code that names it can reach it. All other code of the top level (imports, classes, conditions, calls) runs
with the import and is one part, named by the file. Some code reaches other code without naming it (exec, importlib,
globals): then `hides` says where that code may be. Nothing is imported or executed. The digests do not depend on Python's
minor version.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MODULES_KEPT = 1000
DIGEST_SHOWN = 16

# A name and its attributes: rates.of.total is ("rates", "of", "total").
Chain: TypeAlias = tuple[str, ...]
# A module, and the name that is imported from it; None: the module itself.
Target: TypeAlias = tuple[str, str | None]
# Where code may be that is reached without being named: nowhere, in this module and its imports, or in any module.
Hides: TypeAlias = Literal["nothing", "module", "directory"]

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Scope = (*_Function, ast.ClassDef, ast.Lambda)
_WITH_DOCSTRING = (ast.Module, *_Function, ast.ClassDef)
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
# These decorators neither call a function nor store it where other code finds it.
_DECORATORS = {
    "dataflowd.job",
    "dataflowd.node",
    "dataflowd.sdk.job",
    "dataflowd.sdk.node",
    "functools.cache",
    "functools.lru_cache",
    "functools.wraps",
    "contextlib.contextmanager",
    "typing.overload",
}
_OF_SPARK = "pyspark."
_CHANGES = {
    "append",
    "add",
    "update",
    "extend",
    "insert",
    "remove",
    "discard",
    "pop",
    "popitem",
    "clear",
    "setdefault",
    "sort",
}
_CHANGES |= {
    "reverse",
    "appendleft",
    "extendleft",
    "popleft",
    "rotate",
    "put",
    "push",
    "register",
    "write",
    "__setitem__",
}
_CONTAINERS = {"list", "dict", "set", "bytearray", "defaultdict", "Counter", "deque", "OrderedDict"}
_MODULE_FUNCTION = (
    2  # words: operator.add is a function of a module, state.SEEN.add changes a value of a module
)


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
    scope = _Names(tree, package, own)
    apart = {}
    rest: list[ast.stmt] = []
    for statement in tree.body:
        name = scope.separate(statement)
        if name is None:
            rest.append(statement)
        else:
            apart[name] = Part(_digest(dumped(statement).encode()), _uses([statement], package))
    top = Part(_digest("\n".join(map(dumped, rest)).encode()), _uses(rest, package))
    return Module(top, apart, frozenset(scope.count), _hides(tree), _State(scope).is_kept(tree))


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
    return Uses(frozenset(chains), frozenset(imported_names(found, package)), _bound(found, package))


def chain_of(node: ast.AST) -> Chain:
    """The chain of a name, or of attributes of a name; empty for any other node."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, *reversed(attributes)) if isinstance(node, ast.Name) else ()


def _base(node: ast.ImportFrom, package: str) -> str:
    parts = package.split(".") if package else []
    base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
    return ".".join(part for part in (base, node.module) if part)


def imported_names(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    """The names that import statements load. `from a import b` yields a and a.b, because b may be a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _bound(nodes: Iterable[ast.AST], package: str) -> dict[str, frozenset[Target]]:
    """The names that imports bind, each with all targets that it may mean."""
    bound: dict[str, set[Target]] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name, module = (
                    (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
                )
                bound.setdefault(name, set()).add((module, None))
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            for alias in node.names:
                bound.setdefault(alias.asname or alias.name, set()).add((base, alias.name))
    return {name: frozenset(targets) for name, targets in bound.items()}


def _hides(tree: ast.Module) -> Hides:
    """Where code may be that this module reaches without naming it."""
    hides: Hides = "nothing"
    for node in ast.walk(tree):
        words = _words(node)
        if words & _LOOKS_ANYWHERE:
            return "directory"
        if words & _LOOKS_AROUND or (
            isinstance(node, _Function) and node in tree.body and node.name == "__getattr__"
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


# --- which statements are parts of their own ---


class _Names:
    """The names of a module's top level, and the values and imports that they are bound to."""

    def __init__(self, tree: ast.Module, package: str, own: frozenset[str]) -> None:
        self._own = own
        self.count: Counter[str] = Counter()
        self.values: dict[str, ast.expr] = {}
        self.stored: set[str] = set()
        outside = list(_top_level(tree))
        self.imports = _bound(outside, package)
        for node in outside:
            self.count.update(_binds(node))
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self.stored.add(node.id)
        for statement in tree.body:
            name, value = _assigned(statement)
            if name and value is not None and self.count[name] == 1:
                self.values[name] = value

    def separate(self, statement: ast.stmt) -> str | None:
        """The name of a statement that is a part of its own; None: the statement counts with the module."""
        if isinstance(statement, _Function):
            name, is_pure = statement.name, self._is_pure_definition(statement)
        else:
            assigned, value = _assigned(statement)
            name, is_pure = assigned or "", value is not None and _is_literal(value)
        return name if is_pure and self.count[name] == 1 and not name.startswith("__") else None

    def is_outside(self, name: str) -> bool:
        """Whether a name is built into Python, or imported from outside the flow."""
        if name not in self.count:
            return hasattr(builtins, name)
        targets = self.imports.get(name, frozenset())
        return len(targets) == self.count[name] and all(
            module and module.partition(".")[0] not in self._own for module, _ in targets
        )

    def _is_pure_definition(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether the definition of the function calls nothing but known decorators."""
        given = function.args
        every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
        annotations = [argument.annotation for argument in every if argument]
        evaluated = [*given.defaults, *given.kw_defaults, function.returns, *annotations]
        return all(map(self._is_known_decorator, function.decorator_list)) and not any(
            isinstance(inner, ast.Call | ast.NamedExpr | ast.Await)
            for value in evaluated
            if value
            for inner in ast.walk(value)
        )

    def _is_known_decorator(self, decorator: ast.expr) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        calls = [
            node.func for node in ast.walk(decorator) if isinstance(node, ast.Call) and node is not decorator
        ]
        return self._is_known(called, _DECORATORS) and all(
            self._is_known(function, set()) for function in calls
        )

    def _is_known(self, called: ast.expr, known: set[str]) -> bool:
        chain = chain_of(called)
        if not chain or not self.is_outside(chain[0]):
            return False
        targets = self.imports.get(chain[0], frozenset())
        meant = [".".join(part for part in (module, name, *chain[1:]) if part) for module, name in targets]
        return bool(meant) and all(name in known or name.startswith(_OF_SPARK) for name in meant)


def _top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run with the import: all but the bodies of functions and classes."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _Scope):
            waiting.extend(ast.iter_child_nodes(node))


def _binds(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Import(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
        case ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names)


def _assigned(statement: ast.stmt) -> tuple[str | None, ast.expr | None]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AnnAssign(
            target=ast.Name(id=name), value=value, annotation=ast.Name() | ast.Subscript() | ast.Constant()
        ):
            return name, value
    return None, None


def _is_literal(value: ast.expr) -> bool:
    kinds = (
        ast.Constant,
        ast.Tuple,
        ast.List,
        ast.Set,
        ast.Dict,
        ast.UnaryOp,
        ast.BinOp,
        ast.operator,
        ast.unaryop,
        ast.Load,
    )
    return all(isinstance(node, kinds) for node in ast.walk(value))


# --- whether functions change what other functions read ---


class _State:
    """Whether a function of the module may change a value of the module that another function reads."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        self._containers = {name: value for name, value in names.values.items() if _is_container(value)}
        self._objects = {
            name for name in names.stored if name not in self._containers and not self._is_plain(name)
        }

    def is_kept(self, tree: ast.Module) -> bool:
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        outermost = (node for node in _top_level(tree) if isinstance(node, _Scope))
        return any(self._leaves(scope, frozenset(), parents) for scope in outermost)

    def _leaves(self, scope: ast.AST, outer: frozenset[str], parents: Mapping[ast.AST, ast.AST]) -> bool:
        inside: list[ast.AST] = []
        scopes: list[ast.AST] = []
        waiting = list(ast.iter_child_nodes(scope))
        while waiting:
            node = waiting.pop()
            inside.append(node)
            if isinstance(node, _Scope):
                scopes.append(node)
            else:
                waiting.extend(ast.iter_child_nodes(node))
        own = {node.arg for node in inside if isinstance(node, ast.arg)} | {
            name for node in inside for name in _binds(node)
        }
        # The methods of a class do not see the names of the class.
        known = outer if isinstance(scope, ast.ClassDef) else outer | own
        return any(self._changes(node, known, parents) for node in inside) or any(
            self._leaves(inner, known, parents) for inner in scopes
        )

    def _changes(self, node: ast.AST, known: frozenset[str], parents: Mapping[ast.AST, ast.AST]) -> bool:
        match node:
            case ast.Global():
                return True
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                return self._is_ours(_root(node), known)
            case ast.Call(func=ast.Attribute(attr=attribute) as function) if attribute in _CHANGES:
                root, words = _root(function), len(chain_of(function))
                is_function = root in self._names.imports and words == _MODULE_FUNCTION
                is_foreign = not words and self._names.is_outside(root)
                return self._is_ours(root, known) and not is_function and not is_foreign
            case ast.Name(id=name, ctx=ast.Load()) if self._is_ours(name, known):
                return name in self._objects or (
                    name in self._containers and self._escapes(node, name, known, parents)
                )
        return False

    def _is_ours(self, name: str, known: frozenset[str]) -> bool:
        return name in self._names.count and name not in known

    def _escapes(
        self, node: ast.AST, name: str, known: frozenset[str], parents: Mapping[ast.AST, ast.AST]
    ) -> bool:
        """Whether other code may get the container here and change it. A flat container has no inner value to change."""
        value = self._containers[name]
        inner = [node for node in ast.walk(value) if node is not value]
        is_flat = (
            isinstance(value, ast.List | ast.Dict | ast.Set)
            and _is_literal(value)
            and not any(map(_is_container, inner))
        )
        parent = parents[node]
        match parent:
            case (
                ast.Subscript()
                | ast.Attribute()
                | ast.For()
                | ast.comprehension()
                | ast.Starred()
                | ast.keyword(arg=None)
            ):
                return not is_flat
            case ast.Compare() | ast.BinOp() | ast.FormattedValue():
                return not is_flat
            case ast.Call() | ast.keyword():
                call = parent if isinstance(parent, ast.Call) else parents[parent]
                return not (isinstance(call, ast.Call) and is_flat and self._is_foreign(call.func, known))
        return True

    def _is_foreign(self, called: ast.expr, known: frozenset[str]) -> bool:
        """Whether a function belongs to Python or a library, or is a method of an object that the module does not own."""
        chain = chain_of(called)
        if len(chain) == 1:
            return chain[0] not in known and self._names.is_outside(chain[0])
        return isinstance(called, ast.Attribute) and (
            not self._is_ours(_root(called), known) or self._names.is_outside(_root(called))
        )

    def _is_plain(self, name: str, asked: frozenset[str] = frozenset()) -> bool:
        """Whether the value has no object of the flow that could be changed. Objects of libraries (loggers, schemas) may."""
        value = self._names.values.get(name)
        if value is None or name in asked or name in self._containers:
            return False
        named = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        return all(self._names.is_outside(other) or self._is_plain(other, asked | {name}) for other in named)


def _is_container(value: ast.AST) -> bool:
    """Whether the value is a list, dict, set or the like, whose elements can change."""
    kinds = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    if isinstance(value, ast.Call):
        chain = chain_of(value.func)
        return bool(chain) and chain[-1] in _CONTAINERS
    return isinstance(value, kinds) or (
        isinstance(value, ast.BinOp | ast.Tuple) and any(map(_is_container, ast.iter_child_nodes(value)))
    )


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
