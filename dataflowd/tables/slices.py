"""Which rows of a table are wanted, as data: a column, a kind and bounds.

A chunk is a slice (`in`, one value or the several of a window), a batch of a partitioning and a part of a parallel read
are (`range`), and so is every filter of a job that Spark hands down. Bounds are text, as the column's type reads it.
COPY takes no parameters, so the values are bound to settings of the session first (`bind` in sql/tables.sql), and the
conditions refer to those: no value ever stands in a statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["in", "range", "<", "<=", ">", ">=", "null", "not null"]

_TEXTS = frozenset({"text", "character varying", "bpchar", "name"})


@dataclass(frozen=True)
class Slice:
    """`range` is low <= column < high, where None is open; without a low bound NULL belongs to it."""

    column: str
    type: str  # as the server writes it
    kind: Kind
    bounds: tuple[str | None, ...] = ()


class Conditions:
    """Slices as a condition, and the values that it refers to."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self.values: dict[str, str] = {}
        parts = [self._condition(one) for one in slices]
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

    def _value(self, one: Slice, bound: str | None) -> sql.Composable:
        name = f"dataflow.value_{len(self.values)}"
        self.values[name] = bound or ""
        return sql.SQL("current_setting({})::{}").format(sql.Literal(name), sql.SQL(one.type))
