"""Compares a job that reads a table in batches, with two runners side by side, with one Spark job written by hand.

Both are warm and have two cores; they take turns, round by round. The batches exist before the clock starts, on hold; the
clock stops when the last one is published. `--largest 100000` is the quick form: fewer rows, batches and rounds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psycopg
from psycopg.types.json import Jsonb

from dataflowd import flow
from dataflowd.host.embedded import java
from dataflowd.host.settings import Settings
from dataflowd.storage.partition import plan
from dataflowd.storage.partition.plan import Split
from dataflowd.storage.partition.table import TableSource
from dataflowd.storage.tables import catalog
from dataflowd.storage.tables.place import table_of
from tests.bench.report import Result, ratio, say, short, spread
from tests.fix_daemon import daemons, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataflowd.model.work_order import Dataset
    from tests.bench.server import Place

BENCH = "partition"
FLOW = Path(__file__).parent / "batch_flow"
PARALLEL = 2
WARM_UP = 8
QUICK_ROWS = 100_000
PATIENCE_SECONDS = 3600.0

CREATE = (
    "SELECT dataflow.create_partitioning('bench_customers', %s, ARRAY['id'], 'count', %s, %s, held => true)"
)
RELEASE = "SELECT * FROM dataflow.release_chunks(%s)"
IS_READY = """
    SELECT count(*) FILTER (WHERE status = 'READY'), count(*) FILTER (WHERE status = 'FAILED'), min(reason), sum(m.rows)
    FROM dataflow.datastatus s LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    WHERE s.datasetid = 'bench_loaded' AND s.locktype = 'OUT' AND starts_with(s.dataid, %s)
"""


@dataclass(frozen=True)
class Extent:
    batches: int
    rounds: int


FULL = Extent(batches=100, rounds=3)
QUICK = Extent(batches=20, rounds=1)


@dataclass
class Site:
    """The table that both sides read."""

    dataset: Dataset
    rows: int
    dsn: str
    connection: psycopg.Connection
    directory: Path
    java: dict[str, str]

    @property
    def host(self) -> str:
        return str(self.dataset.connection.hostname)

    def split(self, name: str, batches: int) -> None:
        split = Split(name, ("id",), "count", batches)
        with catalog.connection(table_of(self.dataset, [self.host])) as opened:
            made = plan.batches(TableSource(opened, self.dataset, split.columns, [self.host]), split)
        self.connection.execute(CREATE, [name, batches, Jsonb(made)])

    def through(self, name: str, batches: int) -> float:
        """Seconds from the release of batches until all of them are published."""

        def is_over() -> bool:
            row = self.connection.execute(IS_READY, [f"{name}."]).fetchone()
            ready, failed, reason, rows = row or (0, 0, "", 0)
            if failed:
                raise RuntimeError(f"{failed} batches failed: {reason}")
            if ready == batches and rows != self.rows:
                raise RuntimeError(f"{rows} of {self.rows} rows are published")
            return bool(ready == batches)

        self.split(name, batches)
        began = time.perf_counter()
        self.connection.execute(RELEASE, [Jsonb({"dataset": "bench_customers", "dataid": f"{name}.*"})])
        eventually(is_over, seconds=PATIENCE_SECONDS)
        return time.perf_counter() - began

    @contextmanager
    def daemon(self) -> Iterator[None]:
        env = {
            "DATAFLOW_DATA_DIR": str(self.directory),
            "DATAFLOW_ALLOWED_HOSTS": self.host,
            "DATAFLOW_MASTER": "local[1]",
            "DATAFLOW_RUNNERS": str(PARALLEL),
            "DATAFLOW_REUSE": "100000",
            "DATAFLOW_LOG_LEVEL": "info",
        }
        with daemons(self.dsn, self.directory / "flow.toml", self.directory) as start:
            daemon = start(engine="spark", env=env)
            yield
            daemon.stop()

    @contextmanager
    def one_job(self) -> Iterator[Callable[[], float]]:
        whole = asdict(self.dataset) | {
            "options": {"partitions": str(PARALLEL), "partition_column": "id"},
            "custom_checks": [],
        }
        log = self.directory / "one_job.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.bench.bare_table"),
                    *(str(self.directory), str(PARALLEL), json.dumps(whole)),
                ],
                env=os.environ | self.java | {"PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

        def answer() -> float:
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                raise RuntimeError(f"the job by hand has failed:\n{log.read_text(encoding='utf-8')[-2000:]}")
            return float(json.loads(line)["seconds"])

        def once() -> float:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return answer()

        try:
            answer()
            yield once
        finally:
            process.communicate()


def run(place: Place, dataset: Dataset, rows: int) -> Iterator[Result]:
    extent = QUICK if rows <= QUICK_ROWS else FULL
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="bench-batches-")))
        dsn = stack.enter_context(place.database("batches_control"))
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        settings = Settings(data_dir=directory, allowed_hosts=[str(dataset.connection.hostname)])
        _declare(connection, settings, dataset, directory)
        found = java.environment(java.find(settings))
        yield from _measured(Site(dataset, rows, dsn, connection, directory, found), extent)


def _declare(connection: psycopg.Connection, settings: Settings, dataset: Dataset, directory: Path) -> None:
    text = (FLOW / "flow.toml").read_text(encoding="utf-8")
    for name, value in asdict(dataset.connection).items():
        text = text.replace(f"<{name}>", str(value))
    (directory / "flow.toml").write_text(text, encoding="utf-8")
    for name in ("jobs.py", "etl.py"):
        shutil.copy(FLOW / name, directory)
    flow.apply(connection, flow.load(directory / "flow.toml", settings), prune=False)
    # A limit above the number of slots: the next runs are already claimed and wait in the daemon.
    connection.execute("SELECT dataflow.set_concurrency('global', %s)", [2 * PARALLEL])


def _measured(site: Site, extent: Extent) -> Iterator[Result]:
    ours, one = [], []
    with site.one_job() as one_job, site.daemon():
        one_job()
        site.through("warm_up", WARM_UP)
        for number in range(1, extent.rounds + 1):
            one.append(one_job())
            ours.append(site.through(f"round_{number}", extent.batches))
            say(
                f"partition: batches: round {number} of {extent.rounds}: one job {one[-1]:.1f} s, {extent.batches} batches {ours[-1]:.1f} s"
            )
    case = f"{short(site.rows)} rows in {extent.batches} batches, {PARALLEL} runners"
    yield ratio((BENCH, case, "batches_vs_one_job"), ours, one)
    yield Result(BENCH, case, "batches_s", statistics.median(ours), "s", None, spread(ours))
    yield Result(BENCH, case, "one_job_s", statistics.median(one), "s", None, spread(one))
