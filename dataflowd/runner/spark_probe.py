"""Starts the smallest Spark and counts rows with it: `python -m dataflowd.runner.spark_probe`, run by the doctor.

It is a process of its own, so that the doctor can end it after a timeout and read its log when the JVM does not start.
"""

from __future__ import annotations

import sys

from dataflowd.runner import protection

ROWS = 1000


def main() -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an import that fails is a finding too

    conf = protection.LOCAL | {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    builder = SparkSession.builder.master("local[1]").appName("dataflowd doctor")
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        if session.range(ROWS).count() != ROWS:
            sys.exit("Spark counts wrongly")
        sys.stdout.write(f"{session.version}\n")
    finally:
        session.stop()


if __name__ == "__main__":
    main()
