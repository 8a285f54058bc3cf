"""The latency from the commit that makes a chunk READY to the start of the job's code, on an idle daemon.

The clock starts before COMMIT is sent on another connection, and stops in the daemon, when the body begins. Both processes
are on this host and have one clock. The same is measured from a commit that raises the limit for which the run waited.
Compared with: a bare NOTIFY from one connection to another, and a job of each peer until its body begins.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import procrastinate
import psycopg

from tests.bench import noop_daemon, peers
from tests.bench.report import Result, at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.bench.server import Place

BENCH = "latency"
SAMPLES = 200
WARM_UP = 20
MOST_GAP_SECONDS = 0.05
JOB_SECONDS = 30
PEER_SECONDS = 120
POLL_SECONDS = 0.01
MOST_P50_MS = 10
MOST_P99_MS = 50
MOST_RAISED_MS = 100
SETTLED_SECONDS = 0.03
READY = "SELECT dataflow.ready('raw', %s::text)"
SET_LIMIT = "SELECT dataflow.set_concurrency('global', %s)"
IS_DONE = "SELECT count(*) FROM dataflow.attempt WHERE dataid = %s AND jobid = 'second' AND ended IS NOT NULL"
STARTED = """
    SELECT extract(epoch FROM started)::double precision FROM dataflow.attempt WHERE jobid = 'first' AND dataid = %s
"""


def run(place: Place) -> Iterator[Result]:
    ours, raised, notify = _ours(place), _raised_limit(place), _notify(place)
    p50, p99 = _percentile(ours, 50), _percentile(ours, 99)
    yield Result(BENCH, "idle daemon", "p50_ms", p50, "ms", at_most(MOST_P50_MS))
    yield Result(BENCH, "idle daemon", "p99_ms", p99, "ms", at_most(MOST_P99_MS))
    yield Result(BENCH, "raised_limit", "p50_ms", _percentile(raised, 50), "ms")
    yield Result(BENCH, "raised_limit", "p99_ms", _percentile(raised, 99), "ms", at_most(MOST_RAISED_MS))
    yield Result(BENCH, "bare NOTIFY", "p50_ms", _percentile(notify, 50), "ms")
    yield Result(BENCH, "p50", "vs_notify", p50 / _percentile(notify, 50), "ratio")
    for name, measure in (("pgqueuer", _pgqueuer), ("procrastinate", _procrastinate)):
        with place.database(name, template="template1") as dsn:
            peers.PEERS[name][0].install(dsn)
            found = asyncio.run(asyncio.wait_for(measure(dsn), PEER_SECONDS))
        yield Result(
            BENCH, name, "p50_ms", _percentile(found, 50), "ms", None, {"p99_ms": _percentile(found, 99)}
        )
        yield Result(BENCH, "p50", f"vs_{name}", p50 / _percentile(found, 50), "ratio")


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] * 1000


def _gap() -> float:
    return random.uniform(0, MOST_GAP_SECONDS)  # noqa: S311 - no secret


def _ours(place: Place) -> list[float]:
    def ready(connection: psycopg.Connection, dataid: str) -> float:
        with connection.transaction():
            connection.execute(READY, [dataid])
            return time.time()

    return _measured(place, ready)


def _raised_limit(place: Place) -> list[float]:
    def raise_limit(connection: psycopg.Connection, dataid: str) -> float:
        connection.execute(SET_LIMIT, [0])
        connection.execute(READY, [dataid])
        time.sleep(SETTLED_SECONDS)
        with connection.transaction():
            connection.execute(SET_LIMIT, [1])
            return time.time()

    return _measured(place, raise_limit)


def _measured(place: Place, act: Callable[[psycopg.Connection, str], float]) -> list[float]:
    """Seconds from each commit to the start of the run that it makes possible."""
    found = []
    with ExitStack() as stack:
        dsn = stack.enter_context(place.database("latency"))
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        stack.enter_context(noop_daemon.running(dsn))
        for number in range(SAMPLES + WARM_UP):
            dataid = str(number)
            committed = act(connection, dataid)
            while connection.execute(IS_DONE, [dataid]).fetchone() == (0,):
                time.sleep(POLL_SECONDS)
            row = connection.execute(STARTED, [dataid]).fetchone()
            if row is not None and number >= WARM_UP:
                found.append(row[0] - committed)
            time.sleep(_gap())
    return found


def _notify(place: Place) -> list[float]:
    found = []
    with place.database("bare") as dsn, ExitStack() as stack:
        hearing = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        saying = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        hearing.execute("LISTEN bench")
        for _ in range(SAMPLES):
            began = time.perf_counter()
            saying.execute("NOTIFY bench")
            next(hearing.notifies(stop_after=1))
            found.append(time.perf_counter() - began)
    return found


async def _pgqueuer(dsn: str) -> list[float]:
    started: asyncio.Queue[float] = asyncio.Queue()

    async def body(job: object) -> None:  # noqa: ARG001 - pgqueuer passes it
        started.put_nowait(time.perf_counter())

    peer = peers.Pgqueuer("asyncpg", 64)
    async with peer._worker(dsn) as worker, peer._worker(dsn) as asking:
        worker.entrypoint("noop")(body)
        running = asyncio.create_task(worker.run())
        try:
            return [await _one(asking.queries.enqueue("noop", None, 0), started) for _ in range(SAMPLES)]
        finally:
            worker.shutdown.set()
            await asyncio.wait([running], timeout=JOB_SECONDS)
            running.cancel()


async def _procrastinate(dsn: str) -> list[float]:
    started: asyncio.Queue[float] = asyncio.Queue()

    async def body() -> None:
        started.put_nowait(time.perf_counter())

    async with procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn)).open_async() as app:
        task = app.task(name="noop")(body)
        running = asyncio.create_task(app.run_worker_async(install_signal_handlers=False))
        try:
            return [await _one(task.defer_async(), started) for _ in range(SAMPLES)]
        finally:
            running.cancel()
            await asyncio.wait([running], timeout=JOB_SECONDS)


async def _one(asked: object, started: asyncio.Queue[float]) -> float:
    began = time.perf_counter()
    await asked  # type: ignore[misc]
    seconds = await asyncio.wait_for(started.get(), JOB_SECONDS) - began
    await asyncio.sleep(_gap())
    return seconds
