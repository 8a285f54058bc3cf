"""Tests the jobs of the flow flowname on a few records, without a daemon or a database: `python -m pytest`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jobs import clean

from dataflowd.testing import load_flow, local_spark, run_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark() as session:
        yield session


def test_small_amounts_are_set_aside(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(1, "ann", 5.0), (2, "bob", -1.0)], "id bigint, name string, amount double")
    ran = run_job(clean, spark, {"flowname_raw": raw}, ["flowname_clean"], params={"least": 0})
    assert [row.id for row in ran.outputs["flowname_clean"].collect()] == [1]
    assert [record["item"] for record in ran.quarantine] == ["2"]


def test_a_sample_file_passes_the_checks_of_the_flow(spark: SparkSession) -> None:
    flow = load_flow(HERE / "flow.toml")
    ran = run_job(
        clean,
        spark,
        {"flowname_raw": HERE / "data" / "raw" / "2026-01-01.csv"},
        ["flowname_clean"],
        dataid="2026-01-01",
        flow=flow,
    )
    assert all(check["passed"] for check in ran.checks)
    assert {row.day for row in ran.outputs["flowname_clean"].collect()} == {"2026-01-01"}
