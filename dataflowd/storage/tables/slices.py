"""Slices: which rows of a table are wanted, as data: a column, a kind and bounds.

A chunk is a slice of the kind `in`, with one value or the several of a window. A batch of a partitioning and a part of a
parallel read are slices of the kind `range`. Every filter of a job that Spark pushes down is a slice too. Bounds are texts
that the column's type can read. COPY takes no parameters, so the values are first bound to settings of the session (`bind`
in sql/tables.sql), and the conditions refer to these settings: no value is part of a statement.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from psycopg import sql

from dataflowd.storage.tables.catalog import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["in", "range", "<", "<=", ">", ">=", "null", "not null"]

_TEXTS = frozenset({"text", "character varying", "bpchar", "name"})


@dataclass(frozen=True)
class Slice:
    """`range` means low <= column < high; None is an open end. A range without a low bound also holds NULL."""

    column: str
    type: str  # as the server writes it
    kind: Kind
    bounds: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Keyed:
    """Batches of a partitioning: the rows that belong to any of them. For the bounds see sql/functions/partition.sql."""

    columns: tuple[str, ...]
    types: tuple[str, ...]  # as the server writes them
    bounds: tuple[dict[str, Any], ...]
    schema: str
    table: str

    @property
    def is_ranked(self) -> bool:
        """Whether all keys of the table must be ranked to find the rows."""
        return any("every" in bounds for bounds in self.bounds)


class Conditions:
    """The SQL condition of slices, and the values that it refers to."""

    def __init__(self, slices: Sequence[Slice | Keyed]) -> None:
        self.values: dict[str, str] = {}
        parts = [self._keyed(one) if isinstance(one, Keyed) else self._condition(one) for one in slices]
        self.sql: sql.Composable = sql.SQL(" AND ").join(parts) if parts else sql.SQL("true")

    def _condition(self, one: Slice) -> sql.Composable:
        column = sql.Identifier(one.column)
        match one.kind:
            case "null":
                return sql.SQL("{} IS NULL").format(column)
            case "not null":
                return sql.SQL("{} IS NOT NULL").format(column)
            case "in":
                values = sql.SQL(", ").join(self._value(one, bound) for bound in one.bounds)
                return sql.SQL("{} IN ({})").format(column, values)
            case "range":
                return self._range(one)
            case operator:
                # Spark compares strings by their bytes, whatever the table's collation.
                order = sql.SQL(' COLLATE "C"' if one.type in _TEXTS else "")
                [bound] = one.bounds
                return sql.SQL("{}{} {} {}").format(column, order, sql.SQL(operator), self._value(one, bound))

    def _range(self, one: Slice) -> sql.Composable:
        column = sql.Identifier(one.column)
        low, high = one.bounds
        above = None if low is None else sql.SQL("{} >= {}").format(column, self._value(one, low))
        below = None if high is None else sql.SQL("{} < {}").format(column, self._value(one, high))
        if above is None:
            return sql.SQL("true") if below is None else sql.SQL("({} OR {} IS NULL)").format(below, column)
        return above if below is None else sql.SQL("({} AND {})").format(above, below)

    def _keyed(self, one: Keyed) -> sql.Composable:
        parts = sql.SQL(" OR ").join(self._batch(one, bounds) for bounds in one.bounds)
        return sql.SQL("({})").format(parts)

    def _batch(self, one: Keyed, bounds: dict[str, Any]) -> sql.Composable:
        key = sql.SQL(", ").join(map(sql.Identifier, one.columns))
        present = has_key(one.columns)
        if bounds.get("null"):
            return sql.SQL("NOT ({})").format(present)
        if "keys" in bounds:
            casts = sql.SQL(", ").join(
                sql.SQL("(k ->> {})::{}").format(sql.Literal(place), sql.SQL(kind))
                for place, kind in enumerate(one.types)
            )
            name = self._bound(json.dumps(bounds["keys"]))
            return sql.SQL(
                "({}) IN (SELECT {} FROM json_array_elements(current_setting({})::json) AS k)"
            ).format(key, casts, sql.Literal(name))
        if "every" in bounds:
            ranked = statement(
                "every",
                keys=key,
                source=sql.Identifier(one.schema, one.table),
                present=present,
                every=sql.Literal(int(bounds["every"])),
                rest=sql.Literal(int(bounds["rest"])),
            )
            return sql.SQL("({}) IN ({})").format(key, ranked)
        parts = [present]
        for operator, edge in ((">=", bounds["low"]), ("<", bounds["high"])):
            if edge is not None:
                values = sql.SQL(", ").join(
                    self._typed(text, kind) for text, kind in zip(edge, one.types, strict=True)
                )
                parts.append(sql.SQL("({}) {} ({})").format(key, sql.SQL(operator), values))
        return sql.SQL("({})").format(sql.SQL(" AND ").join(parts))

    def _value(self, one: Slice, bound: str | None) -> sql.Composable:
        return self._typed(bound or "", one.type)

    def _typed(self, text: str, kind: str) -> sql.Composable:
        return sql.SQL("current_setting({})::{}").format(sql.Literal(self._bound(text)), sql.SQL(kind))

    def _bound(self, text: str) -> str:
        name = f"dataflow.value_{len(self.values)}"
        self.values[name] = text
        return name


def has_key(columns: Sequence[str]) -> sql.Composable:
    return sql.SQL(" AND ").join(sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in columns)
