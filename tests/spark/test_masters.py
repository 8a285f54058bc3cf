"""The same flow on a standalone cluster and through a Connect server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dataflowd.flow
from tests.fix_cluster import Cluster, cluster
from tests.fix_daemon import daemons, eventually

if TYPE_CHECKING:
    import psycopg

    from dataflowd.host.settings import Settings

__all__ = ["cluster"]

PATIENCE_SECONDS = 180.0
FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
schema = "id bigint, name string"
[dataset.clean]
location = "{root}/clean"
[dataset.clean.checks]
min_rows = 1
unique = ["id"]
not_null = ["name"]
row_count = { input = "raw" }
[dataset.names]
location = "{root}/names"
[job.clean]
python = "shop:clean"
inputs = ["raw"]
outputs = ["clean"]
[job.clean.spark]
"spark.sql.shuffle.partitions" = 2
"spark.driver.memory" = "600m"
"spark.executor.memory" = "512m"
[job.names]
sql = "names.sql"
inputs = ["clean"]
outputs = ["names"]
params = { suffix = "!" }
[job.names.spark]
"spark.sql.shuffle.partitions" = 2
"spark.driver.memory" = "600m"
"spark.executor.memory" = "512m"
[dataset.old_raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
[dataset.old]
location = "{root}/old"
[dataset.old.checks]
min_rows = 3
[job.old]
spark_submit = ["etl.py", "of {dataid}", "{old_location}"]
inputs = ["old_raw"]
outputs = ["old"]
params = { currency = "EUR" }
[job.old.spark]
"spark.driver.memory" = "600m"
"spark.executor.memory" = "512m"
"""
# An existing PySpark script that knows nothing of dataflowd.
ETL = """
import os, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
raw = spark.read.csv(os.environ["old_raw_location"], schema="id bigint, name string", mode="DROPMALFORMED")
raw.write.parquet(sys.argv[2])
print("told", sys.argv[1:2], os.environ["dataid"], any("DSN" in name for name in os.environ))
spark.stop()
"""
SHOP = """
import time
from pathlib import Path
from pyspark.sql import functions as F
from dataflowd import job

HERE = Path(__file__).parent

def shouted(name):
    return name.upper()

def endless(name):
    (HERE / "spinning").touch()
    while True:
        time.sleep(0.1)

@job
def clean(ctx):
    raw = ctx.read("raw")
    if hasattr(ctx.spark, "sparkContext"):
        ctx.log.info("pool", name=ctx.spark.sparkContext.getLocalProperty("spark.scheduler.pool"))
    if ctx.dataid == "spin":
        raw.select(F.udf(endless)("name")).collect()
    good = ctx.quarantine(raw, unless="id > 0", item="id", reason="ids are positive")
    with ctx.node("shout"):
        ctx.write("clean", good.withColumn("name", F.udf(shouted)("name")))
"""
NAMES = "SELECT concat(name, :suffix) AS name, count(*) AS times FROM clean GROUP BY ALL"


def outcomes(connection: psycopg.Connection) -> dict[tuple[str, str], str]:
    """The outcomes of ended attempts; of failed ones, code and error."""
    ended = "SELECT jobid, dataid, coalesce(code || ': ' || error, outcome) FROM dataflow.attempt WHERE ended IS NOT NULL"
    return {(job, dataid): said for job, dataid, said in connection.execute(ended).fetchall()}


@pytest.mark.parametrize("kind", ["standalone", "connect"])
def test_a_flow_runs_is_cancelled_and_goes_on(  # noqa: PLR0913, PLR0917 - a master, a database and a place
    cluster: Cluster, kind: str, connection: psycopg.Connection, dsn: str, settings: Settings, tmp_path: Path
) -> None:
    master = getattr(cluster, kind)
    path = tmp_path / "flow" / "flow.toml"
    path.parent.mkdir()
    for name, text in (("flow.toml", FLOW), ("shop.py", SHOP), ("names.sql", NAMES), ("etl.py", ETL)):
        (path.parent / name).write_text(text, encoding="utf-8")
    settings = settings.model_copy(update={"data_dir": tmp_path / "data"})
    dataflowd.flow.apply(connection, dataflowd.flow.load(path, settings))
    raw = Path(settings.effective_root) / "raw"
    raw.mkdir(parents=True)
    for dataid in ("spin", "d1", "d2"):
        (raw / f"{dataid}.csv").write_text("1,ann\n2,bob\n3,ann\nx,eve\n-4,joe\n")
    env = {"DATAFLOW_DATA_DIR": str(tmp_path / "data"), "DATAFLOW_MASTER": master, "DATAFLOW_RUNNERS": "1"}
    with daemons(dsn, path, tmp_path) as start:
        daemon = start(engine="spark", env=env)
        connection.execute("SELECT dataflow.ready('raw', 'spin')")
        eventually((path.parent / "spinning").exists, seconds=PATIENCE_SECONDS)
        connection.execute("SELECT dataflow.ready('raw', 'd1')")
        done = {("clean", "d1"): "DONE", ("names", "d1"): "DONE"}
        eventually(lambda: outcomes(connection) == done, seconds=PATIENCE_SECONDS)
        connection.execute("SELECT dataflow.cancel('clean', 'spin')")
        daemon.said("attempt.fenced", seconds=PATIENCE_SECONDS)
        connection.execute("SELECT dataflow.ready('raw', 'd2')")
        expected = done | {("clean", "d2"): "DONE", ("names", "d2"): "DONE"}
        eventually(lambda: outcomes(connection).keys() >= expected.keys(), seconds=PATIENCE_SECONDS)
        found = outcomes(connection)
        spin = found.pop(("clean", "spin"))
        assert found == expected
        assert spin.startswith("CANCELLED")
        assert len(daemon.events("runner.started")) == 1
        [log] = (tmp_path / "data" / "log" / "clean" / "d2").iterdir()
        # Spark never removes a scheduler pool, so attempts share one pool a slot.
        assert ("pool name='slot 0'" in log.read_text(encoding="utf-8")) == (kind != "connect")
        connection.execute("SELECT dataflow.ready('old_raw', 'd1')")
        eventually(lambda: ("old", "d1") in outcomes(connection), seconds=PATIENCE_SECONDS)
        assert outcomes(connection)["old", "d1"] == "DONE"
        [log] = (tmp_path / "data" / "log" / "old" / "d1").iterdir()
        assert "told ['of d1'] d1 False" in log.read_text(encoding="utf-8")
        assert daemon.stop() == 0
    manifests = connection.execute(
        "SELECT datasetid, dataid, rows FROM dataflow.manifest ORDER BY datasetid, dataid"
    ).fetchall()
    assert manifests == [
        ("clean", "d1", 3),
        ("clean", "d2", 3),
        ("names", "d1", 2),
        ("names", "d2", 2),
        ("old", "d1", 4),
    ]
    quarantined = connection.execute(
        "SELECT code, itemid FROM dataflow.quarantine WHERE dataid = 'd1' ORDER BY code"
    ).fetchall()
    assert [code for code, _ in quarantined] == ["BAD_RECORD", "MALFORMED"]
    assert quarantined[0][1] == "-4"
    [[passed]] = connection.execute(
        "SELECT bool_and(c.passed) FROM dataflow.check_result c JOIN dataflow.attempt a USING (attempt) WHERE a.outcome = 'DONE'"
    ).fetchall()
    assert passed
