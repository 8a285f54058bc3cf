"""A Spark of this process and this host, in a directory of its own: for tests of jobs, and to split files into batches.

A runner is another process, which the engine starts. Here the caller itself needs the session.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dataflowd.host import scratch
from dataflowd.host.embedded import java
from dataflowd.runner import session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dataflowd.host.settings import Settings

VARIABLES = (
    "JAVA_HOME",
    "PYSPARK_PYTHON",
    "SPARK_LOCAL_DIRS",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    session.SUBMIT_VARIABLE,
)
QUIET = {"spark.log.level": "ERROR"}


@contextmanager
def own_spark(
    settings: Settings,
    cores: str,
    prefix: str,
    spark: Mapping[str, str] | None = None,
    *,
    java_below: Path | None = None,
) -> Iterator[SparkSession]:
    """Starts Spark with so many `cores`. At the end the JVM, its files and its variables are gone.

    `prefix`: one of dataflowd.host.scratch, which finds the directory if this process is killed.
    `java_below`: where the embedded Java is set up, if the host has no other; by default in the temporary directory.
    """
    with scratch.own_temporary(settings, prefix) as directory, _kept_environment():
        found = java.find(settings.model_copy(update={"data_dir": java_below or directory}))
        os.environ |= java.environment(found) | {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": f"{directory}/local",
        }
        asked = QUIET | dict(spark or {})
        conf = session.configuration(asked, f"local[{cores}]", str(directory), directory.name)
        started = session.start(conf)
        try:
            yield started
        finally:
            session.end(started)


@contextmanager
def _kept_environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in VARIABLES}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
