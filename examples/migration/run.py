"""The migration: a table moves from one Postgres database to another, in shards.

Each shard is extracted to Parquet and then loaded. While it runs, an SQL UPDATE raises and lowers the concurrency. The
database refuses some loads, and they are tried again. At the end a comparison proves that no row is lost, doubled or changed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from stage import Stage, arguments, play, whole

if TYPE_CHECKING:
    import datetime as dt

HERE = Path(__file__).resolve().parent
COLUMNS = sql.SQL(", ").join(
    map(sql.Identifier, ("id", "name", "email", "balance", "born", "changed", "note"))
)
FULL_SHARDS = 10_000
SHARDS = 40
ROWS_A_SHARD = 250
MOST_ROWS = 100_000
FAULT_EVERY = 100
FEW = 1000  # with fewer shards, one load of a hundred could mean no refused load at all
FAULT_EVERY_OF_FEW = 10
LONGEST_SECONDS = 24 * 3600.0
DAY, NIGHT, MORNING = 1, 4, 2  # how many runs at once

# For a period of the history: how many runs were started, and the most that ran side by side.
STARTED = """
    SELECT count(*), max(running) FROM (
        SELECT at, change, sum(change) OVER (ORDER BY at, change) AS running FROM (
            SELECT claimed AS at, 1 AS change FROM dataflow.attempt
            UNION ALL
            SELECT ended, -1 FROM dataflow.attempt
        ) AS moments
    ) AS counted
    WHERE change = 1 AND at BETWEEN %s AND %s
"""


# How many runs are done, and how many failed for good.
PROGRESS = """
    SELECT count(*) FILTER (WHERE s.status = 'READY'), count(*) FILTER (WHERE s.status = 'FAILED' AND a.retry_at IS NULL)
    FROM dataflow.datastatus AS s JOIN dataflow.attempt AS a USING (attempt)
    WHERE s.locktype = 'OUT'
