"""Reads the declared checks of data, and brings each to one form: a table with its limit and its severity.

A file may have `min_rows = 1` or `min_rows = {value = 1, severity = "warn"}`; this module returns the second form. Custom
checks name code, so they are returned separately and are never stored in the database.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from dataflowd.flow import code
from dataflowd.flow.section import Section, type_of
from dataflowd.model.check_shapes import BY_COLUMN, SEVERITIES, WITH_COLUMN_LIST
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Custom = tuple[dict[str, str], ...]


def parse(section: Section, columns: list[str] | None) -> tuple[dict[str, Any], Custom]:
    """The checks of a dataset or a job, and its custom checks. `columns`: the schema's columns; None: no schema is known."""
    found: dict[str, Any] = {}
    for name, read in _READERS.items():
        if section.value(name) is not None:
            found[name] = read(section, name)
    custom = _custom(section)
    section.close()
    if columns is not None:
        for name in (BY_COLUMN | WITH_COLUMN_LIST) & found.keys():
            used = found[name].get("columns", []) if name in WITH_COLUMN_LIST else list(found[name])
            for column in used:
                _check_column(section, name, column, columns)
    return found, custom


def columns_of(ddl: str) -> list[str] | None:
    """The column names of a Spark DDL schema; None if its brackets or commas are wrong."""
    parts, depth, current = [], 0, ""
    for character in ddl:
        depth += (character in "<(") - (character in ">)")
        if depth < 0:
            return None
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    found = [_COLUMN.match(part) for part in [*parts, current]]
    names = [match["quoted"] or match["plain"] for match in found if match]
    return names if depth == 0 and len(names) == len(found) else None


_COLUMN = re.compile(r"\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>[^\s:`<>(),]+))(?:\s*:\s*|\s+)\S")


def _check_column(section: Section, name: str, column: str, columns: list[str]) -> None:
    if column not in columns:
        section.wrong(
            name,
            f"names the column {column!r}{did_you_mean(column, columns)}",
            f"the schema has {', '.join(columns)}",
        )


def _severity(section: Section) -> dict[str, Any]:
    return {"severity": section.word("severity", SEVERITIES, "error")}


def _long(section: Section, name: str, key: str) -> Section:
    """Reads `name = X` as `name = {key = X}`."""
    value = section.value(name)
    table = value if isinstance(value, dict) else {key: value}
    path = (*section.key, name)
    return Section(section.report, path, table)


def _rows(section: Section, name: str) -> dict[str, Any]:
    long = _long(section, name, "value")
    if "value" not in long:
        long.wrong("value", "is missing", "write how many rows")
    found = {"value": long.whole("value", minimum=0, default=0)} | _severity(long)
    long.close()
    return found


def _columns(section: Section, name: str) -> dict[str, Any]:
    long = _long(section, name, "columns")
    columns = list(long.words("columns"))
    if not columns and isinstance(long.value("columns") or [], list):
        long.wrong("columns", "names no column", 'write an array of columns: ["order_id"]')
    found = {"columns": columns} | _severity(long)
    long.close()
    return found


def _for_each_column(
    read: Callable[[Section], dict[str, Any]], key: str
) -> Callable[[Section, str], dict[str, Any]]:
    def parse_all(section: Section, name: str) -> dict[str, Any]:
        return dict(_one_by_one(section.section(name), read, key))

    return parse_all


def _one_by_one(
    section: Section, read: Callable[[Section], dict[str, Any]], key: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    for column in section.names():
        if not key and not isinstance(section.value(column), dict):
            section.wrong(
                column, f"is {type_of(section.value(column))}", "write a table: {min = 0, max = 100}"
            )
            continue
        long = _long(section, column, key)
        yield column, read(long) | _severity(long)
        long.close()


def _accepted(section: Section) -> dict[str, Any]:
    values = section.data_list("values")
    if not values:
        section.wrong("values", "accepts nothing", 'write an array of values: ["EUR", "USD"]')
    return {"values": values}


def _range(section: Section) -> dict[str, Any]:
    bounds = {name: _bound(section, name) for name in ("min", "max") if section.value(name) is not None}
    if not bounds:
        section.wrong("min", "and max are missing", "write at least one: {min = 0, max = 100}")
    low, high = bounds.get("min"), bounds.get("max")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        section.wrong("min", f"is {low}, above max {high}", "exchange them")
    return bounds


def _bound(section: Section, name: str) -> Any:
    value = section.data_value(name)
    if isinstance(value, bool | dict | list):
        section.wrong(name, f"is {type_of(value)}", "write a number, a date or a string")
    return value


def _regex(section: Section) -> dict[str, Any]:
    pattern = section.filled("pattern")
    if pattern is None and "pattern" not in section:
        section.wrong("pattern", "is missing", "write a regular expression")
    try:
        re.compile(pattern or "")
    except (re.error, RecursionError, OverflowError) as error:
        section.wrong("pattern", f"is no regular expression: {error}", "correct the pattern")
    return {"pattern": pattern}


def _schema(section: Section, name: str) -> dict[str, Any]:
    long = _long(section, name, "columns")
    columns = long.filled("columns")
    if columns is not None and columns_of(columns) is None:
        long.wrong("columns", "is no list of columns", 'write it as "order_id bigint, customer string"')
    found = {"columns": columns} | _severity(long)
    long.close()
    return found


def _row_count(section: Section, name: str) -> dict[str, Any]:
    long = _long(section, name, "input")
    source = long.identifier("input")
    if "input" not in long:
        long.wrong("input", "is missing", "name the input whose rows are compared")
    tolerance = long.value("tolerance")
    if tolerance is None:
        tolerance = 0
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if not is_number or not math.isfinite(tolerance) or not 0 <= tolerance <= 1:
        long.wrong(
            "tolerance", f"is {tolerance!r}", "write a share from 0 to 1: 0.01 allows one in a hundred"
        )
        tolerance = 0
    found = {"input": source, "tolerance": tolerance} | _severity(long)
    long.close()
    return found


def _custom(section: Section) -> Custom:
    value = section.value("custom")
    if value is None:
        return ()
    if not isinstance(value, list):
        section.wrong("custom", f"is {type_of(value)}", 'write an array of functions: ["checks:no_gaps"]')
        return ()
    found = []
    for index, element in enumerate(value):
        table = element if isinstance(element, dict) else {"function": element}
        long = Section(section.report, (*section.key, "custom", index), table)
        function = long.filled("function")
        if "function" not in long:
            long.wrong("function", "is missing", 'write function = "module:function"')
        severity = _severity(long)["severity"]
        long.close()
        if function is not None:
            _check_function(long, function)
            found.append({"function": function, "severity": severity})
    return tuple(found)


def _check_function(section: Section, function: str) -> None:
    try:
        code.check_python(function, section.report.source.path.absolute().parent)
    except code.MissingCodeError as error:
        section.wrong("function", f"cannot be used: {error.what}", error.remedy)


_READERS: dict[str, Callable[[Section, str], dict[str, Any]]] = {
    "min_rows": _rows,
    "max_rows": _rows,
    "not_null": _columns,
    "unique": _columns,
    "accepted_values": _for_each_column(_accepted, "values"),
    "range": _for_each_column(_range, ""),
    "regex": _for_each_column(_regex, "pattern"),
    "schema": _schema,
    "row_count": _row_count,
}
