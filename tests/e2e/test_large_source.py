"""The records of a real table go through a job whose code is corrected meanwhile: nothing is lost, nothing is doubled.

The commands are those of docs/batches.md. In the end the published rows are compared with the table, row by row.
It is one test, because each step needs the state that the last one left.
"""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi
from pyarrow import compute, parquet

from dataflowd.host import scratch
from tests.e2e.ctl_flow import asked, ok
from tests.fix_daemon import POLL_SECONDS, daemons

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dataflowd.host.settings import Settings
    from tests.fix_daemon import Daemon, StartDaemon
    from tests.fix_postgres import RunCtl
    from tests.fix_tables import Warehouse
    from tests.fix_world import World

ROWS = 60_000
BATCH = 10_000
CHUNKS = ROWS // BATCH
BAD = 50
PATIENCE_SECONDS = 1800.0  # for a busy machine; a failed chunk ends the wait at once
HELD = f"size_{BATCH}.4"

FLOW = """
[flow]
name = "crm"
[dataset.customers]
description = "All customers"
format = "postgres"
hostname = "{hostname}"
port = {port}
database = "{database}"
username = "{username}"
tablename = "customers"
options = {{ partitions = 2, partition_column = "id" }}
[dataset.loaded]
location = "{{root}}/loaded"
[dataset.loaded.checks]
unique = ["id"]
not_null = ["id", "name", "amount"]
row_count = {{ input = "customers" }}
[job.load_customers]
python = "jobs:load_customers"
inputs = ["customers"]
outputs = ["loaded"]
max_attempts = 1
[job.load_customers.spark]
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"""
# The bug: names should be in capitals. In chunk 2 each task fails after its last row, and Spark repeats it: its rows must count once.
# While the file hold-DATAID exists, the job waits, so that the test can kill the daemon meanwhile.
BUGGY = """
import pathlib, time
from pyspark import TaskContext
from pyspark.sql import functions as F
from dataflowd import job, node

HERE = pathlib.Path(__file__).parent

def unlucky(batches):
    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("this task fails once")

@node
def named(ctx, customers):
    return customers.withColumn("name", F.initcap("name"))

@job
def load_customers(ctx):
    customers = ctx.read("customers")
    good = ctx.quarantine(customers, unless="amount > 0", item="id", reason="amount must be positive")
    rows = named(ctx, good)
    ctx.write("loaded", rows.mapInArrow(unlucky, rows.schema) if ctx.dataid.endswith(".2") else rows)
    while (HERE / f"hold-{ctx.dataid}").exists():
        time.sleep(0.05)
"""
FIXED = BUGGY.replace("F.initcap", "F.upper")

# The keys have gaps, and the rows another order on disk. Every 400th of the first 20,000 rows, which are two batches, is bad.
FILL = """
    INSERT INTO customers SELECT i * 3, 'r' || i % 7, md5(i::text), CASE WHEN i <= 20000 AND i % 400 = 7 THEN -1 ELSE i % 1000 + 0.25 END
    FROM generate_series(1, 60000) AS i ORDER BY i % 1009
"""
EXPECTED = """
    SELECT id, region, upper(name) AS name, CASE WHEN amount < 0 THEN '12.50' ELSE amount::text END AS amount
    FROM customers ORDER BY id
"""


