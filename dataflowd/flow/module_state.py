"""Whether functions of one Python module of a flow change what other functions of it read.

Then a function is no part of its own: what it does depends on what others have done before.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from dataflowd.flow.module_names import SCOPE, binds, chain_of, is_literal, top_level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataflowd.flow.module_names import Names

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


class State:
    """Whether a function of the module may change a value of the module that another function reads."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._containers = {name: value for name, value in names.values.items() if _is_container(value)}
        self._objects = {
            name for name in names.stored if name not in self._containers and not self._is_plain(name)
        }

    def is_kept(self, tree: ast.Module) -> bool:
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        outermost = (node for node in top_level(tree) if isinstance(node, SCOPE))
        return any(self._leaves(scope, frozenset(), parents) for scope in outermost)

    def _leaves(self, scope: ast.AST, outer: frozenset[str], parents: Mapping[ast.AST, ast.AST]) -> bool:
        inside: list[ast.AST] = []
        scopes: list[ast.AST] = []
        waiting = list(ast.iter_child_nodes(scope))
        while waiting:
            node = waiting.pop()
            inside.append(node)
            if isinstance(node, SCOPE):
                scopes.append(node)
            else:
                waiting.extend(ast.iter_child_nodes(node))
        own = {node.arg for node in inside if isinstance(node, ast.arg)} | {
            name for node in inside for name in binds(node)
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
            and is_literal(value)
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
