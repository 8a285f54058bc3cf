"""Brings the schema `dataflow` to this program's version.

A session advisory lock lets one upgrade run at a time. Each file of sql/migrations is applied once, in its own
transaction, and recorded with its checksum. If a checksum of sql/functions changed, all its files are applied again in
one transaction. An applied migration that was edited, and a database of a newer release, are refused before anything is
written.

Daemons go on during an upgrade. An upgrade takes locks in the daemons' order. If it does not get a lock at once, it rolls
back and tries again, so that no daemon queues behind an upgrade that itself waits for an open transaction. A newer schema
names the oldest release that it still serves (dataflow.schema_version). So after an upgrade of the schema, daemons can be
restarted one by one.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

import psycopg

from dataflowd import __version__
from dataflowd.database import db
from dataflowd.host import sqlfiles
from dataflowd.model.errors import LockedError, NotAllowedError, SchemaMismatchError

if TYPE_CHECKING:
    from pathlib import Path

MINIMUM_SERVER_VERSION = 150000
FIRST_MIGRATION = "0001_roles.sql"  # makes the role that owns everything after it
PATIENCE_SECONDS = 300.0
PAUSE_SECONDS = 0.25  # sessions that queued behind the upgrade go first
# Another session held a lock; the next try may succeed. Of internal errors only "tuple concurrently updated", which
# concerns a row of the catalogue.
PASSING = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.InternalError_,
)


@dataclass(frozen=True)
class Drift:
    """The differences between a database and this program."""

    missing: list[Path]
    changed_functions: list[Path]
    edited: list[str]
    unknown: list[str]
    made_by: str | None = None  # the release that made the schema; None: a release that did not record it
    serves_from: str | None = None  # the oldest release that the schema serves

    @property
    def is_current(self) -> bool:
        return not (self.missing or self.changed_functions or self.edited or self.unknown)

    @property
    def is_newer(self) -> bool:
        return bool(self.unknown) or (
            self.made_by is not None and _release(self.made_by) > _release(__version__)
        )

    @property
    def serves_us(self) -> bool:
        """Whether the schema is of a newer release that still serves this program."""
        return (
            self.made_by is not None
            and self.serves_from is not None
            and _release(self.made_by) > _release(__version__) >= _release(self.serves_from)
            and not (self.missing or self.edited)
        )


def init(connection: psycopg.Connection) -> list[str]:
    """Creates or upgrades the schema, and returns one line for each step. The connection is in autocommit."""
    if connection.info.server_version < MINIMUM_SERVER_VERSION:
        raise SchemaMismatchError(
            f"the server is Postgres {connection.info.server_version // 10000}",
            "dataflowd needs Postgres 15 or newer",
        )
    with connection.transaction():
        connection.execute(db.query("migration_patience"))
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


def require_release(connection: psycopg.Connection) -> None:
    """Refuses a missing schema, and a schema of a release that this program cannot use. Costs one query."""
    with db.translated():
        made_by, serves_from = connection.execute(db.query("schema_version")).fetchone() or (None, None)
    _require_release(Drift([], [], [], [], made_by, serves_from))


def require(connection: psycopg.Connection) -> Drift:
    """Refuses any difference, except a newer schema that still serves this release."""
    require_release(connection)
    found = drift(connection)
    _require_release(found)
    if not (found.is_current or found.serves_us):
        raise SchemaMismatchError(
            "the database's schema is not the one that this program was made for",
            "run `dataflowctl init`, or upgrade dataflowd on this host",
        )
    return found


def _require_release(found: Drift) -> None:
    if found.is_newer and not found.serves_us:
        raise SchemaMismatchError(
            f"the database's schema is of {found.made_by or 'a newer release'}, and does not serve releases before {found.serves_from or 'it'}",
            "upgrade dataflowd on this host",
        )
    if found.made_by is not None and _release(found.made_by) < _release(__version__):
        raise SchemaMismatchError(
            f"the database's schema is of release {found.made_by}, and this program is of release {__version__}",
            "run `dataflowctl init`",
        )


def drift(connection: psycopg.Connection) -> Drift:
    """Compares the database with this program. Writes nothing."""
    if connection.execute(db.query("migration_exists")).fetchone() == (None,):
        return Drift(sqlfiles.migrations(), sqlfiles.functions(), [], [])
    applied = {str(row[0]): str(row[1]) for row in connection.execute(db.query("migration_applied"))}
    recorded = {name for name in applied if not name.startswith("functions/")}
    files = {path.name: path for path in sqlfiles.migrations()}
    functions = {f"functions/{path.name}": path for path in sqlfiles.functions()}
    made_by, serves_from = _made_by(connection)
    return Drift(
        missing=[path for name, path in files.items() if name not in applied],
        changed_functions=[path for name, path in functions.items() if applied.get(name) != _checksum(path)],
        edited=sorted(name for name in recorded & files.keys() if applied[name] != _checksum(files[name])),
        unknown=sorted(recorded - files.keys()),
        made_by=made_by,
        serves_from=serves_from,
    )


def _made_by(connection: psycopg.Connection) -> tuple[str | None, str | None]:
    if connection.execute(db.query("schema_version_exists")).fetchone() == (None,):
        return None, None
    return connection.execute(db.query("schema_version")).fetchone() or (None, None)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _upgrade(connection: psycopg.Connection) -> list[str]:
    found = drift(connection)
    if found.is_newer:
        has = ", ".join([*(["functions of " + found.made_by] if found.made_by else []), *found.unknown])
        raise SchemaMismatchError(
            f"the database is newer than this program: it has {has}",
            "upgrade dataflowd on this host to the version that made this database",
        )
    if found.edited:
        raise SchemaMismatchError(
            f"applied migrations were edited afterwards: {', '.join(found.edited)}",
            "restore the files of the release, and put changes into a new migration",
        )
    for path in found.missing:
        _apply(connection, [path])
    # A migration may change objects that functions depend on, so all functions are applied after it.
    if found.missing or found.changed_functions:
        _apply(connection, sqlfiles.functions(), prefix="functions/")
    return [f"applied migration {path.name}" for path in found.missing] + [
        f"updated functions {path.name}" for path in found.changed_functions
    ]


def _apply(connection: psycopg.Connection, paths: list[Path], prefix: str = "") -> None:
    """Applies the files in one transaction, and tries again while other sessions hold locks."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            _apply_now(connection, paths, prefix)
        except PASSING as error:
            if isinstance(error, psycopg.errors.InternalError_) and "concurrently" not in str(error):
                raise
            if time.monotonic() > deadline:
                raise _locked_error(connection, error) from error
            time.sleep(PAUSE_SECONDS)
        else:
            return


