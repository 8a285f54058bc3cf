"""Sessions that send a statement and read the answer later, so that one thread plays several people.

A statement is under way until it has returned or waits for a lock. The server tells whether it waits (pg_blocking_pids); the
elapsed time does not count.
"""

from __future__ import annotations

import select
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq

if TYPE_CHECKING:
    from collections.abc import Mapping

# Enough for any statement here on a busy machine. A statement that waits for ever ends with a timeout.
STATEMENT_MILLISECONDS = 5000
# Longer than the lock_timeout of finish(), so that finish() is never the victim of a deadlock.
DEADLOCK_MILLISECONDS = 300
POLL_SECONDS = 0.001

Row = dict[str, str | None]


@dataclass(frozen=True)
class Answer:
    rows: list[Row]
    sqlstate: str | None = None
    message: str = ""

    @property
    def is_error(self) -> bool:
        return self.sqlstate is not None


class Session:
    def __init__(self, dsn: str, name: str, settings: Mapping[str, str] | None = None) -> None:
        self.dsn = dsn
        self.name = name
        self.settings = dict(settings or {})
        self.connection = self._connect()
        self.is_busy = False
        self.was_used = False

    def _connect(self) -> psycopg.Connection[Any]:
        settings = {
            "statement_timeout": str(STATEMENT_MILLISECONDS),
            "deadlock_timeout": str(DEADLOCK_MILLISECONDS),
            **self.settings,
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        return psycopg.connect(self.dsn, autocommit=True, application_name=self.name, options=options)

    @property
    def pid(self) -> int:
        return self.connection.info.backend_pid

    @property
    def is_open(self) -> bool:
        return not self.connection.closed

    @property
    def is_in_transaction(self) -> bool:
        return self.connection.pgconn.transaction_status != pq.TransactionStatus.IDLE

    def send(self, statements: str) -> None:
        self.connection.pgconn.send_query(statements.encode())
        self.is_busy = self.was_used = True

    def poll(self) -> Answer | None:
        """The answer, if it comes within a moment."""
        connection = self.connection.pgconn
        if connection.is_busy():
            select.select([connection.socket], [], [], POLL_SECONDS)
            connection.consume_input()
            if connection.is_busy():
                return None
        self.is_busy = False
        answer = Answer([])
        while (result := connection.get_result()) is not None:
            if not answer.is_error:
                answer = _answer(result) or answer
        return answer

    def ask(self, statements: str) -> Answer:
        """Sends a statement and waits for its answer. Used while no other operation is under way."""
        self.send(statements)
        while (answer := self.poll()) is None:
            pass
        return answer

    def roll_back(self) -> None:
        if self.is_in_transaction:
            self.ask("ROLLBACK")

    def close(self) -> None:
        self.connection.close()

    def reconnect(self) -> None:
        self.connection = self._connect()
        self.is_busy = False


def _answer(result: pq.abc.PGresult) -> Answer | None:
    if result.status == pq.ExecStatus.FATAL_ERROR:
        state = result.error_field(pq.DiagnosticField.SQLSTATE) or b"?????"
        text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        return Answer([], state.decode(), text.decode())
    if result.status != pq.ExecStatus.TUPLES_OK:
        return None
    names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
    return Answer(
        [
            {
                name: None if (value := result.get_value(row, column)) is None else value.decode()
                for column, name in enumerate(names)
            }
            for row in range(result.ntuples)
        ]
    )
