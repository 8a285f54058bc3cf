"""The Spark application of a runner: started once, with the flow's configuration and the settings that the daemon demands.

A flow cannot change the settings that protect published data: the committer that renames whole tasks (version 1), no
dynamic overwrite, no speculative second writer. The history that only a UI shows is kept small, because a warm application
lives for thousands of chunks.

With a Connect server (`sc://`) the application belongs to the server, and the runner is its client: the runner has no JVM, a
session takes only settings of Spark SQL, and an attempt is cancelled in its own session.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dataflowd.runner import protection
from dataflowd.storage import foreign_types

if TYPE_CHECKING:
    from collections.abc import Mapping
    from subprocess import Popen

    from pyspark.sql import SparkSession

State = Literal["well", "stopped", "gone"]

CONF_VARIABLE = "DATAFLOW_RUNNER_SPARK"
# PySpark takes from this variable the arguments of the spark-submit with which it starts its JVM.
SUBMIT_VARIABLE = "PYSPARK_SUBMIT_ARGS"
APPLICATION = "dataflowd runner"
JVM_SECONDS = 30
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATH = "spark.driver.extraClassPath"

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


# The settings that a session of a Connect server accepts. Whoever starts the server sets the others.
CONNECT = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}


def class_path() -> str:
    return os.pathsep.join(map(str, jars()))


def jars() -> list[Path]:
    """Returns Spark's jars, each once, in a fixed order; slf4j comes first, as in Spark's own class path."""
    import pyspark  # noqa: PLC0415 - only its directory is needed

    found = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    return sorted(found, key=lambda path: (not path.name.startswith("slf4j-api-"), path.name))


def is_connect(master: str) -> bool:
    return master.startswith("sc://")


def configuration(flow: Mapping[str, str], master: str, scratch: str, tag: str) -> dict[str, str]:
    """Returns the Spark configuration of a runner. `scratch`: a directory that is removed with it; `tag`: its name in a cluster."""
    if is_connect(master):
        allowed = {name: value for name, value in flow.items() if name.startswith("spark.sql.")}
        return allowed | CONNECT | {"spark.remote": master}
    java = flow.get(JAVA_OPTIONS, "")
    return (
        DEFAULTS
        | protection.applied(flow, master)
        | DEMANDED
        | _marks(flow, master, tag)
        | {
            "spark.master": master,
            "spark.app.name": APPLICATION,
            "spark.local.dir": f"{scratch}/local",
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            # The JVM would otherwise write its own temporary files where nobody removes them.
            JAVA_OPTIONS: f"-Djava.io.tmpdir={scratch} {java}".strip(),
        }
    )


def _marks(flow: Mapping[str, str], master: str, tag: str) -> dict[str, str]:
    """Returns the settings by which a person finds a runner's application, or what is left of it, in the cluster."""
    if master == "yarn":
        return {"spark.yarn.tags": ",".join(filter(None, [flow.get("spark.yarn.tags"), tag]))}
    if master.startswith("k8s://"):
        return {"spark.kubernetes.executor.label.dataflowd": tag}
    return {}


def make_loggers(level: int = logging.CRITICAL + 1) -> None:
    """Makes Spark's loggers and silences them. Call it before there are threads.

    Two threads that make the same logger at the same time get a plain Python logger, on which Spark's log calls fail.
    """
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    for name in NOISY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(level)


def start(conf: Mapping[str, str]) -> SparkSession:
    """Starts Spark. PySpark passes `conf` as arguments, which everybody on the host can read; a runner's is in a file instead."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - importing it takes seconds

    make_loggers()
    builder: Any = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    foreign_types.guard()
    # A Spark that job code starts in another process must not use the directories of this one.
    os.environ.pop(SUBMIT_VARIABLE, None)
    return session


def for_attempt(spark: SparkSession, tag: str, pool: str) -> SparkSession:
    """Makes a session for one attempt, so that its views and settings stay in it. Call it in the attempt's thread."""
    own: Any
    if _is_client(spark):
        own = spark.cloneSession()
        own.addTag(tag)
    else:
        own = spark.newSession()
        own.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        own.sparkContext.addJobTag(tag)
    return own


def close(own: SparkSession) -> None:
    """Stops the session of a Connect server, which would keep it for an hour. In a JVM of ours the session needs no stop."""
    if _is_client(own):
        own.stop()


def end(spark: SparkSession) -> None:
    """Stops Spark and its JVM, whose files are about to be removed. A later Spark of this process starts a new JVM."""
    from pyspark import SparkContext  # noqa: PLC0415

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - Spark has no public way
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=JVM_SECONDS)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def cancel(own: SparkSession, tag: str) -> None:
    if _is_client(own):
        own.interruptTag(tag)
    else:
        own.sparkContext.cancelJobsWithTag(tag)


def jvm(spark: SparkSession) -> Popen[bytes] | None:
    """Returns the JVM if it is our child process. Under spark-submit it is the parent; with a Connect server there is none."""
    return None if _is_client(spark) else getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - Spark has no public way


def probe(spark: SparkSession) -> dict[str, int]:
    """Returns the memory of the JVM; raises if Spark does not answer."""
    if _is_client(spark):
        _ = spark.version
        return {"heap": 0, "heap_max": 0}  # a runner is not recycled because of the server's memory
    return _memory(spark)


def _memory(spark: SparkSession) -> dict[str, int]:
    """Returns bytes of the JVM's heap: those that have survived a garbage collection, and the maximum.

    Young objects do not count: they fill their pool again and again, and most of them are garbage.
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
    if _is_client(spark):
        return "well"  # a Connect server is not ours
    context: Any = spark.sparkContext
    try:
        context._gateway.jvm.java.lang.System.nanoTime()  # noqa: SLF001 - Spark has no public way
    except Exception:  # noqa: BLE001 - py4j raises many types when the JVM does not answer
        return "gone"
    return "stopped" if context._jsc is None or context._jsc.sc().isStopped() else "well"  # noqa: SLF001


def _is_client(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")
