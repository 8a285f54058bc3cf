"""Copies the control database to another server of any version.

A dump of a newer server names settings and grants that an older server does not know, so no dump is used. Instead
`dataflowctl init` makes the schema on the target, and the rows of each table are copied as the text of COPY. The source is
read in one snapshot while no daemon works on it. The target must be empty; one transaction writes all rows or none.
Triggers of the target are disabled during the copy, because the rows that they would write are copied too.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from psycopg import sql

from dataflowd.database import db
from dataflowd.model.errors import LockedError, NotAllowedError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import psycopg

OCCUPANTS = ("job", "dataset", "chunk", "attempt", "key")


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[str, ...]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier("dataflow", self.name)

    def statement(self, query: str) -> sql.Composed:
        """A named query with {table} and, where it has them, {columns}."""
        names = _listed(map(sql.Identifier, self.columns))
        return sql.SQL(db.query(query)).format(table=self.identifier, columns=names)


def copy(source: psycopg.Connection, target: psycopg.Connection) -> dict[str, int]:
    """Returns the number of copied rows by table. Both connections are in autocommit and have this program's schema."""
    with db.translated(), source.transaction(), target.transaction():
        source.execute(db.query("copy_snapshot"))
        for connection in (source, target):
            connection.execute(db.query("copy_patience"))
        _require_quiet(source)
        target.execute(db.query("migration_owner"))
        tables = list(_tables(target))
        for table in tables:
            target.execute(table.statement("copy_rest"))
        _require_empty(target)
        every = _listed(table.identifier for table in tables)
        target.execute(sql.SQL(db.query("copy_empty")).format(tables=every))
        copied = {table.name: _copy(source, target, table) for table in tables}
        for name, value in source.execute(db.query("copy_numbers")).fetchall():
            target.execute(db.query("copy_number"), {"name": name, "value": value})
        for table in tables:
            target.execute(table.statement("copy_go_on"))
        target.execute(db.query("copy_end"))
    return copied


def _tables(connection: psycopg.Connection) -> Iterator[Table]:
    """Each table comes after the tables that its rows refer to."""
    found = {name: (columns, needed) for name, columns, needed in connection.execute(db.query("copy_tables"))}
    order = TopologicalSorter({name: needed for name, (_, needed) in found.items()})
    return (Table(name, tuple(found[name][0])) for name in order.static_order())


def _copy(source: psycopg.Connection, target: psycopg.Connection, table: Table) -> int:
    with source.cursor() as reader, target.cursor() as writer:
        with (
            reader.copy(table.statement("copy_read")) as read,
            writer.copy(table.statement("copy_write")) as write,
        ):
            for block in read:
                write.write(block)
        return writer.rowcount


def _listed(names: Iterable[sql.Identifier]) -> sql.Composed:
    return sql.SQL(", ").join(names)


def _require_quiet(source: psycopg.Connection) -> None:
    alive = source.execute(db.query("copy_daemons")).fetchall()
    if alive:
        said = ", ".join(f"{daemon} (its lease ends {until})" for daemon, until in alive)
        raise LockedError(
            f"a daemon works on the embedded database: {said}",
            "stop it, and copy again; if it was killed, wait until its lease has ended",
        )


def _require_empty(target: psycopg.Connection) -> None:
    counts = target.execute(db.query("copy_occupied")).fetchone() or ()
    found = [counted(count, name) for name, count in zip(OCCUPANTS, counts, strict=True) if count]
    if found:
        raise NotAllowedError(
            f"the database {target.info.dbname} is in use: it holds {', '.join(found)}",
            "copy into a new one: createdb, let DATAFLOW_DSN name it, then dataflowctl init",
        )
