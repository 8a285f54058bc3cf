"""The weekend: resubmits ten thousand failed runs among a million good ones, by UPDATE and by function.

Between two rounds the runs are claimed and fail again.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from tests.bench import pipeline
from tests.bench.report import Result, at_most, say, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.pipeline import Line
    from tests.bench.server import Place

BENCH = "resubmit"
CHUNKS = (20_000, 100_000, 1_000_000)
FAILED = 10_000
BATCH = 500
FAIL_SECONDS = 120
ROUNDS = 3
MAX_SECONDS = 2.0

WAYS = {
    "update": "UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE datasetid = 'a' AND status = 'FAILED'",
    "function": """SELECT * FROM dataflow.resubmit('{"job": "first", "status": "FAILED"}')""",
    "function, downstream": """SELECT * FROM dataflow.resubmit('{"job": "first", "status": "FAILED"}', downstream => true)""",
}


def run(place: Place) -> Iterator[Result]:
    chunks = place.sizes(*CHUNKS)[-1]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with place.database("resubmit") as dsn, pipeline.line(dsn) as line:
        line.connection.execute("SELECT dataflow.pause('job:second')")
        pipeline.register(line.connection, "raw", 0, chunks)
        pipeline.register(line.connection, "a", FAILED, chunks)
        pipeline.settle_down(line.connection)
        for number in range(ROUNDS):
            for way, statement in WAYS.items():
                line.cycles(BATCH, FAILED, FAIL_SECONDS, outcome="FAILED")
                seconds[way].append(_resubmit(line, statement))
            say(f"resubmit: round {number + 1} of {ROUNDS}")
    for way, taken in seconds.items():
        case, goal = f"{FAILED} of {chunks}, {way}", at_most(MAX_SECONDS)
        yield Result(BENCH, case, "seconds", statistics.median(taken), "s", goal, spread(taken))


def _resubmit(line: Line, statement: str) -> float:
    started = time.perf_counter()
    changed = line.connection.execute(statement).rowcount
    taken = time.perf_counter() - started
    if changed != FAILED:
        raise RuntimeError(f"{changed} runs were resubmitted instead of {FAILED}")
    return taken
