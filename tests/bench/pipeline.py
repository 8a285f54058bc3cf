"""The measured pipeline: raw -> first -> a -> second -> b. Every end of `first` makes a run of `second` ready.

A line is a connection that claims and finishes as a daemon does, one batch after the other, without running anything.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

DAEMON = "bench"
CONCURRENCY = 1000

CREATE = """
    INSERT INTO dataflow.dataset (datasetid, location, format)
    VALUES ('raw', '/data/raw/{dataid}', 'csv'), ('a', '/data/a', 'parquet'), ('b', '/data/b', 'parquet');
    INSERT INTO dataflow.job (jobid, max_attempts) VALUES ('first', 1), ('second', 1);
    INSERT INTO dataflow.job_input (jobid, datasetid) VALUES ('first', 'raw'), ('second', 'a');
    INSERT INTO dataflow.job_output (jobid, datasetid) VALUES ('first', 'a'), ('second', 'b');
"""
# One chunk a day, from the year 1 on: a million days are 2738 years.
REGISTER = """
    SELECT dataflow.ready(%(dataset)s, ARRAY(
        SELECT (date '0001-01-01' + day)::text FROM generate_series(%(start)s::int, %(stop)s::int - 1) AS day))
"""


@dataclass(frozen=True)
class Line:
    connection: psycopg.Connection
    incarnation: UUID

    def cycle(self, batch: int, outcome: str = "DONE") -> int:
        """Claims and finishes one batch, and returns the number of its runs."""
        claimed = self.connection.execute(
            "SELECT attempt, token::text FROM dataflow.claim(%s, %s, %s)", (DAEMON, self.incarnation, batch)
        ).fetchall()
        results = [{"attempt": attempt, "token": token, "outcome": outcome} for attempt, token in claimed]
        verdicts = self.connection.execute(
            "SELECT verdict FROM dataflow.finish(%s)", (json.dumps(results),)
        ).fetchall()
        if any(verdict != ("accepted",) for verdict in verdicts):
            raise RuntimeError(f"not every finish was accepted: {sorted(set(verdicts))}")
        return len(claimed)

    def cycles(self, batch: int, count: int, seconds: float, outcome: str = "DONE") -> float:
        """Cycles a second, until so many cycles or so much time have passed."""
        done, started = 0, time.perf_counter()
        while done < count and time.perf_counter() - started < seconds:
            runs = self.cycle(batch, outcome)
            if not runs:
                raise RuntimeError(f"nothing left to claim after {done} cycles")
            done += runs
        return done / (time.perf_counter() - started)


def create(connection: psycopg.Connection) -> None:
    connection.execute(CREATE)
    connection.execute("SELECT dataflow.set_concurrency('global', %s)", (CONCURRENCY,))


def register(connection: psycopg.Connection, dataset: str, start: int, stop: int) -> float:
    """Registers the chunks of these days in one call, and returns the seconds that it took."""
    started = time.perf_counter()
    connection.execute(REGISTER, {"dataset": dataset, "start": start, "stop": stop})
    return time.perf_counter() - started


def settle_down(connection: psycopg.Connection) -> None:
    """Runs VACUUM and a checkpoint now, so that they do not happen inside a window."""
    connection.execute("VACUUM (ANALYZE)")
    connection.execute("CHECKPOINT")


@contextmanager
def line(dsn: str) -> Iterator[Line]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        registered = connection.execute(
            "SELECT dataflow.register_daemon(%s, 'localhost', 1, '1 day')", (DAEMON,)
        ).fetchone()
        if registered is None:
            raise RuntimeError("the daemon was not registered")
        yield Line(connection, registered[0])
