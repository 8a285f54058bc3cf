"""A reader of a dataset's directory that does not ask the database finds the current version or nothing, and never two versions."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb
import pandas as pd  # type: ignore[import-untyped] # it ships no type information
import pyarrow.dataset as arrow
import pytest
from pyarrow import parquet
from pyspark.errors import AnalysisException

from dataflowd.model.location import ATTEMPTS
from dataflowd.model.work_order import Chunk, Dataset, Input, Order, Output
from dataflowd.runner.execute import execute
from dataflowd.runner.rehearsal import Recorded
from dataflowd.storage import fixed_path

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = "id bigint"


def make(  # noqa: PLR0913, PLR0917
    spark: SparkSession, root: Path, dataid: str, attempt: int, rows: int, location: str
) -> str:
    """Runs an attempt on a chunk, and returns the location in its manifest."""
    raw = root / "raw" / f"{dataid}-{attempt}"
    spark.range(rows).coalesce(1).write.parquet(str(raw))
    order = Order(
        attempt=attempt,
        jobid="copy",
        dataid=dataid,
        tag="dataflow-test",
        code="dataflowd.jobs:copy",
        directory="",
        inputs={"raw": Input(dataset=Dataset(name="raw"), chunks=(Chunk(dataid=dataid, location=str(raw)),))},
        outputs={"out": Output(dataset=Dataset(name="out"), location=location)},
        allowed_roots=(str(root),),
    )
    result = execute(order, spark, Recorded(), threading.Event())
    assert result["outcome"] == "DONE", result["error"]
    # The next job can read the published version at that location.
    manifest = result["outputs"]["out"]
    chunk = Chunk(dataid=dataid, location=manifest["location"], files=tuple(manifest["files"]), rows=rows)
    published = Input(dataset=Dataset(name="out", columns=SCHEMA), chunks=(chunk,))
    again = Output(dataset=Dataset(name="copy"), location=str(root / "copies"))
    copied = replace(order, inputs={"out": published}, outputs={"copy": again})
    assert execute(copied, spark, Recorded(), threading.Event())["outputs"]["copy"]["rows"] == rows
    return str(manifest["location"])


@pytest.mark.parametrize("below", ["", "/{dataid}"])
def test_a_plain_read_of_a_dataset_finds_no_attempt(spark: SparkSession, tmp_path: Path, below: str) -> None:
    place = tmp_path / "out"
    made = {
        (dataid, attempt): make(spark, tmp_path, dataid, attempt, rows, f"{place}{below}")
        for dataid, attempt, rows in (("d1", 1, 3), ("d1", 2, 4), ("d2", 3, 5))
    }
    assert not place.exists()
    assert found_by_duckdb(place) == 0
    place.mkdir()  # a person may have made the directory
    with pytest.raises(AnalysisException, match="UNABLE_TO_INFER_SCHEMA"):
        spark.read.parquet(str(place))
    assert spark.read.schema(SCHEMA).parquet(str(place)).count() == 0
    assert spark.read.schema(SCHEMA).option("recursiveFileLookup", "true").parquet(str(place)).count() == 0
    assert spark.read.text(str(place)).count() == 0
    assert spark.sparkContext.textFile(str(place)).count() == 0  # Hadoop's own reader
    assert parquet.read_table(place).num_rows == 0
    assert len(pd.read_parquet(place)) == 0
    assert arrow.dataset(place, partitioning="hive").count_rows() == 0
    assert found_by_duckdb(place) == 0
    assert not list(place.rglob("*"))  # so that no pattern finds a file

    current = [made["d1", 2], made["d2", 3]]
    assert spark.read.parquet(*current).count() == 9
    assert sum(len(pd.read_parquet(one)) for one in current) == 9
    assert arrow.dataset([arrow.dataset(one) for one in current]).count_rows() == 9
    assert (
        spark.sparkContext.binaryFiles(current[0]).count() == 1
    )  # the name begins without a dot: Hadoop skips hidden files


def test_a_plain_read_of_fixed_paths_finds_the_published_versions(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "out"
    for dataid, attempt, rows in (("d1", 1, 3), ("d1", 2, 4), ("d2", 3, 5)):
        location = make(spark, tmp_path, dataid, attempt, rows, f"{place}/{ATTEMPTS}")
        held = fixed_path.lock(str(place), dataid)
        assert held is not None
        assert fixed_path.turn(str(place), dataid, location)
        os.close(held)
    make(spark, tmp_path, "d2", 4, 6, f"{place}/{ATTEMPTS}")  # an attempt that is not published
    found = spark.read.parquet(str(place))
    counted = {row["dataid"]: row["count"] for row in found.groupBy("dataid").count().collect()}
    assert counted == {"d1": 4, "d2": 5}
    assert parquet.read_table(place).num_rows == 9
    assert len(pd.read_parquet(place)) == 9
    assert arrow.dataset(place, partitioning="hive").count_rows() == 9
    assert len(list(place.glob("dataid=*/*.parquet"))) == 2
    for pattern in ("dataid=*/*.parquet", "*/*.parquet"):
        assert found_by_duckdb(place, pattern) == 9
    # DuckDB may not follow links below a `**`.
    assert found_by_duckdb(place) in {0, 9}


def found_by_duckdb(place: Path, pattern: str = "**/*.parquet") -> int:
    """The rows that DuckDB finds. Unlike Spark, it reads hidden files too."""
    try:
        found = duckdb.execute("SELECT count(*) FROM read_parquet(?)", [f"{place}/{pattern}"]).fetchone()
    except duckdb.IOException as error:
        assert "No files found" in str(error)  # noqa: PT017 - there is nothing, or there are rows
        return 0
    assert found is not None
    return int(found[0])
