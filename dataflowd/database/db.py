"""Connections to the control database, and its errors in our words.

Every connection has an application name, a connect timeout, TCP keepalives and a statement timeout: no call waits for
ever. Errors of our SQL functions carry the SQLSTATE class DF and a HINT; they become DataflowErrors with that hint as the
remedy.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import conninfo

from dataflowd.host import sqlfiles, withheld
from dataflowd.model.errors import (
    DatabaseUnreachableError,
    DataflowError,
    InvalidPathError,
    InvalidSettingsError,
    InvalidValueError,
    LockedError,
    NotAllowedError,
    NotFoundError,
    SchemaMismatchError,
)
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dataflowd.host.settings import Settings

KEEPALIVE_IDLE_SECONDS = 5
KEEPALIVE_INTERVAL_SECONDS = 2
KEEPALIVE_COUNT = 3

# A database, a role or a DSN may set other defaults, under which our functions would decide or write differently. The time
# zone is not pinned: it only changes what a person at a terminal sees.
PINNED = {
    "default_transaction_isolation": "read committed",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "standard_conforming_strings": "on",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "transform_null_equals": "off",
}

# SQLSTATEs raised by sql/functions/*.sql.
SQLSTATE_NOT_FOUND = "DF404"
SQLSTATE_REFUSED = "DF409"
SQLSTATE_INVALID = "DF400"
SQLSTATE_LOCKED = "DF423"
SQLSTATE_ELSEWHERE = "DF412"
RAISED_BY_FUNCTIONS: dict[str | None, type[DataflowError]] = {
    SQLSTATE_NOT_FOUND: NotFoundError,
    SQLSTATE_REFUSED: NotAllowedError,
    SQLSTATE_INVALID: InvalidValueError,
    SQLSTATE_LOCKED: LockedError,
    SQLSTATE_ELSEWHERE: InvalidPathError,
}

# Errors that the values cause: one row twice, data exceptions, integrity violations, a value that is too large. The same
# call never succeeds. All other errors may go away: a read-only server, a full disk, a schema during an upgrade.
FINAL_CLASSES = ("21", "22", "23", "54")

# psycopg's errors, our error, the text before Postgres's message, and the remedy. The first entry that fits is used.
RAISED_BY_POSTGRES: list[tuple[tuple[type[psycopg.Error], ...], type[DataflowError], str, str]] = [
    (
        (psycopg.errors.InsufficientPrivilege,),
        NotAllowedError,
        "",
        "connect in the role for it: dataflow_operator steers, dataflow_daemon runs jobs, dataflow_admin applies flows",
    ),
    (
        (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction),
        SchemaMismatchError,
        "this database has no usable dataflow schema: ",
        "run `dataflowctl init`",
    ),
    (
        (psycopg.errors.ReadOnlySqlTransaction,),
        DatabaseUnreachableError,
        "the database takes no writes now: ",
        "wait until it does; after a failover let DATAFLOW_DSN name the new primary, with target_session_attrs=read-write",
    ),
    (
        (psycopg.errors.QueryCanceled,),
        DatabaseUnreachableError,
        "the database took too long: ",
        "look for what blocks it in pg_stat_activity, or raise DATAFLOW_STATEMENT_TIMEOUT",
    ),
    (
        (psycopg.OperationalError,),
        DatabaseUnreachableError,
        "the database does not answer: ",
        "check DATAFLOW_DSN, the server and pg_hba.conf; `dataflowctl doctor` tries each",
    ),
]

# The message of a server that refuses a login, and the remedy. The first pattern that fits is used. libpq gives these
# errors no SQLSTATE. Of a server with messages in another language only the word FATAL is known.
LIBPQ_CONNECTS = "connection to server"
REFUSED_LOGIN: list[tuple[str, str]] = [
    (
        r'role ".*" (does not exist|is not permitted to log in)|authentication failed|no password supplied',
        "check the user and the password in DATAFLOW_DSN or ~/.pgpass; a superuser makes a role with CREATE ROLE name LOGIN",
    ),
    (
        r'database ".*" does not exist',
        "correct the database in DATAFLOW_DSN, or create it with `createdb`, then run `dataflowctl init`",
    ),
    (
        r"pg_hba\.conf",
        "add a line for this user, database and host to the server's pg_hba.conf, and reload it",
    ),
    (
        r"too many (clients|connections)|connection slots",
        "wait until others have disconnected, or raise max_connections on the server",
    ),
    (r"starting up|shutting down|in recovery mode", "wait a moment, and try again"),
    ("FATAL", "see what the server's log says about it"),
]


def query(name: str) -> LiteralString:
    """A named query, typed as psycopg demands: it comes from a file of ours, never from data."""
    return sqlfiles.query(name)


def dsn(settings: Settings, tell: Callable[[str], None] | None = None) -> str:
    """The configured database or, without one, the embedded Postgres, which is started if necessary.

    For root, `tell` is called before the start: it names the account and the directory. The default prints to stderr.
    """
    if settings.dsn is not None:
        return settings.dsn.get_secret_value()
    from dataflowd.host.embedded import postgres  # noqa: PLC0415 - not needed with a DSN

    def tell_with_directory(line: str) -> None:
        (tell or _print_to_stderr)(
            f"{line}; all data goes to {settings.data_dir} (DATAFLOW_DATA_DIR names another place)"
        )

    return postgres.ensure_running(settings.data_dir, tell_with_directory)


def _print_to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def parameters(dsn: str, settings: Settings, application: str) -> dict[str, Any]:
    try:
        parsed = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        # libpq quotes parts of the string, and a part of a malformed string may be the password.
        reason = re.sub(r'"[^"]*"', '"..."', str(error).strip())
        raise InvalidSettingsError(
            f"dsn is not a connection string: {reason}", "write it as postgresql://user@host/database"
        ) from None
    defaults: dict[str, Any] = {
        "connect_timeout": settings.connect_timeout,
        "keepalives_idle": KEEPALIVE_IDLE_SECONDS,
        "keepalives_interval": KEEPALIVE_INTERVAL_SECONDS,
        "keepalives_count": KEEPALIVE_COUNT,
    }
    if settings.dsn is not None and (password := withheld.variables().get("PGPASSWORD")):
        defaults["password"] = password  # dataflowd.host.withheld has removed it from the environment
    ours = options(PINNED | {"statement_timeout": str(settings.statement_timeout * 1000)})
    # Our options come after those of the DSN, because the last value of an option counts.
    return (
        defaults
        | parsed
        | {
            "application_name": application,
            "options": f"{parsed.get('options', '')} {ours}".strip(),
        }
    )


def options(values: Mapping[str, str]) -> str:
    """The value of libpq's parameter `options`. Spaces in a value are escaped by a backslash."""
    return " ".join(f"-c {name}=" + re.sub(r"([\\\s])", r"\\\1", value) for name, value in values.items())


