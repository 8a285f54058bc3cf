"""One Spark for the whole test session: starting it costs ten seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dataflowd.testing import local_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(temporary_directory: object) -> Iterator[SparkSession]:  # noqa: ARG001 - Spark writes its files there
    with local_spark() as session:
        yield session