@dataclass
class Shop:
    world: World
    warehouse: Warehouse
    settings: Settings
    directory: Path
    ctl: RunCtl
    start: StartDaemon

    def asked(self, *words: str) -> Any:
        return asked(self.ctl, *words)

    def daemon(self) -> Daemon:
        env = {
            "DATAFLOW_ALLOWED_HOSTS": self.warehouse.host,
            "DATAFLOW_MASTER": "local[2,2]",  # two cores, and a task may be tried twice
            "DATAFLOW_RUNNERS": "1",
            "DATAFLOW_LOG_LEVEL": "info",
        }
        return self.start(engine="spark", env=env)

    def statuses(self) -> dict[str, str]:
        return dict(
            self.world.rows(
                "SELECT dataid, status FROM dataflow.datastatus WHERE datasetid = 'loaded' AND locktype = 'OUT'"
            )
        )

    def until(self, what: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Waits until the statuses fulfil the condition, and returns them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not what(found := self.statuses()):
            failed = self.world.rows("SELECT dataid, error FROM dataflow.attempt WHERE outcome = 'FAILED'")
            assert not failed, failed
            assert time.monotonic() < deadline, found
            time.sleep(POLL_SECONDS)
        return found

    def all_ready(self) -> None:
        self.until(lambda found: len(found) == CHUNKS and set(found.values()) == {"READY"})

    def made_by(self) -> dict[str, str]:
        """The hash of the code that made the published version of each chunk."""
        return dict(
            self.world.rows(
                """
                SELECT s.dataid, a.code_hash FROM dataflow.datastatus s
                JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
                JOIN dataflow.attempt a ON a.attempt = m.attempt WHERE s.datasetid = 'loaded' AND s.locktype = 'OUT'
                """
            )
        )

    def published(self) -> pa.Table:
        """The published rows of all chunks, in the order of the key."""
        found = self.world.rows(
            """
            SELECT l.location FROM dataflow.datastatus s, dataflow.data_location(s.datasetid, s.dataid) AS l
            WHERE s.datasetid = 'loaded' AND s.locktype = 'OUT'
            """
        )
        table = pa.concat_tables(parquet.read_table(location) for [location] in found).sort_by("id")
        amount = compute.cast(table["amount"], pa.string())
        return table.set_column(table.schema.get_field_index("amount"), "amount", amount)

    def expected(self) -> pa.Table:
        with dbapi.connect(self.warehouse.dsn) as opened, opened.cursor() as cursor:
            cursor.execute(EXPECTED)
            return cursor.fetch_arrow_table()


@pytest.fixture
def shop(
    world: World, warehouse: Warehouse, settings: Settings, tmp_path: Path, run_ctl: RunCtl
) -> Iterator[Shop]:
    warehouse.do(
        "CREATE TABLE customers (id bigint PRIMARY KEY, region text, name text, amount numeric(12, 2))"
    )
    warehouse.do(FILL)
    warehouse.do("ANALYZE customers")
    directory = tmp_path / "flow"
    directory.mkdir()
    (directory / "flow.toml").write_text(FLOW.format(**warehouse.there), encoding="utf-8")
    (directory / "jobs.py").write_text(BUGGY, encoding="utf-8")
    known = {
        "DATAFLOW_FLOWS": str(directory / "flow.toml"),
        "DATAFLOW_ALLOWED_HOSTS": warehouse.host,
    }

    def ctl(*words: str, env: Mapping[str, str | None] | None = None, stdin: str = "") -> Any:
        return run_ctl(*words, env=known | dict(env or {}), stdin=stdin)

    with daemons(world.dsn, directory / "flow.toml", tmp_path) as start:
        yield Shop(world, warehouse, settings, directory, ctl, start)
    scratch.remove(settings)  # after a failed test: its daemons were killed


def test_all_records_go_through_a_job_whose_code_is_corrected_meanwhile(shop: Shop) -> None:
    ok(shop.ctl("apply", str(shop.directory / "flow.toml")))
    split_and_tried(shop)
    old = killed_in_the_middle(shop)
    daemon = continued_and_old_code_replaced(shop, old)
    repaired(shop)
    assert shop.published().equals(shop.expected())
    told_in_statistics(shop)
    assert daemon.stop() == 0
    deleted(shop)


def split_and_tried(shop: Shop) -> None:
    split = ["--dataset", "customers", "--key", "id", "--hold"]
    made = shop.asked("partition", "create", f"size_{BATCH}", *split, "--size", str(BATCH))
    assert (made["batches"], made["items"]) == (CHUNKS, ROWS)
    made = shop.asked("partition", "create", "every_100", *split, "--every", "100")
    assert (made["batches"], made["items"]) == (100, ROWS)

    before = shop.world.everything()
    tried = shop.asked("try", "load_customers", "every_100.1", "--rows", "500", "--show", "500")
    assert (tried["outcome"], tried["error"]) == ("DONE", None)
    [output] = tried["outputs"]
    sample = [row["id"] for row in output["preview"]]
    assert output["rows"] + len(tried["quarantine"]) == 500
    assert len(set(sample)) == len(sample) == output["rows"]
    # The n-th key is 3 n. The batch has the first key, and every 100th after it.
    assert {key // 3 % 100 for key in sample} == {1}
    assert shop.world.everything() == before


def killed_in_the_middle(shop: Shop) -> set[str]:
    """Kills the daemon in the middle of its work, and returns the chunks that were published by then."""
    (shop.directory / f"hold-{HELD}").touch()
    ok(shop.ctl("release", "--dataset", "customers", "--dataid", f"size_{BATCH}.*", "--yes"))
    ok(shop.ctl("concurrency", "2", "--job", "load_customers"))
    daemon = shop.daemon()
    found = shop.until(
        lambda found: list(found.values()).count("READY") >= 3 and found.get(HELD) == "RUNNING"
    )
    daemon.kill()
    assert len(found) < CHUNKS
    assert shop.statuses()[HELD] == "RUNNING"
    return {dataid for dataid, status in shop.statuses().items() if status == "READY"}


def continued_and_old_code_replaced(shop: Shop, old: set[str]) -> Daemon:
    (shop.directory / "jobs.py").write_text(
        "# It is upper case that was asked for.\n" + FIXED, encoding="utf-8"
    )
    (shop.directory / f"hold-{HELD}").unlink()
    daemon = shop.daemon()
    shop.all_ready()
    assert shop.world.outcomes("load_customers", HELD) == ["LOST", "DONE"]

    stale = {chunk["dataid"]: chunk["stale"] for chunk in shop.asked("chunks", "loaded", "--stale")}
    assert stale == {dataid: ["CODE"] for dataid in old}
    made_by = shop.made_by()
    [old_code], [new_code] = (
        {made_by[dataid] for dataid in dataids} for dataids in (old, set(made_by) - old)
    )
    assert old_code != new_code
    assert not shop.published().equals(shop.expected())

    again = shop.asked("resubmit", "load_customers", "--stale", "--yes")
    assert {run["dataid"] for run in again["runs"]} == old
    shop.all_ready()
    assert set(shop.made_by().values()) == {new_code}
    assert shop.asked("chunks", "loaded", "--stale") == []
    versions: dict[str, int] = dict(
        shop.world.rows("SELECT dataid, max(version) FROM dataflow.manifest GROUP BY dataid")
    )
    assert {dataid for dataid, version in versions.items() if version == 2} == old
    assert set(versions.values()) == {1, 2}
    return daemon


def repaired(shop: Shop) -> None:
    """A person repairs the bad records in an exported file. Only their chunks are made again, once."""
    [group] = shop.asked("quarantine", "list", "load_customers")
    assert (group["reason"], group["open"], group["chunks"]) == ("amount must be positive", BAD, 2)
    odd = shop.directory / "odd.csv"
    ok(shop.ctl("quarantine", "export", "load_customers", "--output", str(odd)))
    with odd.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len({line["itemid"] for line in lines}) == BAD
    with odd.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(line | {"action": "repair", "record.amount": "12.50"} for line in lines)
    assert f"resolved {BAD} records" in ok(
        shop.ctl("quarantine", "resolve", "load_customers", "--from-file", str(odd))
    )
    assert shop.asked("quarantine", "replay", "load_customers", "--yes")["count"] == 2
    shop.all_ready()
    assert shop.asked("quarantine", "replay", "load_customers", "--yes")["count"] == 0
    assert shop.asked("quarantine", "list", "load_customers") == []


def told_in_statistics(shop: Shop) -> None:
    stats = shop.asked("stats", "load_customers")
    assert stats["published"]["rows"] == ROWS
    assert stats["chunks"] == {"READY": CHUNKS}
    splits = {split["partitioning"]: split["states"] for split in stats["sources"][0]["partitionings"]}
    assert splits == {"every_100": {"HOLD": 100}, f"size_{BATCH}": {"READY": CHUNKS}}
    assert stats["quarantine"] == {"open": 0, "resolved": BAD, "unapplied": 0}
    execution = stats["execution"]
    assert (execution["failed"], execution["running"]) == (0, 0)
    assert 1 <= execution["lost"] == execution["retries"] <= 2
    assert execution["cpu_seconds"] > 0
    # Each record is counted once, although some chunks were made twice, and tasks of one chunk failed after their last row.
    nodes = {node["node"]: (node["items"], node["failures"]) for node in stats["nodes"]}
    assert nodes == dict.fromkeys(("amount must be positive", "named", "write loaded"), (ROWS, 0))
    drawn = ok(shop.ctl("stats", "load_customers", "--dag")).splitlines()
    assert [line.lstrip("│├└─ ").split("  ")[0] for line in drawn[1:]] == list(nodes)
    # Never more than two attempts run at a time. A lost attempt ends when its daemon is found dead.
    [[together]] = shop.world.rows(
        """
        SELECT max(n) FROM dataflow.attempt a, LATERAL (
            SELECT count(*) AS n FROM dataflow.attempt b WHERE b.claimed <= a.claimed AND b.ended > a.claimed) AS beside
        """
    )
    assert together == 2


def deleted(shop: Shop) -> None:
    root, logs = Path(shop.settings.effective_root), shop.settings.effective_log_dir
    assert list(root.rglob("*.parquet"))
    assert list((logs / "load_customers").rglob("*.log"))
    ok(shop.ctl("pause", "load_customers"))
    assert f"deleted {CHUNKS} runs" in ok(shop.ctl("delete", "load_customers", "--data", "--yes"))
    assert list(root.rglob("*.parquet")) == []
    assert list((logs / "load_customers").rglob("*.log")) == []
    for table in ("attempt", "manifest", "quarantine", "node_stat", "check_result"):
        assert shop.world.rows(f"SELECT * FROM dataflow.{table}") == [], table  # noqa: S608
    assert shop.statuses() == {}
    # The source and its partitionings are unchanged.
    assert shop.warehouse.do("SELECT count(*) FROM customers") == [(ROWS,)]
    assert [(row["partitioning"], row["consumed"]) for row in shop.asked("partition", "list")] == [
        ("every_100", 0),
        (f"size_{BATCH}", 0),
    ]
