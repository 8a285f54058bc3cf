"""Splits a table into batches: one ordered pass in the table's own database, which returns only the boundaries.

All queries see one snapshot. A boundary is a key, and a batch reaches from one boundary to the next: records with equal
keys are in one batch, whatever its size. The pass is a cursor that moves from boundary to boundary, which costs less than
reading all keys. If equal keys lie on both sides of a boundary, a second pass ranks all records instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from dataflowd.storage.partition import plan
from dataflowd.storage.tables import catalog
from dataflowd.storage.tables.place import table_of
from dataflowd.storage.tables.reading import existing
from dataflowd.storage.tables.slices import has_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from dataflowd.model.work_order import Dataset
    from dataflowd.storage.tables.catalog import Row

# Boundaries that one query visits.
AT_ONCE = 64
# For smaller batches, ranking all records is faster than moving to each boundary.
WALKED = 100
# Types whose equal values have equal texts. Of other types 1.0 and 1.00 are the same key.
EXACT = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "uuid",
        "date",
        "text",
        "character varying",
        "timestamp with time zone",
        "timestamp without time zone",
    }
)


class TableSource:
    """A table during one split."""

    def __init__(
        self, opened: psycopg.Connection[Row], dataset: Dataset, columns: Sequence[str], hosts: Sequence[str]
    ) -> None:
        table = table_of(dataset, hosts)
        there = {column.name: column for column in catalog.columns(opened, table)}
        found = [existing(there, name, dataset, "column") for name in columns]
        names = [column.name for column in found]
        self._is_exact = all(column.type in EXACT for column in found)
        self._opened = opened
        self._parts: dict[str, sql.Composable] = {
            "keys": sql.SQL(", ").join(map(sql.Identifier, names)),
            "texts": sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names),
            # Qualified, because an unqualified name would mean the column of `texts`.
            "order": sql.SQL(", ").join(sql.Identifier("s", name) for name in names),
            "source": table.identifier,
            "present": has_key(names),
        }
        self._width = len(names)

    def counts(self) -> tuple[int, int]:
        """The number of records with a key, and of distinct keys."""
        [[records, keys]] = self._rows("keyed", "keys", "source", "present")
        return int(records), int(keys)

    def keyless(self) -> int:
        [[records]] = self._rows("keyless", "source", "present")
        return int(records)

    def ranges(self, size: int) -> list[tuple[dict[str, Any], int]]:
        """The bounds of each batch, with its number of records."""
        begins, total = (self._walked(size) if self._is_exact and size >= WALKED else None) or self._ranked(
            size
        )
        return plan.ranges(begins, total)

    def _walked(self, size: int) -> tuple[dict[Row, int], int] | None:
        """How many records come before each boundary, and in total; None if equal keys lie on both sides of a boundary."""
        with self._opened.transaction():
            self._rows("whole_pass")
            self._do("walk", "source", "present", "order")
            begins = dict.fromkeys(_texts(self._do("walk_read", count=1)), 0)
            passed = len(begins)
            for between, around in self._steps(size) if begins else ():
                passed += between + len(around)
                if len(around) < 2:  # noqa: PLR2004 - the last record before the boundary, and the first after it
                    break
                if around[0] == around[1]:
                    return None
                begins[around[1]] = passed - 1
            self._do("walk_end")
        return begins, passed

    def _steps(self, size: int) -> Iterator[tuple[int, list[Row]]]:
        """Moves from boundary to boundary without end. Yields the number of records between, and the two around a boundary."""
        step = [_counted("walk_on", size - 2), _counted("walk_read", 2)]
        while True:
            found = self._opened.execute(sql.SQL("; ").join(step * AT_ONCE), prepare=False)
            for _ in range(AT_ONCE):
                between = found.rowcount
                found.nextset()
                yield between, _texts(found)
                found.nextset()

    def _ranked(self, size: int) -> tuple[dict[Row, int], int]:
        """As _walked, for any keys, but it ranks every record."""
        rows = self._rows("split", "keys", "texts", "source", "present", size=size)
        begins: dict[Row, int] = {}
        for row in rows:
            if int(row[self._width]) % size == 0:
                begins.setdefault(row[: self._width], int(row[self._width + 1]))
        return begins, int(rows[-1][self._width]) + 1 if rows else 0

    def _do(self, name: str, *parts: str, count: int | None = None) -> psycopg.Cursor[Row]:
        given = {part: self._parts[part] for part in parts}
        return self._opened.execute(
            catalog.statement(name, **given) if count is None else _counted(name, count)
        )

    def _rows(self, name: str, *parts: str, **parameters: Any) -> list[Row]:
        what = catalog.statement(name, **{part: self._parts[part] for part in parts})
        return catalog.rows(self._opened, what, parameters or None)


def _counted(name: str, count: int) -> sql.Composed:
    return catalog.statement(name, count=sql.Literal(count))


def _texts(found: psycopg.Cursor[Row]) -> list[Row]:
    """The rows as the server's text. A cast in the statement would also be computed for the records that a cursor skips."""
    result, encoding = found.pgresult, found.connection.info.encoding
    assert result is not None  # noqa: S101 - the statement has succeeded
    return [
        tuple(str(result.get_value(row, column) or b"", encoding) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]
