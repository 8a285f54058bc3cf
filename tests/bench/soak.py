"""A million runs through two daemons with the noop engine: what grows over time, and what a forgotten transaction costs.

A producer keeps some thousand runs waiting, so that rows enter and leave the queue all the time. The runs are cut into parts;
after each part the sizes of the daemons, of their sessions in the server and of the tables are measured. Before and after,
the latency of single chunks on idle daemons is measured. Then the same is done in a fresh database, while a transaction is
open from the first run to the last: no dead row can be removed meanwhile. After its end one more part is measured.

The CPU time of the daemons and their sessions for each run is reported beside the runs a second: on a machine with other
load it says more. At the end each table is compared with a freshly written copy of itself, to see how much larger it is.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from tests.bench import noop_daemon, pipeline
from tests.bench.report import Result, at_least, at_most, say, short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.server import Place

BENCH = "soak"
SIZES = (20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
PARTS = 20
JOBS = 2  # runs of each chunk
DAEMONS = ("one", "two")
WAITING = 6000
PORTION = 2000
POLL_SECONDS = 0.1
STALL_SECONDS = 120.0
SAMPLES = 200
SAMPLE_SECONDS = 60.0
VACUUM_SECONDS = 60.0
MEBIBYTE = 1024 * 1024

QUEUES = ("work", "counter", "recheck", "daemon")  # they have few live rows, however many rows went through
MOST_RSS_GROWTH = 1.05
MOST_QUEUE_GROWTH = 1.5
MOST_BLOAT = 1.5
MOST_LATENCY_GROWTH = 1.5
LEAST_RATE_AT_END = 0.8
LEAST_HELD = 0.5
LEAST_RECOVERED = 0.8

DONE = """
    SELECT coalesce(sum(chunks) FILTER (WHERE locktype = 'OUT' AND status = 'READY' AND jobid <> ''), 0)::bigint,
        coalesce(sum(chunks) FILTER (WHERE locktype = 'WORK'), 0)::bigint
    FROM dataflow.counter
"""
TABLES = """
    SELECT c.relname::text, pg_total_relation_size(c.oid) FROM pg_class c
    WHERE c.relnamespace = 'dataflow'::regnamespace AND c.relkind = 'r'
"""
DEAD = "SELECT relname::text, n_live_tup, n_dead_tup, autovacuum_count FROM pg_stat_user_tables WHERE schemaname = 'dataflow'"
SESSIONS = "SELECT session_pid FROM dataflow.daemon WHERE daemon = ANY (%s) ORDER BY daemon"
STARTED = """
    SELECT extract(epoch FROM started)::double precision FROM dataflow.attempt WHERE jobid = 'first' AND dataid = %s
"""


class Part(NamedTuple):
    """The measurements after a part of the runs."""

    rate: float
    cpu: float  # microseconds a run
    daemons: list[float]
    sessions: list[float]
    tables: dict[str, int]


@dataclass
class Soak:
    connection: psycopg.Connection
    processes: list[int]
    registered: int = 0
    parts: list[Part] = field(default_factory=list)

    def part(self, runs: int) -> None:
        """Measures so many runs, and keeps the queue filled."""
        (before, _), began, moved = self._counted(), time.perf_counter(), time.perf_counter()
        done, last, spent = 0, 0, self._cpu()
        while done < runs:
            done, waiting = self._counted()
            done -= before
            if waiting < WAITING:
                pipeline.register(self.connection, "raw", self.registered, self.registered + PORTION)
                self.registered += PORTION
            else:
                time.sleep(POLL_SECONDS)
            if done > last:
                last, moved = done, time.perf_counter()
            elif time.perf_counter() - moved > STALL_SECONDS:
                raise TimeoutError(
                    f"nothing has ended for {STALL_SECONDS:.0f} s, after {done} runs of a part"
                )
        rate = done / (time.perf_counter() - began)
        cpu = (self._cpu() - spent) / done * 1e6
        self.parts.append(Part(rate, cpu, self._daemons(), self._sessions(), self._tables()))

    def drain(self) -> None:
        deadline = time.monotonic() + STALL_SECONDS
        while self._counted() != (self.registered * JOBS, 0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the queue does not become empty: {self._counted()}")
            time.sleep(POLL_SECONDS)

    def latency(self) -> list[float]:
        """Milliseconds from the commit that makes a chunk READY to the start of the job, on idle daemons."""
        found = []
        for _ in range(SAMPLES):
            with self.connection.transaction():
                pipeline.register(self.connection, "raw", self.registered, self.registered + 1)
                committed = time.time()
            self.registered += 1
            deadline = time.monotonic() + SAMPLE_SECONDS
            while self._counted() != (self.registered * JOBS, 0):
                if time.monotonic() > deadline:
                    raise TimeoutError("a single chunk is not processed")
                time.sleep(POLL_SECONDS / 10)
            dataid = self.connection.execute(
                "SELECT (date '0001-01-01' + %s)::text", [self.registered - 1]
            ).fetchone()
            row = self.connection.execute(STARTED, dataid).fetchone()
            if row is not None:
                found.append((row[0] - committed) * 1000)
        return found

    def _counted(self) -> tuple[int, int]:
        return self.connection.execute(DONE).fetchone() or (0, 0)

    def _cpu(self) -> float:
        return sum(noop_daemon.cost(pid)[0] for pid in [*self.processes, *self._pids()])

    def _daemons(self) -> list[float]:
        return [_memory(pid, "VmRSS") for pid in self.processes]

    def _sessions(self) -> list[float]:
        """The memory of the sessions without shared buffers, which a session maps page by page."""
        return [_memory(pid, "RssAnon") for pid in self._pids()]

    def _pids(self) -> list[int]:
        """The server's processes of the claiming sessions, after both daemons have registered."""
        deadline = time.monotonic() + STALL_SECONDS
        while len(found := self.connection.execute(SESSIONS, [list(DAEMONS)]).fetchall()) < len(DAEMONS):
            if time.monotonic() > deadline:
                raise TimeoutError("the daemons do not start")
            time.sleep(POLL_SECONDS)
        return [pid for (pid,) in found]

    def _tables(self) -> dict[str, int]:
        return dict(self.connection.execute(TABLES).fetchall())


