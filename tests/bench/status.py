"""The time of an operator's summary over all chunks: just after a registration, while runs end, and with folded counters."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from tests.bench import pipeline
from tests.bench.report import Result, at_most, say, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.bench.server import Place

BENCH = "status"
CHUNKS = (1_000, 100_000, 1_000_000)
CALLS = 20
BATCH = 1
CYCLES = 500
CYCLE_SECONDS = 60
MAX_MILLISECONDS = 50

STATUS = "SELECT * FROM dataflow.status()"
FOLD = "SELECT dataflow.fold_counters()"


def run(place: Place) -> Iterator[Result]:
    chunks = place.sizes(*CHUNKS)[-1]
    with place.database("status") as dsn, pipeline.line(dsn) as line:
        pipeline.register(line.connection, "raw", 0, chunks)
        yield _result(line.connection, f"{chunks} chunks, just registered")
        line.cycles(BATCH, CYCLES, CYCLE_SECONDS)
        yield _result(line.connection, f"{chunks} chunks, {CYCLES} claims and finishes not folded")
        line.connection.execute(FOLD)
        yield _result(line.connection, f"{chunks} chunks, folded")
    say("status: done")


def _result(connection: psycopg.Connection, case: str) -> Result:
    milliseconds = []
    for _ in range(CALLS):
        started = time.perf_counter()
        connection.execute(STATUS).fetchall()
        milliseconds.append((time.perf_counter() - started) * 1000)
    median = statistics.median(milliseconds)
    return Result(BENCH, case, "milliseconds", median, "ms", at_most(MAX_MILLISECONDS), spread(milliseconds))
