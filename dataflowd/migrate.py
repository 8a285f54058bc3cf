"""Brings the schema `dataflow` to this program's version.

One session advisory lock serialises all who try. Each file of sql/migrations is applied once, in its own
transaction, and recorded with its checksum; the files of sql/functions are applied again, all in one transaction,
whenever one of their checksums changed. An applied migration that was edited, and a database that knows a migration
this program lacks, are refused before anything is written.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

import psycopg

from dataflowd import db, sqlfiles
from dataflowd.errors import NotAllowedError, SchemaMismatchError

if TYPE_CHECKING:
    from pathlib import Path

MINIMUM_SERVER_VERSION = 150000
FIRST_MIGRATION = "0001_roles.sql"  # makes the role that owns everything after it


@dataclass(frozen=True)
class Drift:
    """What differs between a database and this program."""

    missing: list[Path]
    changed_functions: list[Path]
    edited: list[str]
    unknown: list[str]

    @property
    def is_current(self) -> bool:
        return not (self.missing or self.changed_functions or self.edited or self.unknown)


def init(connection: psycopg.Connection) -> list[str]:
    """Creates or upgrades the schema; returns what was done, one line each. The connection is in autocommit."""
    if connection.info.server_version < MINIMUM_SERVER_VERSION:
        raise SchemaMismatchError(
            f"the server is Postgres {connection.info.server_version // 10000}",
            "dataflowd needs Postgres 15 or newer",
        )
    with connection.transaction():
        # Whoever holds the lock may be at a long migration.
        connection.execute(db.query("migration_timeout"))
        connection.execute(db.query("migration_lock"))
    try:
        return _upgrade(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotAllowedError(
            f"user {connection.info.user} may not set up this database: {error.diag.message_primary}",
            "run `dataflowctl init` as a superuser, as the database's owner with CREATEROLE, or as a member of dataflow_admin",
        ) from error
    finally:
        if not connection.closed:
            connection.execute(db.query("migration_unlock"))


def drift(connection: psycopg.Connection) -> Drift:
    """Compares without writing."""
    if connection.execute(db.query("migration_exists")).fetchone() == (None,):
        return Drift(sqlfiles.migrations(), sqlfiles.functions(), [], [])
    applied = {str(row[0]): str(row[1]) for row in connection.execute(db.query("migration_applied"))}
    recorded = {name for name in applied if not name.startswith("functions/")}
    files = {path.name: path for path in sqlfiles.migrations()}
    functions = {f"functions/{path.name}": path for path in sqlfiles.functions()}
    return Drift(
        missing=[path for name, path in files.items() if name not in applied],
        changed_functions=[path for name, path in functions.items() if applied.get(name) != _checksum(path)],
        edited=sorted(name for name in recorded & files.keys() if applied[name] != _checksum(files[name])),
        unknown=sorted(recorded - files.keys()),
    )


def _upgrade(connection: psycopg.Connection) -> list[str]:
    found = drift(connection)
    if found.unknown:
        raise SchemaMismatchError(
            f"the database is newer than this program: it has {', '.join(found.unknown)}",
            "upgrade dataflowd on this host to the version that made this database",
        )
    if found.edited:
        raise SchemaMismatchError(
            f"applied migrations were edited afterwards: {', '.join(found.edited)}",
            "restore the files of the release, and put changes into a new migration",
        )
    for path in found.missing:
        _apply(connection, [path])
    # A migration may change what functions depend on, so they follow it as a whole.
    if found.missing or found.changed_functions:
        _apply(connection, sqlfiles.functions(), prefix="functions/")
    return [f"applied migration {path.name}" for path in found.missing] + [
        f"updated functions {path.name}" for path in found.changed_functions
    ]


def _apply(connection: psycopg.Connection, paths: list[Path], prefix: str = "") -> None:
    with connection.transaction():
        connection.execute(db.query("migration_timeout"))
        is_first = bool(paths) and paths[0].name == FIRST_MIGRATION
        connection.execute(db.query("migration_bookkeeping" if is_first else "migration_owner"))
        for path in paths:
            _execute(connection, path)
            connection.execute(
                db.query("migration_record"), {"name": prefix + path.name, "checksum": _checksum(path)}
            )


def _execute(connection: psycopg.Connection, path: Path) -> None:
    try:
        connection.execute(_text(path))
    except psycopg.errors.InsufficientPrivilege:
        raise
    except psycopg.ProgrammingError as error:
        raise SchemaMismatchError(
            f"{path.name} cannot be applied: {error.diag.message_primary}",
            "undo what was changed by hand in the schema dataflow, or report this as a bug of dataflowd",
        ) from error


def _text(path: Path) -> LiteralString:
    """A file of ours, typed as what psycopg accepts."""
    return path.read_text(encoding="utf-8")


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
