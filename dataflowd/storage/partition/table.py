"""Splits a table into batches: one ordered pass in its own database, of which only the boundaries come back.

All questions are asked of one snapshot. A boundary is a key, and a batch reaches from one to the next: records of equal
keys are in one batch, whatever its size. The pass is a cursor that moves from boundary to boundary, which costs less than
reading the keys would. Where equal keys lie across a boundary, a second pass ranks them.
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

# So many boundaries are gone to with one question.
AT_ONCE = 64
# Smaller batches are found quicker by ranking all records than by going to each boundary.
WALKED = 100
# Of these equal values are equal texts; 1.0 and 1.00 are one key, too.
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
    """A table, for the time of one split."""

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
            # Qualified: a bare name would be that of the text.
            "order": sql.SQL(", ").join(sql.Identifier("s", name) for name in names),
            "source": table.identifier,
            "present": has_key(names),
        }
        self._width = len(names)

    def counts(self) -> tuple[int, int]:
        """Records that have a key, and keys."""
        [[records, keys]] = self._rows("keyed", "keys", "source", "present")
        return int(records), int(keys)

    def keyless(self) -> int:
        [[records]] = self._rows("keyless", "source", "present")
        return int(records)

    def ranges(self, size: int) -> list[tuple[dict[str, Any], int]]:
        """Bounds, each with its number of records."""
        begins, total = (self._walked(size) if self._is_exact and size >= WALKED else None) or self._ranked(
            size
        )
        return plan.ranges(begins, total)

    def _walked(self, size: int) -> tuple[dict[Row, int], int] | None:
        """How many records come before each boundary, and in all; None where equal keys lie on both sides of one."""
        with self._opened.transaction():
            self._rows("whole_pass")
            self._do("walk", "source", "present", "order")
            begins = dict.fromkeys(_texts(self._do("walk_read", count=1)), 0)
            passed = len(begins)
            for between, around in self._steps(size) if begins else ():
                passed += between + len(around)
                if len(around) < 2:  # noqa: PLR2004 - the last before the boundary, and the first behind it
                    break
                if around[0] == around[1]:
                    return None
                begins[around[1]] = passed - 1
            self._do("walk_end")
        return begins, passed

    def _steps(self, size: int) -> Iterator[tuple[int, list[Row]]]:
        """From boundary to boundary without end: how many records lie between, and the two around it."""
        step = [_counted("walk_on", size - 2), _counted("walk_read", 2)]
        while True:
            found = self._opened.execute(sql.SQL("; ").join(step * AT_ONCE), prepare=False)
            for _ in range(AT_ONCE):
                between = found.rowcount
                found.nextset()
                yield between, _texts(found)
                found.nextset()

    def _ranked(self, size: int) -> tuple[dict[Row, int], int]:
        """The same of any key, at the price of ranking every record."""
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
    """The rows as the server writes them. A cast in the statement would write all those as well that a cursor passes."""
    result, encoding = found.pgresult, found.connection.info.encoding
    assert result is not None  # noqa: S101 - it is that of a statement which has succeeded
    return [
        tuple(str(result.get_value(row, column) or b"", encoding) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]
