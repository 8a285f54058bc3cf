"""Measures the split of a table into batches of 5,000, compared with reading its keys in order over the same connection.

The read that is compared makes no Python objects: its rows stay in libpq. Then a job reads the table in 100 batches,
compared with one Spark job over the whole table: see tests.bench.batches.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import conninfo, sql

from dataflowd.model.work_order import Connection, Dataset
from dataflowd.storage.partition import plan
from dataflowd.storage.partition.plan import Split
from dataflowd.storage.partition.table import TableSource
from dataflowd.storage.tables import catalog
from dataflowd.storage.tables.place import table_of
from tests.bench import batches
from tests.bench.batches import QUICK_ROWS
from tests.bench.report import Result, at_most, ratio, say, short, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.server import Place

BENCH = "partition"
ROWS = 5_000_000
SIZE = 5000
ROUNDS = 5
MOST_VS_SCAN = 1.2

# The rows are stored in another order than their keys.
FILL = """
    CREATE TABLE customers AS SELECT i * 3 AS id, md5(i::text) AS name FROM generate_series(1::bigint, {rows}) AS i ORDER BY i % 1009;
    ALTER TABLE customers ADD PRIMARY KEY (id)
"""
SCAN = "SELECT id FROM customers ORDER BY id"


def run(place: Place) -> Iterator[Result]:
    rows = QUICK_ROWS if place.largest <= QUICK_ROWS else ROWS
    with place.database("partition", "template1") as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(FILL).format(rows=rows))
            connection.execute("VACUUM ANALYZE customers")
        dataset = _dataset(dsn)
        yield from _split(dataset, rows)
        yield from batches.run(place, dataset, rows)


def _split(dataset: Dataset, rows: int) -> Iterator[Result]:
    hosts = [str(dataset.connection.hostname)] if dataset.connection else []
    split, splits, scans = Split("size", ("id",), "size", SIZE), [], []
    with catalog.connection(table_of(dataset, hosts)) as opened:
        for number in range(ROUNDS + 1):
            began = time.perf_counter()
            opened.execute(SCAN)
            scans.append(time.perf_counter() - began)
            began = time.perf_counter()
            made = plan.batches(TableSource(opened, dataset, split.columns, hosts), split)
            splits.append(time.perf_counter() - began)
            if len(made) != -(-rows // SIZE):
                raise RuntimeError(f"{len(made)} batches of {rows} rows")
            say(
                f"partition: round {number} of {ROUNDS}: scan {scans[-1]:.2f} s, split {splits[-1]:.2f} s, {len(made)} batches"
            )
    case = f"{short(rows)} rows into batches of {SIZE}"
    # The first round of each side has read the table into memory.
    yield ratio((BENCH, case, "split_vs_ordered_scan"), splits[1:], scans[1:], at_most(MOST_VS_SCAN))
    yield Result(BENCH, case, "split_s", statistics.median(splits[1:]), "s", None, spread(splits[1:]))


def _dataset(dsn: str) -> Dataset:
    there = conninfo.conninfo_to_dict(dsn)
    login = Connection(
        hostname=str(there["host"]),
        port=int(there["port"] or 0),
        database=str(there["dbname"]),
        username=str(there["user"]),
        tablename="customers",
    )
    return Dataset(name="customers", format="postgres", connection=login)
