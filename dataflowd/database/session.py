"""A connection to the database for one task at a time, which notices when it is lost.

Two limits end every call. First the server ends a statement that takes too long; the connection stays good. A little later
the client closes the connection, because then the network does not answer. Both ends have keepalives, so that a server
does not keep the session (and the locks) of a daemon that it cannot reach. A call that was cancelled or timed out leaves
the connection in an unknown state, so the connection is closed. When another connection of the daemon was found dead,
`suspect` shortens the limit of the current call, or of the next one. A DSN may name several hosts: each connect tries them
in turn, so that after a failover it finds the server that takes writes.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import anyio
import psycopg
from psycopg import pq
from psycopg.types.json import set_json_loads

from dataflowd.database import answers, db

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dataflowd.host.settings import Current, Settings

# The server's error after its statement timeout needs time to arrive.
ANSWER_SECONDS = 3.0
SUSPECT_SECONDS = 5.0
SESSION = {
    "TimeZone": "UTC",
    "tcp_keepalives_idle": str(db.KEEPALIVE_IDLE_SECONDS),
    "tcp_keepalives_interval": str(db.KEEPALIVE_INTERVAL_SECONDS),
    "tcp_keepalives_count": str(db.KEEPALIVE_COUNT),
}
# Prepared statements of the connection have become useless: a function has another result type, or they were deallocated.
STALE_PLANS = (psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidSqlStatementName)
USER_TIMEOUT_MILLISECONDS = 10_000

Row = tuple[Any, ...]


class LostLinkError(Exception):
    """The connection is gone; whether the last call was carried out is not known."""


class Link:
    def __init__(
        self,
        current: Current,
        application: str,
        *,
        seconds: float,
        address: Callable[[], str],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._current = current
        self._application = application
        self._statement_seconds = seconds
        self._patience = seconds + ANSWER_SECONDS
        self._call: anyio.CancelScope | None = None
        self._address = address
        self._on_lost = on_lost
        self._lock = anyio.Lock(fast_acquire=True)
        self._connection: psycopg.AsyncConnection[Row] | None = None

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    def suspect(self) -> None:
        """Requires an answer within SUSPECT_SECONDS; resets after the next success."""
        self._patience = SUSPECT_SECONDS
        if self._call is not None:
            self._call.deadline = min(self._call.deadline, anyio.current_time() + SUSPECT_SECONDS)

    async def open(self) -> None:
        """Raises what psycopg raises, or TimeoutError."""
        if self._connection is None:
            self._connection = await connect(
                self._current.settings, self._address, self._application, seconds=self._statement_seconds
            )

    async def call(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """The rows of a named query, which is one transaction. Raises WrongAnswerError if their form is wrong."""
        async with self._lock:
            connection = self._connection
            if connection is None:
                raise LostLinkError
            try:
                with anyio.fail_after(self._patience) as self._call:
                    cursor = await connection.execute(db.query(name), parameters)
                    self._patience = self._statement_seconds + ANSWER_SECONDS
                    return await _rows(name, cursor)
            except (psycopg.OperationalError, psycopg.InterfaceError, TimeoutError) as error:
                if is_good(connection):
                    raise
                raise LostLinkError(str(error) or type(error).__name__) from error
            except STALE_PLANS:
                self._discard()
                raise
            finally:
                self._call = None
                if not is_good(connection):
                    self._discard()

    async def close(self) -> None:
        """Waits for the current call first: otherwise the next connection could get the number of the socket in use."""
        async with self._lock:
            self._discard()

    def _discard(self) -> None:
        connection, self._connection = self._connection, None
        self._patience = self._statement_seconds + ANSWER_SECONDS
        if connection is not None:
            connection._closed = True  # noqa: SLF001 - close() does the same, but as a coroutine, which could be cancelled
            connection.pgconn.finish()
            self._on_lost()


async def _rows(name: str, cursor: psycopg.AsyncCursor[Row]) -> list[Row]:
    try:
        rows = await cursor.fetchall() if cursor.description else []
    except (ValueError, ArithmeticError, RecursionError) as error:
        # JSON that is nested too deeply, a number with thousands of digits, a text in another encoding.
        raise answers.wrong(name, f"cannot be read: {error}") from None
    answers.check(name, rows)
    return rows


def is_good(connection: psycopg.AsyncConnection[Any]) -> bool:
    return connection.pgconn.status == pq.ConnStatus.OK and (
        connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
    )


async def connect(
    settings: Settings, address: Callable[[], str], application: str, *, seconds: float
) -> psycopg.AsyncConnection[Row]:
    # `address` may start the embedded server, which takes a while; in a thread it does not block the event loop.
    found = await anyio.to_thread.run_sync(address)
    parameters = db.parameters(found, settings, application)
    ours = db.options(SESSION | {"statement_timeout": str(int(seconds * 1000))})
    parameters |= {
        "options": f"{parameters['options']} {ours}",
        "tcp_user_timeout": USER_TIMEOUT_MILLISECONDS,
    }
    hosts = str(parameters.get("host", "")).count(",") + 1
    with anyio.fail_after(settings.connect_timeout * hosts + ANSWER_SECONDS):
        connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
    set_json_loads(_loads, connection)
    return connection


def _loads(data: str | bytes) -> Any:
    """Decodes as UTF-8, which Postgres always sends: json.loads would detect the encoding of each value again."""
    return json.loads(data if isinstance(data, str) else data.decode())


def backoff(failures: int, *, first: float = 0.1, most: float = 5.0) -> float:
    """Seconds to wait: doubles up to `most`, times 0.5 to 1.5, so that many daemons do not return at the same time."""
    spread = 0.5 + (time.monotonic_ns() % 1000) / 1000
    return min(most, first * float(1 << min(failures, 30))) * spread
