"""Lists all messages of the product for people: `python -m tests.messages` prints them for a review.

Errors, remedies and answers of commands come from the syntax trees of `dataflowd`, exceptions and their hints from
sql/functions. {} stands for a value that is filled in.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from dataflowd.host import sqlfiles

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind: TypeAlias = Literal["error", "usage", "mistake", "finding", "answer", "sql"]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dataflowd"
VALUE = "{}"
# The positions of the message and of the remedy among the arguments.
ERRORS = {"AttemptError": (1, 2)}
ANSWERS = ("say", "write", "confirm")
_RAISE = re.compile(r"RAISE EXCEPTION\s+'((?:[^']|'')*)'(.*?);$", re.DOTALL | re.MULTILINE)
_HINT = re.compile(r"HINT\s*=\s*(.*)", re.DOTALL)
_TEXT = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True)
class Message:
    where: str
    kind: Kind
    name: str
    text: str
    remedy: str | None = None

    def __str__(self) -> str:
        return f"{self.where} {self.name}: {self.text}" + (f" => {self.remedy}" if self.remedy else "")


def collected() -> list[Message]:
    return [*in_python(), *in_sql()]


def in_python() -> Iterator[Message]:
    errors = _error_classes()
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield from _of_call(where, node, errors)


def in_sql() -> Iterator[Message]:
    for path in sqlfiles.functions():
        text = path.read_text(encoding="utf-8")
        for found in _RAISE.finditer(text):
            where = f"sql/functions/{path.name}:{text.count(chr(10), 0, found.start()) + 1}"
            hint = _HINT.search(found[2])
            remedy = "; ".join(_TEXT.findall(hint[1])) if hint else None
            yield Message(
                where, "sql", "RAISE", found[1].replace("''", "'"), remedy and remedy.replace("''", "'")
            )


def _error_classes() -> set[str]:
    """The names of DataflowError and of all its subclasses."""
    found = {"DataflowError"}
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while True:
        more = {one.name for one in classes if {_name(base) for base in one.bases} & found} - found
        if not more:
            return found
        found |= more


def _of_call(where: str, call: ast.Call, errors: set[str]) -> Iterator[Message]:
    name = _name(call.func)
    named = {keyword.arg: keyword.value for keyword in call.keywords}

    def text(place: int, keyword: str = "") -> str | None:
        value = call.args[place] if len(call.args) > place else named.get(keyword)
        return None if value is None else words(value)

    if name in errors:
        said, remedy = ERRORS.get(name, (0, 1))
        yield Message(where, "error", name, text(said, "message") or "", text(remedy, "remedy"))
    elif name == "BadParameter":
        yield Message(where, "usage", name, text(0) or "")
    elif name == "wrong" and len(call.args) >= 3:
        yield Message(where, "mistake", name, text(1) or "", text(2))
    elif name == "Finding":
        yield Message(
            where,
            "finding",
            f"{text(0, 'check')} {text(1, 'state')}",
            text(2, "detail") or "",
            text(3, "remedy"),
        )
    elif name in ANSWERS and call.args and (found := text(0)):
        yield Message(where, "answer", name, found)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def words(node: ast.expr) -> str:  # noqa: PLR0911 - one a case
    """The text of an expression, with {} for values; all texts of a condition."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(words(value) for value in values)
        case ast.FormattedValue(value=value):
            return words(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return words(left) + words(right)
        case ast.IfExp(body=body, orelse=orelse):
            return " | ".join(filter(None, (words(body), words(orelse))))
        case ast.Call(func=function) if _name(function) == "counted":
            return "{counted}"
    return VALUE


if __name__ == "__main__":
    for message in collected():
        print(message)  # noqa: T201 - the purpose of this program
