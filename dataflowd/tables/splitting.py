"""Splits a table into batches: one ordered pass in its own database, of which only the boundaries come back.

All questions are asked of one snapshot. A boundary is a key, and a batch reaches from one to the next: records of equal
keys are in one batch, whatever its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from dataflowd import partition
from dataflowd.tables import catalog
from dataflowd.tables.place import table_of
from dataflowd.tables.reading import existing
from dataflowd.tables.slices import has_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from dataflowd.order import Dataset
    from dataflowd.tables.catalog import Row


class TableSource:
    """A table, for the time of one split."""

    def __init__(
        self, opened: psycopg.Connection[Row], dataset: Dataset, columns: Sequence[str], hosts: Sequence[str]
    ) -> None:
        table = table_of(dataset, hosts)
        there = {column.name: column for column in catalog.columns(opened, table)}
        names = [existing(there, name, dataset, "column").name for name in columns]
        self._opened = opened
        self._parts: dict[str, sql.Composable] = {
            "keys": sql.SQL(", ").join(map(sql.Identifier, names)),
            "texts": sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names),
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
        rows = self._rows("split", "keys", "texts", "source", "present", size=size)
        if not rows:
            return []
        total = int(rows[-1][self._width]) + 1
        begins: dict[tuple[str, ...], int] = {}
        for row in rows:
            if int(row[self._width]) % size == 0:
                begins.setdefault(tuple(row[: self._width]), int(row[self._width + 1]))
        return partition.ranges(begins, total)

    def _rows(self, name: str, *parts: str, **parameters: Any) -> list[Row]:
        what = catalog.statement(name, **{part: self._parts[part] for part in parts})
        return catalog.rows(self._opened, what, parameters or None)
