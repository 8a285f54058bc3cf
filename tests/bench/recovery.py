"""Recovery after kill -9 with a hundred running attempts: the time until a restart, or another daemon, runs all of them again.

A restart on the same host sees that the old process is dead. Another daemon waits for the end of the lease; the lease is
subtracted, because it is a setting.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import psycopg

from tests.bench import noop_daemon, pipeline
from tests.bench.report import Result, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.server import Place

BENCH = "recovery"
ATTEMPTS = 100
ROUNDS = 3
LEASE_SECONDS = 5
FOREVER_SECONDS = 3600.0
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.005
LIVE = """
    SELECT count(*) FROM dataflow.attempt a JOIN dataflow.daemon d ON d.daemon = a.daemon AND d.incarnation = a.incarnation
    WHERE a.ended IS NULL AND d.daemon = %s AND a.attempt > %s
"""


def run(place: Place) -> Iterator[Result]:
    restarts = [_restart(place) for _ in range(ROUNDS)]
    takeovers = [_takeover(place) for _ in range(ROUNDS)]
    for case, found in (
        (f"restart, {ATTEMPTS} in flight", restarts),
        ("another daemon, after the lease", takeovers),
    ):
        yield Result(BENCH, case, "seconds", statistics.median(found), "s", None, spread(found))


def _restart(place: Place) -> float:
    with place.database("recovery") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        _prepare(connection)
        with noop_daemon.running(dsn, "one", seconds=FOREVER_SECONDS) as first:
            last = _all_run(connection, "one", 0)
            first.kill()
            first.wait()
        began = time.perf_counter()
        with noop_daemon.running(dsn, "one", seconds=FOREVER_SECONDS):
            _all_run(connection, "one", last)
            return time.perf_counter() - began


def _takeover(place: Place) -> float:
    with place.database("recovery") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        _prepare(connection)
        with noop_daemon.running(dsn, "one", seconds=FOREVER_SECONDS, lease=LEASE_SECONDS) as first:
            last = _all_run(connection, "one", 0)
            with noop_daemon.running(dsn, "two", seconds=FOREVER_SECONDS, lease=LEASE_SECONDS):
                _registered(connection, "two")
                first.kill()
                first.wait()
                began = time.perf_counter()
                left = connection.execute(
                    "SELECT extract(epoch FROM lease_until - clock_timestamp())::double precision"
                    " FROM dataflow.daemon WHERE daemon = 'one'"
                ).fetchone()
                _all_run(connection, "two", last)
                return time.perf_counter() - began - (left[0] if left else 0)


def _prepare(connection: psycopg.Connection) -> None:
    connection.execute("SELECT dataflow.set_concurrency('global', %s)", [ATTEMPTS])
    pipeline.register(connection, "raw", 0, ATTEMPTS)


def _all_run(connection: psycopg.Connection, daemon: str, after: int) -> int:
    """Waits until the daemon runs all of them, and returns the last attempt."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while connection.execute(LIVE, [daemon, after]).fetchone() != (ATTEMPTS,):
        if time.monotonic() > deadline:
            raise TimeoutError(f"daemon {daemon} does not run {ATTEMPTS} attempts")
        time.sleep(POLL_SECONDS)
    row = connection.execute("SELECT max(attempt) FROM dataflow.attempt").fetchone()
    return int(row[0]) if row else 0


def _registered(connection: psycopg.Connection, daemon: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while connection.execute(
        "SELECT count(*) FROM dataflow.daemon WHERE daemon = %s", [daemon]
    ).fetchone() == (0,):
        if time.monotonic() > deadline:
            raise TimeoutError(f"daemon {daemon} does not start")
        time.sleep(POLL_SECONDS)
