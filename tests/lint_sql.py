"""Rules for the files of sql/, checked with Postgres's own parser: `python -m tests.lint_sql`, part of `make lint`.

Every file parses, bodies in PL/pgSQL included. Every table, view, column and public function (no leading underscore)
has a COMMENT; a column may instead bear the name of one that has, for a word means one thing everywhere. A function fixes its search_path and names pg_temp last in it: otherwise a caller's
temporary table would stand before ours. Functions in SQL that run with their caller's rights may do without: Postgres puts only such ones into the
query that calls them, and the plans of the hot path need that. They name the schema of every relation, and are nobody's trigger. Called from a
function of ours they run with its search_path; called by a user, with that user's own rights and no others.
No function builds SQL at run time: nothing in the database is executed.
Nothing waits while it holds the claim lock: only dataflow._claim_lock takes it; who calls that sets lock_timeout, and from there on,
and in every function that is called from there, rows are locked with SKIP LOCKED or NOWAIT. No string holds a backslash outside
E'...': what it means would depend on the session's standard_conforming_strings. The planner's settings of a function are one of the
blocks of sql/README.md, as they are written there, or none.

Why rules and no formatter: those that exist (sqlfluff among them) lay out statements, but take a PL/pgSQL body for one
string literal and leave it as it is, and the bodies are most of what stands here.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pglast
from pglast import ast, enums
from pglast.visitors import Visitor

from dataflowd.host import sqlfiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PARAMETER = re.compile(r"%\([a-z_]+\)s|%s")
_CLAIM_LOCK = "dataflow._claim_lock"
_CLAIM_KEY = "'dataflow.claim'"
_COMMENT = re.compile(r"--[^\n]*")
_CALL = re.compile(r"\bdataflow\.[a-z_]+(?= ?\()")
_WAITS = re.compile(
    r"\bFOR (?:NO KEY UPDATE|UPDATE|KEY SHARE|SHARE)\b(?: OF \w+)?(?! OF| SKIP LOCKED| NOWAIT|\s+SKIP LOCKED)"
)
_BACKSLASH = re.compile(r"(?<!E)'[^'\n]*\\[^'\n]*'")
_PLANNER_BLOCK = re.compile(r"^`(?P<name>[a-z ]+)`: [^`]*```sql\n(?P<settings>[^`]+)```", re.MULTILINE)
_NOT_OF_THE_PLANNER = {"search_path", "lock_timeout"}
_DYNAMIC = {"PLpgSQL_stmt_dynexecute", "PLpgSQL_stmt_dynfors", "dynquery"}


class Source(NamedTuple):
    """One parsed file, or one named query."""

    name: str
    text: str
    is_function_file: bool
    is_ours: bool = True  # what is made in other people's databases has comments of its own


def main() -> int:
    mistakes = list(check(sources()))
    for mistake in mistakes:
        sys.stderr.write(mistake + "\n")
    return 1 if mistakes else 0


def sources() -> list[Source]:
    files = [Source(path.name, _read(path), is_function_file=False) for path in sqlfiles.migrations()]
    files += [Source(path.name, _read(path), is_function_file=True) for path in sqlfiles.functions()]
    return (
        files
        + [
            Source(f"queries.sql: {name}", _filled(sqlfiles.query(name)), is_function_file=False)
            for name in sqlfiles.query_names()
        ]
        + [
            Source(
                f"tables.sql: {name}",
                _filled(sqlfiles.table_statement(name)),
                is_function_file=False,
                is_ours=False,
            )
            for name in sqlfiles.table_statement_names()
        ]
    )


def _filled(statement: str) -> str:
    """Placeholders are no SQL: a string or a name stands for itself where one will be, a parameter for a bound value."""
    named = re.sub(r"\{([a-z]+)\}", r'"\1"', statement.replace("{text}", "'text'").replace("{count}", "1"))
    return _PARAMETER.sub("$1", named)


def check(files: Iterable[Source]) -> Iterator[str]:
    created: dict[str, str] = {}
    commented: set[str] = set()
    functions: dict[str, str] = {}
    for source in files:
        try:
            statements = pglast.parse_sql(source.text)
        except pglast.parser.ParseError as error:
            yield f"{source.name}: does not parse: {error}"
            continue
        for raw in statements if source.is_ours else ():
            created |= dict.fromkeys(_created(raw.stmt), source.name)
            commented |= set(_commented(raw.stmt))
            yield from _function_mistakes(source, raw)
            if isinstance(raw.stmt, ast.CreateFunctionStmt):
                functions[_dotted(raw.stmt.funcname)] = _COMMENT.sub("", _statement(source, raw))
    yield from _waiting_mistakes(functions)
    explained = {thing.rpartition(".")[2] for thing in commented if thing.startswith("column ")}
    for thing, place in created.items():
        is_known_column = thing.startswith("column ") and thing.rpartition(".")[2] in explained
        if thing not in commented and not is_known_column:
            yield f"{place}: {thing} has no COMMENT"


def _created(statement: Any) -> Iterator[str]:
    match statement:
        case ast.CreateStmt(relation=relation, tableElts=elements, partbound=None):
            yield f"table {_relation(relation)}"
            for element in elements or ():
                if isinstance(element, ast.ColumnDef):
                    yield f"column {_relation(relation)}.{element.colname}"
        case ast.AlterTableStmt(relation=relation, cmds=commands):
            for command in commands or ():
                if command.subtype == enums.AlterTableType.AT_AddColumn:
                    yield f"column {_relation(relation)}.{command.def_.colname}"
        case ast.ViewStmt(view=view):
            yield f"view {_relation(view)}"
        case ast.CreateFunctionStmt(funcname=name) if not _dotted(name).rpartition(".")[2].startswith("_"):
            yield f"function {_dotted(name)}"


def _commented(statement: Any) -> Iterator[str]:
    if not isinstance(statement, ast.CommentStmt) or not statement.comment:
        return
    kinds = {
        enums.ObjectType.OBJECT_TABLE: "table",
        enums.ObjectType.OBJECT_COLUMN: "column",
        enums.ObjectType.OBJECT_VIEW: "view",
        enums.ObjectType.OBJECT_FUNCTION: "function",
        enums.ObjectType.OBJECT_PROCEDURE: "function",
    }
    if statement.objtype in kinds:
        named = statement.object
        yield f"{kinds[statement.objtype]} {_dotted(getattr(named, 'objname', named))}"


def _function_mistakes(source: Source, raw: Any) -> Iterator[str]:
    match statement := raw.stmt:
        case ast.CreateFunctionStmt():
            name, definitions = _dotted(statement.funcname), statement.options
        case ast.DoStmt():
            name, definitions = "DO", statement.args
        case _:
            return
    if source.is_function_file and _BACKSLASH.search(_COMMENT.sub("", _statement(source, raw))):
        yield f"{source.name}: {name} has a string with a backslash: write E'...', or [0-9] and the like"
    options = {definition.defname: definition.arg for definition in definitions or ()}
    language = options["language"].sval if "language" in options else "plpgsql"
    if isinstance(statement, ast.CreateFunctionStmt) and not _has_fixed_path(statement):
        yield from _path_mistakes(source, statement, options)
    if isinstance(statement, ast.CreateFunctionStmt):
        yield from _planner_mistakes(source, statement)
    if language != "plpgsql":
        return
    try:
        body = pglast.parse_plpgsql(_without_our_types(_statement(source, raw)))
    except pglast.parser.ParseError as error:
        yield f"{source.name}: the body of {name} does not parse: {error}"
        return
    if source.is_function_file and _DYNAMIC & set(_keys(body)):
        yield f"{source.name}: {name} builds SQL at run time (EXECUTE)"


def _planner_mistakes(source: Source, function: Any) -> Iterator[str]:
    settings = tuple(
        _setting(option.arg)
        for option in function.options
        if option.defname == "set" and option.arg.name not in _NOT_OF_THE_PLANNER
    )
    if settings and settings not in planner_blocks().values():
        yield f"{source.name}: {_dotted(function.funcname)} has settings for the planner that are no block of sql/README.md: {', '.join(settings)}"


@functools.cache
def planner_blocks() -> dict[str, tuple[str, ...]]:
    """The blocks of settings that sql/README.md states, by name."""
    text = _read(sqlfiles.sql_dir() / "README.md")
    return {
        block["name"]: tuple(
            _setting(raw.stmt) for raw in pglast.parse_sql(block["settings"].replace("\n", ";\n"))
        )
        for block in _PLANNER_BLOCK.finditer(text)
    }


def _setting(statement: Any) -> str:
    value = statement.args[0].val
    return f"{statement.name} = {value.sval if isinstance(value, ast.String) else value.ival}"


def _path_mistakes(source: Source, function: Any, options: dict[str, Any]) -> Iterator[str]:
    name = _dotted(function.funcname)
    is_definer = "security" in options and options["security"].boolval
    is_trigger = function.returnType is not None and _dotted(function.returnType.names) == "trigger"
    if is_definer or is_trigger or options["language"].sval != "sql":
        yield f"{source.name}: {name} is without SET search_path = ..., pg_temp"
        return
    body = function.sql_body or pglast.parse_sql(options["as"][0].sval)
    found = _Relations()
    found(body)
    for relation in sorted(found.without_schema - found.named_here):
        yield f"{source.name}: {name} is without SET search_path, and does not say of which schema {relation} is"


class _Relations(Visitor):
    """The relations of a query that name no schema, and the names that its WITH clauses give."""

    def __init__(self) -> None:
        self.without_schema: set[str] = set()
        self.named_here: set[str] = set()

    def visit_RangeVar(self, _ancestors: Any, node: Any) -> None:  # noqa: N802 - the name is pglast's
        if node.schemaname is None:
            self.without_schema.add(node.relname)

    def visit_CommonTableExpr(self, _ancestors: Any, node: Any) -> None:  # noqa: N802
        self.named_here.add(node.ctename)


def _waiting_mistakes(functions: dict[str, str]) -> Iterator[str]:
    for name, text in functions.items():
        if _CLAIM_KEY in text and name != _CLAIM_LOCK:
            yield f"{name} takes the claim lock by itself: call {_CLAIM_LOCK}()"
        if name == _CLAIM_LOCK or f"{_CLAIM_LOCK}()" not in text:
            continue
        before, _, after = text.partition(f"{_CLAIM_LOCK}()")
        if "SET lock_timeout" not in before:
            yield f"{name} holds the claim lock without SET lock_timeout: its end would not restore the session's"
        for caller, under_lock in [(name, after), *_reached(functions, after)]:
            if found := _WAITS.search(under_lock):
                yield f"{caller} may wait under the claim lock of {name}: {found[0]} without SKIP LOCKED"


def _reached(functions: dict[str, str], text: str) -> list[tuple[str, str]]:
    """The functions that a text calls, and those that they call."""
    reached: dict[str, str] = {}
    waiting = [text]
    while waiting:
        for name in _CALL.findall(waiting.pop()):
            if name in functions and name not in reached and name != _CLAIM_LOCK:
                reached[name] = functions[name]
                waiting.append(functions[name])
    return list(reached.items())


def _statement(source: Source, raw: Any) -> str:
    length = raw.stmt_len or len(source.text.encode()) - raw.stmt_location
    return source.text.encode()[raw.stmt_location : raw.stmt_location + length].decode()


def _without_our_types(text: str) -> str:
    """The parser of bodies knows no schema but pg_catalog and public, and no arrays of types that it has not seen."""
    return re.sub(r"\bdataflow\.\w+\[\]", "text[]", text).replace("dataflow.", "public.")


def _has_fixed_path(function: Any) -> bool:
    for option in function.options:
        if option.defname == "set" and option.arg.name == "search_path" and option.arg.args:
            return bool(option.arg.args[-1].val.sval == "pg_temp")
    return False


def _keys(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        yield from tree
        for value in tree.values():
            yield from _keys(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _keys(value)


def _relation(relation: Any) -> str:
    return f"{relation.schemaname}.{relation.relname}" if relation.schemaname else str(relation.relname)


def _dotted(names: Any) -> str:
    return ".".join(name.sval for name in names)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
