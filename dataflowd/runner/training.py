"""`python -m dataflowd.runner.training FILE`: writes an archive of the classes that Spark loads; dataflowd.engine.class_archive says why.

Spark does some of the work of a job while Java lists the classes that it loads. Then this process becomes, by exec, the Java
that makes the archive from that list, so that it still dies with its daemon. All of it runs with idle priority and works in
the current directory.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dataflowd.flow.model import Dataset
from dataflowd.runner import rehearsal, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dataflowd.sdk.context import Context

LIST = "classes.list"
COLUMNS = "id bigint, customer string, amount decimal(12,2), day date, at timestamp"
LINES = "1,a,2.50,2026-01-01,2026-01-01T08:00:00\n2,b,-1,2026-01-01,2026-01-01T08:00:00\nx,\n"


def main() -> NoReturn:
    _lower_priority()
    here = Path.cwd()
    conf = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    listing = {
        session.JAVA_OPTIONS: f"-XX:DumpLoadedClassList={here / LIST}",
        session.CLASS_PATH: session.class_path(),
    }
    spark = session.start(session.configuration(conf | listing, "local[2]", str(here), "training"))
    _work(spark, here)
    java: Any = spark.sparkContext._jvm.java.lang.System  # noqa: SLF001 - Spark has no public way
    program = java.getProperty("java.home") + "/bin/java"
    session.end(spark)
    classes, archive = f"-XX:SharedClassListFile={here / LIST}", f"-XX:SharedArchiveFile={sys.argv[1]}"
    os.execv(program, [program, "-Xshare:dump", classes, archive, "-cp", session.class_path()])  # noqa: S606 - the Java that Spark has just used


def _lower_priority() -> None:
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _work(spark: SparkSession, here: Path) -> None:
    """Does what most jobs do: broken and bad records, checks, an aggregation, several formats."""
    (here / "raw.csv").write_text(LINES, encoding="ascii")
    checks = {
        "min_rows": {"value": 0, "severity": "error"},
        "not_null": {"columns": ["id"], "severity": "error"},
        "unique": {"columns": ["id"], "severity": "error"},
    }
    datasets = {
        "raw": Dataset(name="raw", format="csv", columns=COLUMNS, options={}, checks={}),
        "clean": Dataset(name="clean", options={}, checks=checks),
        "totals": Dataset(name="totals", format="json", options={}, checks={}),
    }

    def clean(ctx: Context) -> None:
        ctx.write("clean", ctx.quarantine(ctx.read("raw"), unless="amount > 0", item="id"))

    def total(ctx: Context) -> None:
        ctx.write("totals", ctx.read("clean").groupBy("customer").agg({"amount": "sum", "*": "count"}))

    cleaned = rehearsal.run_job(clean, spark, {"raw": here / "raw.csv"}, ["clean"], datasets=datasets)
    cleaned.outputs["clean"].write.parquet(f"{here}/clean")
    rehearsal.run_job(total, spark, {"clean": here / "clean"}, ["totals"], datasets=datasets)


if __name__ == "__main__":
    main()
