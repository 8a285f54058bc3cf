"""Connections to a table's database: its columns, its errors translated into ours, and the statements of sql/tables.sql."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from dataflowd.host import sqlfiles
from dataflowd.model.faults import AttemptError
from dataflowd.model.masking import mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dataflowd.storage.tables.place import Table

CONNECTION_CLASS = "08"
_BOUND = "%("
UNMET_AUTH = "authentication method requirement"  # from a message of libpq
UNABLE_CLASSES = ("53", "57")  # insufficient resources, operator intervention
# libpq gives no SQLSTATE for a refused connection; these are parts of messages of the server and of libpq.
LOGIN_REFUSED = re.compile(
    r"authentication failed|no password supplied|role .* (does not exist|is not permitted to log in)"
)

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Column:
    name: str
    type: str  # as the server writes it, without length and precision
    kind: str  # the type's name in the catalogue; for a domain, the name of its base type
    modifier: int
    is_filled: bool  # by a default or an identity
    is_generated: bool


def statement(name: str, **parts: sql.Composable) -> sql.Composed:
    """A statement of sql/tables.sql, filled in. If it binds values, psycopg reads % as a placeholder: names double it."""
    text = sqlfiles.table_statement(name).removesuffix(";")
    if _BOUND in text or any(map(_binds, parts.values())):
        parts = {key: _doubled(part) for key, part in parts.items()}
    return sql.SQL(text).format(**parts)


def _binds(part: sql.Composable) -> bool:
    return isinstance(part, sql.Placeholder) or (isinstance(part, sql.Composed) and any(map(_binds, part)))


def _doubled(part: sql.Composable) -> sql.Composable:
    if isinstance(part, sql.Placeholder):
        return part
    if isinstance(part, sql.Composed):
        return sql.Composed([_doubled(one) for one in part])
    return sql.SQL(part.as_string().replace("%", "%%"))  # safe: as_string has quoted the part


@contextmanager
def connection(table: Table) -> Iterator[psycopg.Connection[Row]]:
    """A connection in autocommit. Errors of the server become AttemptErrors."""
    with translated(table), psycopg.connect(table.login.conninfo(), autocommit=True) as opened:
        opened.execute(statement("begin"))
        yield opened


@contextmanager
def translated(table: Table) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise _translate(error, table) from None


def _translate(error: psycopg.Error, table: Table) -> AttemptError:  # noqa: PLR0911 - one for each cause
    # Without the DETAIL: it shows rows, and errors are stored.
    said = mask(error.diag.message_primary or str(error).strip() or type(error).__name__)
    if UNMET_AUTH in said:
        return AttemptError(
            "NOT_ALLOWED",
            f"the server of the table {table} asks for the password in clear text, and did not get it: {said}",
            "see whether hostname and port are right; a server that has to ask so (LDAP, PAM, RADIUS) is named in the "
            "setting cleartext_hosts",
        )
    if _is_login_refused(error, said):
        return AttemptError(
            "INVALID_CREDENTIAL",
            f"the server of the table {table} refuses the login of {table.login.username or 'its user'}: {said}",
            "see whether username and database are right, and seal the right password with `dataflowctl seal DATASET`",
        )
    if error.sqlstate is None or error.sqlstate.startswith(CONNECTION_CLASS):
        return AttemptError(
            "DATABASE_UNREACHABLE",
            f"cannot reach the table {table}: {said}",
            "see whether the database answers, and whether hostname, port and database are right",
        )
    if error.sqlstate.startswith(UNABLE_CLASSES):
        return AttemptError(
            "DATABASE_UNREACHABLE",
            f"the server cannot serve the table {table} now: {said}",
            "see what its log says about room, memory, connections or a shutdown",
        )
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return AttemptError(
            "LOCKED",
            f"another session has locked the table {table}: {said}",
            "find that session in pg_stat_activity of the table's database",
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return AttemptError(
            "NOT_ALLOWED",
            f"the role may not use the table {table}: {said}",
            "reading needs SELECT; writing needs CREATE on the schema, and SELECT, INSERT and DELETE on the table",
        )
    return AttemptError(
        "WRONG_DATA", f"the table {table} refuses the data: {said}", "correct the data or the table"
    )


def _is_login_refused(error: psycopg.Error, said: str) -> bool:
    """Also true if the server asked for a password and got none: its message may be in another language."""
    is_asked = error.pgconn is not None and error.pgconn.needs_password
    return error.sqlstate is None and (is_asked or LOGIN_REFUSED.search(said) is not None)


def rows(
    opened: psycopg.Connection[Row], what: sql.Composed, parameters: Mapping[str, Any] | None = None
) -> list[Row]:
    found = opened.execute(what, parameters)
    return found.fetchall() if found.description else []


def columns(opened: psycopg.Connection[Row], table: Table) -> list[Column]:
    """The columns of a table; empty if there is no such table."""
    named = {"schema": table.schema, "table": table.name}
    return [Column(*row) for row in rows(opened, statement("columns"), named)]
