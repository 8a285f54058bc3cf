"""The names of one Python module of a flow: which its top level binds, to what, and which statements are parts of their own."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# A name and its attributes: rates.of.total is ("rates", "of", "total").
Chain: TypeAlias = tuple[str, ...]
# A module, and the name that is imported from it; None: the module itself.
Target: TypeAlias = tuple[str, str | None]
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPE = (*FUNCTION, ast.ClassDef, ast.Lambda)
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


def bound_by(nodes: Iterable[ast.AST], package: str) -> dict[str, frozenset[Target]]:
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


class Names:
    """The names of a module's top level, and the values and imports that they are bound to."""

    def __init__(self, tree: ast.Module, package: str, own: frozenset[str]) -> None:
        self._own = own
        self.count: Counter[str] = Counter()
        self.values: dict[str, ast.expr] = {}
        self.stored: set[str] = set()
        outside = list(top_level(tree))
        self.imports = bound_by(outside, package)
        for node in outside:
            self.count.update(binds(node))
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self.stored.add(node.id)
        for statement in tree.body:
            name, value = _assigned(statement)
            if name and value is not None and self.count[name] == 1:
                self.values[name] = value

    def separate(self, statement: ast.stmt) -> str | None:
        """The name of a statement that is a part of its own; None: the statement counts with the module."""
        if isinstance(statement, FUNCTION):
            name, is_pure = statement.name, self._is_pure_definition(statement)
        else:
            assigned, value = _assigned(statement)
            name, is_pure = assigned or "", value is not None and is_literal(value)
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


def top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run with the import: all but the bodies of functions and classes."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPE):
            waiting.extend(ast.iter_child_nodes(node))


def binds(node: ast.AST) -> Iterator[str]:
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


def is_literal(value: ast.expr) -> bool:
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