def _apply_now(connection: psycopg.Connection, paths: list[Path], prefix: str) -> None:
    with connection.transaction():
        connection.execute(db.query("migration_timeout"))
        is_first = bool(paths) and paths[0].name == FIRST_MIGRATION
        connection.execute(db.query("migration_bookkeeping" if is_first else "migration_owner"))
        if prefix:
            connection.execute(db.query("migration_quiet"))
        for path in paths:
            _execute(connection, path)
            connection.execute(
                db.query("migration_record"), {"name": prefix + path.name, "checksum": _checksum(path)}
            )


def _locked_error(connection: psycopg.Connection, error: psycopg.Error) -> LockedError:
    holders = connection.execute(db.query("migration_blockers")).fetchall()
    said = "; ".join(
        f"pid {pid}, {user}, {program or 'psql'}, since {since}" for pid, user, program, since in holders
    )
    return LockedError(
        f"tables of the schema were in use for {PATIENCE_SECONDS:.0f} s: {said or error.diag.message_primary}",
        "end these transactions (SELECT pg_terminate_backend(pid)), and run `dataflowctl init` again; nothing is half done",
    )


def _execute(connection: psycopg.Connection, path: Path) -> None:
    try:
        connection.execute(_text(path))
    except (psycopg.errors.InsufficientPrivilege, *PASSING):
        raise
    except psycopg.ProgrammingError as error:
        raise SchemaMismatchError(
            f"{path.name} cannot be applied: {error.diag.message_primary}",
            "undo what was changed by hand in the schema dataflow, or report this as a bug of dataflowd",
        ) from error


def _text(path: Path) -> LiteralString:
    """The text of a file of ours, typed as psycopg demands."""
    return path.read_text(encoding="utf-8")


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
