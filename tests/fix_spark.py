"""One Spark for the whole test session: starting it costs ten seconds."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from dataflowd.embedded import java
from dataflowd.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, temporary_directory: object) -> Iterator[SparkSession]:  # noqa: ARG001
    from pyspark.sql import SparkSession  # noqa: PLC0415 - tests without Spark do not pay for it

    scratch = tmp_path_factory.mktemp("spark")
    found = java.find(Settings(data_dir=scratch))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in java.environment(found).items():
            patch.setenv(name, value)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_DIRS", str(scratch / "local"))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("dataflowd tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch}")
            .config("spark.log.level", "ERROR")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        gateway = session.sparkContext._gateway
        yield session
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)
        os.environ.pop("PYSPARK_GATEWAY_PORT", None)