@contextmanager
def connect(settings: Settings, application: str = "dataflowctl") -> Iterator[psycopg.Connection]:
    """A connection in autocommit: each call of a SQL function is its own transaction."""
    address = dsn(settings)
    with (
        translated(),
        psycopg.connect(**parameters(address, settings, application), autocommit=True) as connection,
    ):
        yield connection


@contextmanager
def translated() -> Iterator[None]:
    """Turns psycopg's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


def translate(error: psycopg.Error) -> DataflowError:
    message, hint = said(error), error.diag.message_hint or ""
    if error.sqlstate in RAISED_BY_FUNCTIONS:
        return RAISED_BY_FUNCTIONS[error.sqlstate](message + _nearest(error), hint)
    if "unsupported startup parameter" in message:
        return DatabaseUnreachableError(
            f"a connection pooler stands before the database: {message}",
            "let DATAFLOW_DSN name Postgres itself, or a pooler in session mode",
        )
    if isinstance(error, psycopg.OperationalError) and LIBPQ_CONNECTS in message:
        for pattern, remedy in REFUSED_LOGIN:
            if re.search(pattern, message):
                return DatabaseUnreachableError(f"the server refuses the connection: {message}", remedy)
    for kinds, ours, what, remedy in RAISED_BY_POSTGRES:
        if isinstance(error, kinds):
            return ours(what + message, remedy)
    return DataflowError(f"database error {error.sqlstate}: {message}", hint)


def is_final(error: psycopg.Error) -> bool:
    """Whether the same call would fail again, also on a healthy server."""
    state = error.sqlstate or ""
    return state == SQLSTATE_INVALID or state.startswith(FINAL_CLASSES)


def said(error: psycopg.Error) -> str:
    """The message of Postgres or libpq in one line: messages of libpq have several lines."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return error.diag.message_primary or "; ".join(filter(None, lines))


def _nearest(error: psycopg.Error) -> str:
    """dataflow._unknown says in these fields which name was asked for, and which there are."""
    if error.sqlstate != SQLSTATE_NOT_FOUND or not error.diag.constraint_name:
        return ""
    return did_you_mean(error.diag.column_name or "", json.loads(error.diag.constraint_name))