def run(place: Place) -> Iterator[Result]:
    size = place.sizes(*SIZES)[-1]
    yield from _free(place, size)
    yield from _held(place, size)


def _free(place: Place, size: int) -> Iterator[Result]:
    case = f"{short(size)} runs"
    with _soak(place) as soak:
        soak.part(size // PARTS)
        soak.drain()
        early = soak.latency()
        soak.parts.clear()
        for number in range(PARTS):
            soak.part(size // PARTS)
            _tell(soak, f"{case}: part {number + 1} of {PARTS}")
        soak.drain()
        late = soak.latency()
        parts, quarter = soak.parts, PARTS // 4
        rates = [part.rate for part in parts]
        yield Result(
            BENCH, case, "runs_per_s", statistics.median(rates), "runs/s", None, {"parts": _short(rates)}
        )
        ends = statistics.median(rates[-quarter:]) / statistics.median(rates[:quarter])
        yield Result(BENCH, case, "rate_end_vs_start", ends, "ratio", at_least(LEAST_RATE_AT_END))
        costs = [part.cpu for part in parts]
        yield Result(
            BENCH, case, "cpu_us_per_run", statistics.median(costs), "us", None, {"parts": _short(costs)}
        )
        ends = statistics.median(costs[-quarter:]) / statistics.median(costs[:quarter])
        yield Result(BENCH, case, "cpu_end_vs_start", ends, "ratio", at_most(1 / LEAST_RATE_AT_END))
        yield from _memories(case, parts)
        yield Result(BENCH, case, "latency_start", statistics.median(early), "ms", None, {"p99": _p99(early)})
        yield Result(BENCH, case, "latency_end", statistics.median(late), "ms", None, {"p99": _p99(late)})
        growth = statistics.median(late) / statistics.median(early)
        yield Result(BENCH, case, "latency_growth", growth, "ratio", at_most(MOST_LATENCY_GROWTH))
        yield from _bloat(case, soak)


def _held(place: Place, size: int) -> Iterator[Result]:
    """Measures with an open transaction, and one part before it begins and one after its end."""
    case = f"{short(size)} runs, held xmin"
    with _soak(place) as soak:
        for _ in range(2):
            soak.part(size // PARTS)
        before, cpu_before = soak.parts[-1].rate, soak.parts[-1].cpu
        with _holder(soak.connection.info.dsn) as holder:
            for number in range(PARTS):
                soak.part(size // PARTS)
                _tell(soak, f"{case}: part {number + 1} of {PARTS}")
            holder.rollback()
        rates = [part.rate for part in soak.parts[2:]]
        costs = [part.cpu for part in soak.parts[2:]]
        held = len(rates) / sum(1 / rate for rate in rates)
        _until_vacuumed(soak.connection)
        soak.parts.clear()
        for _ in range(2):
            soak.part(size // PARTS)
            _tell(soak, f"{case}: after it")
        after = soak.parts[-1].rate
        yield Result(
            BENCH,
            case,
            "runs_per_s",
            held,
            "runs/s",
            None,
            {"before": round(before), "after": round(after), "parts": _short(rates)},
        )
        yield Result(BENCH, case, "held_vs_before", held / before, "ratio", at_least(LEAST_HELD))
        last = statistics.median(rates[-PARTS // 4 :])
        yield Result(BENCH, case, "last_quarter_vs_before", last / before, "ratio", at_least(LEAST_HELD))
        yield Result(BENCH, case, "after_vs_before", after / before, "ratio", at_least(LEAST_RECOVERED))
        most, last = statistics.mean(costs), statistics.median(costs[-PARTS // 4 :])
        details = {"before": round(cpu_before), "parts": _short(costs)}
        yield Result(
            BENCH, case, "cpu_held_vs_before", most / cpu_before, "ratio", at_most(1 / LEAST_HELD), details
        )
        yield Result(
            BENCH, case, "cpu_last_quarter_vs_before", last / cpu_before, "ratio", at_most(1 / LEAST_HELD)
        )
        recovered = soak.parts[-1].cpu / cpu_before
        yield Result(BENCH, case, "cpu_after_vs_before", recovered, "ratio", at_most(1 / LEAST_RECOVERED))
        soak.drain()


@contextmanager
def _soak(place: Place) -> Iterator[Soak]:
    with ExitStack() as stack:
        dsn = stack.enter_context(place.database("soak"))
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        processes = [stack.enter_context(noop_daemon.running(dsn, name)) for name in DAEMONS]
        yield Soak(connection, [process.pid for process in processes])


@contextmanager
def _holder(dsn: str) -> Iterator[psycopg.Connection]:
    """A forgotten transaction with a snapshot and a transaction id."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT pg_current_xact_id(), count(*) FROM dataflow.job")
        yield connection


def _until_vacuumed(connection: psycopg.Connection) -> None:
    """Waits until autovacuum has run, which it does within its naptime."""
    dead, deadline = "SELECT n_dead_tup < 10000 FROM pg_stat_user_tables WHERE schemaname = 'dataflow' AND relname = 'work'", time.monotonic() + VACUUM_SECONDS  # fmt: skip
    while connection.execute(dead).fetchone() != (True,) and time.monotonic() < deadline:
        time.sleep(1)


def _memories(case: str, parts: list[Part]) -> Iterator[Result]:
    half = len(parts) // 2
    for kind, goal in (("daemons", at_most(MOST_RSS_GROWTH)), ("sessions", None)):
        for index, name in enumerate(DAEMONS):
            sizes = [getattr(part, kind)[index] for part in parts]
            metric = f"rss_growth_{kind[:-1]}_{name}"
            details = {"MiB": _short(sizes)}
            yield Result(BENCH, case, metric, sizes[-1] / sizes[half - 1], "ratio", goal, details)


def _bloat(case: str, soak: Soak) -> Iterator[Result]:
    half = len(soak.parts) // 2
    for name in QUEUES:
        sizes = [part.tables[name] for part in soak.parts]
        growth = max(sizes[half:]) / max(*sizes[:half], 1)
        details = {"most_KiB": max(sizes) // 1024}
        yield Result(
            BENCH,
            case,
            f"size_{name}_last_half_vs_first",
            growth,
            "ratio",
            at_most(MOST_QUEUE_GROWTH),
            details,
        )
    before = soak._tables()
    large = [name for name, bytes_ in before.items() if bytes_ > MEBIBYTE and name not in QUEUES]
    for name in sorted(large):
        soak.connection.execute(sql.SQL("VACUUM FULL dataflow.{}").format(sql.Identifier(name)))
        needed = soak._tables()[name]
        details = {"MiB": round(before[name] / MEBIBYTE), "needed_MiB": round(needed / MEBIBYTE)}
        yield Result(
            BENCH, case, f"bloat_{name}", before[name] / needed, "ratio", at_most(MOST_BLOAT), details
        )


def _tell(soak: Soak, words: str) -> None:
    part = soak.parts[-1]
    queues = ", ".join(f"{name} {part.tables[name] // 1024} KiB" for name in QUEUES)
    say(
        f"soak: {words}: {part.rate:.0f} runs/s, {part.cpu:.0f} us CPU a run, RSS {_short(part.daemons)}, sessions {_short(part.sessions)} MiB, {queues}"
    )


def _memory(pid: int, kind: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition(f"{kind}:")[2].split()[0]) / 1024


def _p99(values: list[float]) -> float:
    return round(statistics.quantiles(values, n=100, method="inclusive")[98], 1)


def _short(values: list[float]) -> list[float]:
    return [round(value, 1 if value < 1000 else None) for value in values]
