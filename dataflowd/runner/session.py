"""The Spark application of a runner: started once, with what the daemon demands on top of what the flow asks.

What protects published data is not the flow's to change: the committer that renames whole tasks (version 1), no
dynamic overwrite, no speculative second writer. History that only a UI shows is kept small, because a warm
application lives for thousands of chunks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

State = Literal["well", "stopped", "gone"]

CONF_VARIABLE = "DATAFLOW_RUNNER_SPARK"
APPLICATION = "dataflowd runner"

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.cleaner.periodicGC.interval": "5min",
}
DEMANDED = {
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.speculation": "false",
    "spark.submit.deployMode": "client",
}
# Spark's Python side logs every error once more, with the whole stack of the JVM.
NOISY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def configuration(flow: Mapping[str, str], master: str, scratch: str) -> dict[str, str]:
    """What goes to Spark for a runner; `scratch` is a directory that is removed with it."""
    java = flow.get("spark.driver.extraJavaOptions", "")
    return (
        DEFAULTS
        | dict(flow)
        | DEMANDED
        | {
            "spark.master": master,
            "spark.app.name": APPLICATION,
            "spark.local.dir": f"{scratch}/local",
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            # The JVM would otherwise write its own temporary files where nobody removes them.
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} {java}".strip(),
        }
    )


def start(conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - this import and the start are the ten seconds

    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    builder: Any = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def for_attempt(spark: SparkSession, tag: str) -> SparkSession:
    """A session of its own: views and settings of one attempt are not seen by the next. Call it in the attempt's thread."""
    own = spark.newSession()
    own.addTag(tag)
    own.sparkContext.setLocalProperty("spark.scheduler.pool", tag)
    own.sparkContext.addJobTag(tag)
    return own


def cancel(spark: SparkSession, tag: str) -> None:
    spark.sparkContext.cancelJobsWithTag(tag)


def memory(spark: SparkSession) -> dict[str, int]:
    """Bytes of the JVM's heap: what has outlived a collection, and the most there may be.

    Young objects are left out: they fill their part again and again, and most of them are garbage.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no public way
    pools = [
        pool
        for pool in jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
        if pool.getType().name() == "HEAP" and "Eden" not in pool.getName()
    ]
    kept = sum(int(pool.getUsage().getUsed()) for pool in pools)
    return {"heap": kept, "heap_max": int(jvm.java.lang.Runtime.getRuntime().maxMemory())}


def state(spark: SparkSession) -> State:
    """Whether another attempt could run here: job code may have stopped Spark, and a JVM may have been killed."""
    if getattr(spark, "_jvm", None) is None:
        return "well"  # a Connect server is not ours
    context: Any = spark.sparkContext
    try:
        context._gateway.jvm.java.lang.System.nanoTime()  # noqa: SLF001 - Spark has no public way
    except Exception:  # noqa: BLE001 - py4j has a dozen ways to say that nobody answers
        return "gone"
    return "stopped" if context._jsc is None or context._jsc.sc().isStopped() else "well"  # noqa: SLF001
