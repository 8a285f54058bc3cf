"""The peers: two job queues for Python on Postgres, with no-op jobs, as fast as they can.

Each gets a database of its own on the same server, a queue of no-op jobs and one worker process. The clock runs from the
first job's body to the last one's: it does not count the start, the stop, and the storing of the last results. The best
setting depends on the machine, so a few are tried, and the best result is compared with ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import asyncpg
import procrastinate
import psycopg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.types import QueueExecutionMode
from psycopg import conninfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from pgqueuer.qm import QueueManager

T = TypeVar("T")

DRAIN_TIMEOUT_SECONDS = 120


class Peer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def setting(self) -> str: ...

    def install(self, dsn: str) -> None: ...

    def drain(self, dsn: str, jobs: int) -> float:
        """Queues no-op jobs, runs them all, and returns the jobs a second."""
        ...


@dataclass(frozen=True)
class Pgqueuer:
    driver: str
    batch_size: int
    name: str = "pgqueuer"

    @property
    def setting(self) -> str:
        return f"{self.driver} batch_size={self.batch_size}"

    def install(self, dsn: str) -> None:
        _run(self._install(dsn))

    def drain(self, dsn: str, jobs: int) -> float:
        return _run(self._drain(dsn, jobs))

    @contextlib.asynccontextmanager
    async def _worker(self, dsn: str) -> AsyncIterator[QueueManager]:
        if self.driver == "psycopg":
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                yield PgQueuer.from_psycopg_connection(connection).qm
        else:
            address = conninfo.conninfo_to_dict(dsn)
            connection = await asyncpg.connect(
                host=address["host"],
                port=address["port"],
                user=address["user"],
                database=address["dbname"],
            )
            try:
                yield PgQueuer.from_asyncpg_connection(connection).qm
            finally:
                await connection.close()

    async def _install(self, dsn: str) -> None:
        async with self._worker(dsn) as worker:
            await worker.queries.install()
            await worker.queries.optimize_autovacuum()

    async def _drain(self, dsn: str, jobs: int) -> float:
        stopwatch = _Stopwatch()

        async def noop(job: object) -> None:  # noqa: ARG001 - pgqueuer passes it
            stopwatch.tick()

        async with self._worker(dsn) as worker:
            worker.entrypoint("noop")(noop)
            await worker.queries.enqueue(["noop"] * jobs, [None] * jobs, [0] * jobs)
            await worker.run(batch_size=self.batch_size, mode=QueueExecutionMode.drain)
            return stopwatch.ticks_per_s()


@dataclass(frozen=True)
class Procrastinate:
    workers: int
    concurrency: int
    name: str = "procrastinate"

    @property
    def setting(self) -> str:
        return f"workers={self.workers} concurrency={self.concurrency}"

    def install(self, dsn: str) -> None:
        _run(self._install(dsn))

    def drain(self, dsn: str, jobs: int) -> float:
        return _run(self._drain(dsn, jobs))

    @contextlib.asynccontextmanager
    async def _app(self, dsn: str) -> AsyncIterator[procrastinate.App]:
        connections = self.workers * (self.concurrency + 1)
        connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=connections, max_size=connections)
        async with procrastinate.App(connector=connector).open_async() as app:
            yield app

    async def _install(self, dsn: str) -> None:
        async with self._app(dsn) as app:
            await app.schema_manager.apply_schema_async()

    async def _drain(self, dsn: str, jobs: int) -> float:
        stopwatch = _Stopwatch()

        async def noop() -> None:
            stopwatch.tick()

        async with self._app(dsn) as app:
            task = app.task(name="noop")(noop)
            await task.batch_defer_async(*({} for _ in range(jobs)))
            workers = (
                app.run_worker_async(
                    name=f"worker {number}",
                    concurrency=self.concurrency,
                    wait=False,
                    listen_notify=False,
                    install_signal_handlers=False,
                )
                for number in range(self.workers)
            )
            await asyncio.gather(*workers)
            return stopwatch.ticks_per_s()


PEERS: dict[str, tuple[Peer, ...]] = {
    "pgqueuer": (Pgqueuer("asyncpg", 64), Pgqueuer("asyncpg", 256), Pgqueuer("psycopg", 256)),
    "procrastinate": (Procrastinate(1, 8), Procrastinate(4, 4), Procrastinate(8, 2)),
}


class _Stopwatch:
    def __init__(self) -> None:
        self.ticks = 0
        self.first = self.last = 0.0

    def tick(self) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.ticks += 1

    def ticks_per_s(self) -> float:
        return (self.ticks - 1) / (self.last - self.first)


def _run(work: Coroutine[None, None, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())