"""


@dataclass
class Period:
    """A time with one limit of concurrency."""

    limit: int
    began: dt.datetime
    ended: dt.datetime | None = None


def story(stage: Stage, shards: int, rows_a_shard: int) -> None:
    every = FAULT_EVERY if shards >= FEW else FAULT_EVERY_OF_FEW
    rows = shards * rows_a_shard
    old, new = stage.database("old"), stage.database("new")
    prepare(old, "old.sql", rows=rows)
    prepare(new, "new.sql", every=every)
    flow = stage.flow(HERE, {"old.example": stage.socket, "new.example": stage.socket})
    stage.configure(
        flows=[str(flow)],
        allowed_hosts=[stage.socket],
        runners=1,
        master="local[2]",
    )

    stage.step(f"A table of {rows:,} customers in the database old, and an empty one in the database new")
    stage.ctl("init", lines=2)
    stage.ctl("apply", "flow/flow.toml")

    stage.step(f"The table is split into {shards:,} shards: ranges of its key, as data")
    stage.ctl("concurrency", str(DAY))
    how = ["--dataset", "old_customers", "--key", "id", "--count", str(shards)]
    stage.ctl("partition", "create", "shard", *how)
    stage.ctl("partition", "list")

    stage.step(
        f"By day: {DAY} at a time. The daemon extracts each shard to Parquet, and loads what was extracted"
    )
    daemon = stage.daemon("migration")
    day = Period(DAY, now(stage))
    wait_for(stage, 0.2 * shards, 2 * shards)

    stage.step(f"At night: {NIGHT} at a time, by one UPDATE from any client")
    night = change(stage, day, NIGHT)
    wait_for(stage, 1.2 * shards, 2 * shards)

    stage.step(f"In the morning: {MORNING}")
    morning = change(stage, night, MORNING)
    wait_for(stage, 2 * shards, 2 * shards)
    morning.ended = now(stage)

    stage.step("Nobody had to watch: refused loads were tried again")
    [[failed, dataid]] = stage.rows(
        "SELECT count(*), min(dataid) FROM dataflow.attempt WHERE outcome = 'FAILED' AND jobid = 'load'"
    )
    stage.require(failed >= shards // every, "some loads were refused")
    stage.tell(f"{failed:,} of {shards + failed:,} loads were refused on purpose. One of them:")
    stage.ctl("attempts", "load", str(dataid))
    stage.ctl("status", lines=20)
    daemon.stop()

    stage.step("The limits held, says the history")
    for period in (day, night, morning):
        # If all runs were done before the period began, no run was started.
        [[started, running]] = stage.rows(STARTED, period.began, period.ended)
        running = running or 0
        stage.tell(f"limit {period.limit}: {started:>6,} runs were started, at most {running} side by side")
        stage.require(running <= period.limit, f"never more than {period.limit} ran side by side")

    stage.step("Row by row: the databases compare what is in old with what is in new")
    prints = [fingerprint(dsn) for dsn in (old, new)]
    for name, (count, digest) in zip(("old", "new"), prints, strict=True):
        stage.tell(f"{name}: {count:,} rows, fingerprint {digest}")
    missing, surplus = differences(old, new)
    stage.tell(f"old EXCEPT ALL new: {missing} rows; new EXCEPT ALL old: {surplus} rows")
    stage.require(prints[0] == prints[1] and (missing, surplus) == (0, 0), "source and target are equal")
    stage.tell(f"Equal: {rows:,} rows in {shards:,} shards, {failed:,} failures healed by max_attempts.")


def prepare(dsn: str, script: str, **numbers: int) -> None:
    """Runs an SQL script, and replaces :name by a number as psql does."""
    text = (HERE / script).read_text(encoding="utf-8")
    for name, number in numbers.items():
        text = text.replace(f":{name})", f"{number})")
    with psycopg.connect(dsn) as connection:
        connection.execute(text.encode())


def now(stage: Stage) -> dt.datetime:
    moment: dt.datetime = stage.value("SELECT clock_timestamp()")
    return moment


def change(stage: Stage, period: Period, limit: int) -> Period:
    """Ends the period and begins the next one. Runs that start during the change belong to neither."""
    period.ended = now(stage)
    stage.psql(f"UPDATE dataflow.control SET concurrency = {limit} WHERE scope = 'global'")  # noqa: S608 - a number of ours
    # A claim that has already begun uses the old limit. When this lock is free, that claim has ended.
    stage.rows("SELECT pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0))")
    return Period(limit, now(stage))


def wait_for(stage: Stage, wanted: float, total: int) -> None:
    def look() -> bool:
        [[done, failed]] = stage.rows(PROGRESS)
        stage.require(failed == 0, "every failure is healed by another try; see `dataflowctl status`")
        return bool(done >= wanted)

    stage.until(look, f"{wanted:.0f} runs that are done", LONGEST_SECONDS)
    [[done, _]] = stage.rows(PROGRESS)
    stage.tell(f"{done:,} of {total:,} runs are done after {stage.seconds:.0f} s")


def fingerprint(dsn: str) -> tuple[int, int]:
    """The number of rows and a fingerprint of them, in any order, computed by the database."""
    what = "SELECT count(*), sum(hashtextextended(c::text, 0)) FROM (SELECT {} FROM customers) AS c"
    with psycopg.connect(dsn) as connection:
        [(count, digest)] = connection.execute(sql.SQL(what).format(COLUMNS)).fetchall()
    return int(count), int(digest)


def differences(old: str, new: str) -> tuple[int, int]:
    """How many rows of the old table are missing in the new one, and how many the new one has too many."""
    read = sql.SQL("COPY (SELECT {} FROM customers) TO STDOUT (FORMAT binary)").format(COLUMNS)
    write = sql.SQL("COPY brought ({}) FROM STDIN (FORMAT binary)").format(COLUMNS)
    make = sql.SQL("CREATE TEMPORARY TABLE brought AS SELECT {} FROM customers WITH NO DATA").format(COLUMNS)
    there, here = (
        sql.SQL("SELECT {} FROM {}").format(COLUMNS, sql.SQL(name)) for name in ("brought", "customers")
    )
    surplus = sql.SQL("SELECT count(*) FROM ({} EXCEPT ALL {}) AS d")
    with psycopg.connect(old) as source, psycopg.connect(new) as target:
        target.execute(make)
        with source.cursor().copy(read) as rows, target.cursor().copy(write) as brought:
            for block in rows:
                brought.write(block)
        counts = [target.execute(surplus.format(*pair)).fetchall() for pair in ((there, here), (here, there))]
        target.rollback()
    [[[missing]], [[too_many]]] = counts
    return missing, too_many


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--shards", type=whole(FAULT_EVERY_OF_FEW, FULL_SHARDS), default=SHARDS, help=f"default {SHARDS}"
    )
    parser.add_argument(
        "--rows", type=whole(1, MOST_ROWS), default=ROWS_A_SHARD, help=f"of a shard; default {ROWS_A_SHARD}"
    )
    parser.add_argument("--full", action="store_true", help=f"{FULL_SHARDS:,} shards; takes hours")
    given = parser.parse_args()
    shards = FULL_SHARDS if given.full else given.shards
    return play(lambda stage: story(stage, shards, given.rows), given.directory)


if __name__ == "__main__":
    sys.exit(main())
