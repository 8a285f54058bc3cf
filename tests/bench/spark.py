"""Small chunks through a two-job pipeline, and one large chunk: with dataflowd, compared with Spark alone.

The loop without dataflowd is one warm session with as many threads as the daemon's runner has slots; it calls the same
functions. Both run all the time and take turns, round by round, so that other load affects both. A plain `spark-submit` of the
first step takes turns with an attempt with `reuse = 1` that does the same. The daemon has its archive of classes from the
start; usually it makes the archive in its first quiet minute. `--largest 20` is the quick form: fewer chunks, fewer rounds,
and a smaller large chunk.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import psycopg
import pyspark

from dataflowd import flow
from dataflowd.engine import class_archive
from dataflowd.host import supervise
from dataflowd.host.embedded import java
from dataflowd.host.settings import Settings
from tests.bench import bare_spark
from tests.bench.report import Result, at_least, at_most, ratio, say, spread
from tests.fix_daemon import daemons, eventually

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from tests.bench.server import Place
    from tests.fix_daemon import Daemon

BENCH = "spark"
FLOW = Path(__file__).parent / "spark_flow" / "flow.toml"
PARALLEL = 2  # threads of the loop, slots of the runner
ROWS = 1000
PATIENCE_SECONDS = 1800.0
COUNTRIES = ("DE", "FR", "IT", "NL", "PL")
MIB = 1024 * 1024
MOST_VS_LOOP = 1.15
LEAST_VS_SUBMIT = 20
MOST_REUSE1_VS_SUBMIT = 1.1
MOST_LARGE_VS_PLAIN = 1.1

IS_READY = """
    SELECT count(*) FILTER (WHERE status = 'READY'), count(*) FILTER (WHERE status = 'FAILED'), min(reason)
    FROM dataflow.datastatus WHERE datasetid = %s AND locktype = 'OUT' AND dataid = ANY (%s)
"""
HEAP = """
    SELECT n.items FROM dataflow.node_stat n JOIN dataflow.attempt a USING (attempt)
    WHERE a.jobid = 'bench_heap' AND a.dataid = %s AND n.node = 'heap'
"""


@dataclass(frozen=True)
class Extent:
    """The numbers of chunks, rows and rounds of a bench."""

    chunks: int
    rounds: int
    warm_up: int
    heap_after: int
    submits: int
    large_rows: int
    large_rounds: int


FULL = Extent(
    chunks=200, rounds=4, warm_up=200, heap_after=500, submits=10, large_rows=5_000_000, large_rounds=3
)
QUICK = Extent(chunks=20, rounds=2, warm_up=10, heap_after=50, submits=2, large_rows=500_000, large_rounds=2)


@dataclass
class Bare:
    """The loop without dataflowd, in a process of its own."""

    process: subprocess.Popen[str]

    def ask(self, **request: Any) -> float:
        """Sends a request, and returns the seconds that the loop reports."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if request:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline())["seconds"])


@dataclass
class Site:
    """The chunks that both sides read."""

    extent: Extent
    dsn: str
    connection: psycopg.Connection
    directory: Path
    java: dict[str, str]
    made: int = 0

    @property
    def root(self) -> Path:
        return self.directory / "data"

    def chunks(self, count: int) -> list[str]:
        """Writes new chunks to the disk without registering them."""
        (self.root / "raw").mkdir(parents=True, exist_ok=True)
        dataids = [f"c{number:05}" for number in range(self.made, self.made + count)]
        self.made += count
        for number, dataid in enumerate(dataids):
            lines = (
                f"{row},customer{row % 50},{COUNTRIES[row % 5]},{row + number}.50,2026-01-01T08:00:00\n"
                for row in range(ROWS)
            )
            (self.root / "raw" / f"{dataid}.csv").write_text("".join(lines), encoding="ascii")
        return dataids

    def through(self, source: str, target: str, dataids: Sequence[str]) -> float:
        """Seconds from the registration of one dataset's chunks until another dataset's chunks are published."""

        def is_over() -> bool:
            row = self.connection.execute(IS_READY, [target, list(dataids)]).fetchone()
            ready, failed, reason = row or (0, 0, "")
            if failed:
                raise RuntimeError(f"{failed} chunks of {target} failed: {reason}")
            return bool(ready == len(dataids))

        began = time.perf_counter()
        self.connection.execute("SELECT dataflow.ready(%s, %s::text[])", [source, list(dataids)])
        eventually(is_over, seconds=PATIENCE_SECONDS)
        return time.perf_counter() - began

    @contextmanager
    def daemon(self) -> Iterator[Daemon]:
        env = {
            "DATAFLOW_DATA_DIR": str(self.directory),
            "DATAFLOW_MASTER": f"local[{PARALLEL}]",
            "DATAFLOW_RUNNERS": "1",
            "DATAFLOW_SLOTS": str(PARALLEL),
            "DATAFLOW_REUSE": "100000",
            "DATAFLOW_LOG_LEVEL": "info",
        }
        with daemons(self.dsn, FLOW, self.directory) as start:
            daemon = start(engine="spark", env=env)
            yield daemon
            daemon.stop()

    @contextmanager
    def bare(self) -> Iterator[Bare]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.bare_spark", str(self.root), str(PARALLEL)],
            env=os.environ | self.java,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            loop = Bare(process)
            loop.ask()
            yield loop
        finally:
            process.communicate()


