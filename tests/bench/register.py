"""Registers external chunks by one call, compared with a bare insert of as many rows into a table of the same columns and key.

The bare insert checks nothing, has no second index, and writes neither the queue nor the history.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import psycopg

from tests.bench import pipeline
from tests.bench.report import Result, at_least, ratio, say, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.server import Place

BENCH = "register"
CHUNKS = (1_000, 100_000, 1_000_000)
ROUNDS = 3
MIN_CHUNKS_PER_S = 30_000

CREATE_BARE = """
    CREATE TABLE bare (LIKE dataflow.datastatus INCLUDING DEFAULTS INCLUDING STORAGE,
        PRIMARY KEY (datasetid, dataid, locktype, jobid, run))
"""
FILL_BARE = "INSERT INTO bare SELECT * FROM dataflow.datastatus"


def run(place: Place) -> Iterator[Result]:
    chunks = place.sizes(*CHUNKS)[-1]
    rates, limits = list[float](), list[float]()
    for number in range(ROUNDS):
        with (
            place.database(f"register_{number}") as dsn,
            psycopg.connect(dsn, autocommit=True) as connection,
        ):
            rates.append(chunks / pipeline.register(connection, "raw", 0, chunks))
            connection.execute(CREATE_BARE)
            started = time.perf_counter()
            connection.execute(FILL_BARE)
            limits.append(chunks / (time.perf_counter() - started))
        say(
            f"register: round {number + 1} of {ROUNDS}: {rates[-1]:.0f} chunks/s, bare {limits[-1]:.0f} rows/s"
        )
    case = f"{chunks} chunks"
    yield Result(
        BENCH,
        case,
        "chunks_per_s",
        statistics.median(rates),
        "chunks/s",
        at_least(MIN_CHUNKS_PER_S),
        spread(rates),
    )
    yield Result(BENCH, case, "bare_rows_per_s", statistics.median(limits), "rows/s", None, spread(limits))
    yield ratio((BENCH, case, "vs_bare_insert"), rates, limits)