def run(place: Place) -> Iterator[Result]:
    extent = FULL if place.sizes(QUICK.chunks, FULL.chunks)[-1] == FULL.chunks else QUICK
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="bench-spark-")))
        dsn = stack.enter_context(place.database("spark"))
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        settings = Settings(data_dir=directory)
        flow.apply(connection, flow.load(FLOW, settings), prune=False)
        # A limit above the number of slots: the next runs are already claimed and wait in the daemon.
        connection.execute("SELECT dataflow.set_concurrency('global', %s)", [2 * PARALLEL])
        found = java.find(settings)
        anyio.run(class_archive.make, settings, found)
        site = Site(extent, dsn, connection, directory, java.environment(found))
        warm = yield from _warm(site)
        yield from _submits(site, warm)


def _warm(site: Site) -> Generator[Result, None, float]:
    """Warms both sides up, and returns the seconds of one chunk."""
    extent = site.extent
    with site.bare() as bare, site.daemon() as daemon:
        bare.ask(chunks=site.chunks(extent.warm_up))
        site.through("bench_raw", "bench_totals", site.chunks(extent.warm_up))
        early = _heap(site, "early")
        ours, limit, size = [], [], extent.chunks // extent.rounds
        for number in range(extent.rounds):
            limit.append(bare.ask(chunks=site.chunks(size)) / size)
            ours.append(site.through("bench_raw", "bench_totals", site.chunks(size)) / size)
            say(
                f"spark: round {number + 1} of {extent.rounds}: loop {limit[-1]:.3f} s, dataflowd {ours[-1]:.3f} s"
            )
        case = f"{extent.chunks} chunks of {ROWS} rows, {PARALLEL} side by side"
        yield ratio((BENCH, case, "warm_vs_bare_loop"), ours, limit, at_most(MOST_VS_LOOP))
        warm = statistics.median(ours)
        yield Result(BENCH, case, "warm_chunk_s", warm, "s", None, spread(ours))
        yield Result(BENCH, case, "bare_loop_chunk_s", statistics.median(limit), "s", None, spread(limit))
        yield from _large(site, bare)
        yield from _runner(site, daemon, early)
    return warm


def _large(site: Site, bare: Bare) -> Iterator[Result]:
    bare.ask(make=site.extent.large_rows)
    ours, plain = [], []
    for number in range(site.extent.large_rounds + 1):
        link = site.root / "large_raw" / f"l{number}"
        link.symlink_to("input")
        plain.append(bare.ask(large=f"l{number}"))
        ours.append(site.through("bench_large_raw", "bench_large", [f"l{number}"]))
        say(f"spark: large chunk: plain {plain[-1]:.2f} s, dataflowd {ours[-1]:.2f} s")
    case = f"{site.extent.large_rows} rows, all checks"
    # The first round of each side has compiled the code.
    yield ratio((BENCH, case, "large_chunk_vs_plain"), ours[1:], plain[1:], at_most(MOST_LARGE_VS_PLAIN))


def _runner(site: Site, daemon: Daemon, early: float) -> Iterator[Result]:
    extent = site.extent
    left = extent.heap_after - extent.warm_up - extent.chunks
    if left > 0:
        site.through("bench_raw", "bench_totals", site.chunks(left))
    case = "a runner"
    yield Result(BENCH, case, "cold_start_s", daemon.events("runner.ready")[0]["seconds"], "s")
    pid = daemon.events("runner.started")[0]["pid"]
    resident = sum(_resident(one) for one in [pid, *supervise.alive_in_session(pid)])
    yield Result(BENCH, case, "memory", resident / MIB, "MiB")
    details = {"after_chunks": extent.warm_up, "early_mib": round(early / MIB, 1)}
    metric = f"heap_after_{extent.heap_after}_chunks"
    yield Result(BENCH, case, metric, _heap(site, "late") / MIB, "MiB", None, details)


def _heap(site: Site, when: str) -> float:
    site.through("bench_heap_raw", "bench_heap", [when])
    row = site.connection.execute(HEAP, [when]).fetchone()
    return float(row[0]) if row else 0.0


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def _submits(site: Site, warm: float) -> Iterator[Result]:
    """Compares submits of the first step alone: a submit of the whole chunk could only be slower."""
    ours, plain = [], []
    with site.daemon():
        for number, dataid in enumerate(site.chunks(site.extent.submits)):
            plain.append(_submit(site, dataid))
            ours.append(site.through("bench_single_raw", "bench_single", [dataid]))
            say(
                f"spark: submit {number + 1} of {site.extent.submits}: plain {plain[-1]:.1f} s, reuse = 1 {ours[-1]:.1f} s"
            )
    case = f"{site.extent.submits} submits, one after the other"
    yield ratio((BENCH, case, "reuse1_vs_submit"), ours, plain, at_most(MOST_REUSE1_VS_SUBMIT))
    yield Result(BENCH, case, "submit_s", statistics.median(plain), "s", None, spread(plain))
    yield Result(
        BENCH,
        "a chunk",
        "warm_vs_submit",
        statistics.median(plain) / warm,
        "ratio",
        at_least(LEAST_VS_SUBMIT),
    )


def _submit(site: Site, dataid: str) -> float:
    options = bare_spark.SPARK | {"spark.local.dir": f"{site.root}/submit_local"}
    began = time.perf_counter()
    subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", f"local[{PARALLEL}]"),
            *(word for name, value in options.items() for word in ("--conf", f"{name}={value}")),
            str(FLOW.with_name("etl.py")),
            f"{site.root}/raw/{dataid}.csv",
            f"{site.root}/submitted/{dataid}",
        ],
        env=os.environ | site.java | {"PYSPARK_PYTHON": sys.executable},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began
