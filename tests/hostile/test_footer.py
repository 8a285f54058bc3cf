"""A data file names a user-defined type in its footer. PySpark would import the module of that type."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from dataflowd.model.work_order import Chunk, Dataset, Input, Order, Output
from dataflowd.runner.execute import execute
from dataflowd.runner.rehearsal import Recorded
from dataflowd.storage.files import SPARK_SCHEMA_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

READS_ITSELF = """
from dataflowd import Context
def work(ctx: Context) -> None:
    frame = ctx.spark.read.parquet(ctx.input("raw").location)
    ctx.write("out", frame.select(frame.columns[0]))
"""
OWN_TYPE = """
from pyspark.sql.types import LongType, UserDefinedType
from dataflowd import Context
class Money(UserDefinedType):
    @classmethod
    def sqlType(cls):
        return LongType()
    @classmethod
    def module(cls):
        return __name__
    def deserialize(self, datum):
        return datum
def work(ctx: Context) -> None:
    frame = ctx.read("raw")
    assert type(frame.schema["a"].dataType) is Money
    ctx.write("out", ctx.spark.range(1))
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of modules as in a flow. `canary` and `harmless.canary` leave a marker when they are imported."""
    place = tmp_path / "code"
    (place / "harmless").mkdir(parents=True)
    (place / "harmless" / "__init__.py").write_text("")
    for module in ("canary.py", "harmless/canary.py"):
        (place / module).write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(place)
    before = set(sys.modules)
    yield place
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"canary", "harmless", "reads_itself", "own_type"}:
            del sys.modules[name]


def schema(name: str) -> dict[str, Any]:
    kind = {"type": "udt", "pyClass": name, "serializedClass": "", "sqlType": "long"}
    return {
        "type": "struct",
        "fields": [{"name": "a", "type": kind, "nullable": True, "metadata": {}}],
    }


def write(directory: Path, name: str, file: str = "part-1.parquet") -> str:
    """Writes a Parquet file whose footer gives its column this type."""
    directory.mkdir(parents=True, exist_ok=True)
    noted = {SPARK_SCHEMA_KEY: json.dumps(schema(name)).encode()}
    parquet.write_table(pa.table({"a": [1, 2]}).replace_schema_metadata(noted), directory / file)
    return str(directory)


def order(root: Path, *locations: str, options: dict[str, Any] | None = None, code: str = "") -> Order:
    chunks = tuple(Chunk(dataid=f"d{number}", location=location) for number, location in enumerate(locations))
    return Order(
        attempt=7,
        jobid="copy",
        dataid="d1",
        tag="dataflow-test",
        code=code or "dataflowd.jobs:copy",
        directory=str(root / "code"),
        inputs={"raw": Input(dataset=Dataset(name="raw", options=options or {}), chunks=chunks)},
        outputs={"out": Output(dataset=Dataset(name="out"), location=str(root / "out"))},
        allowed_roots=(str(root),),
    )


def run(order: Order, spark: SparkSession) -> dict[str, Any]:
    return execute(order, spark, Recorded(), threading.Event())


def refused(found: dict[str, Any], root: Path, name: str) -> None:
    assert not (root / "marker").exists()
    assert (found["outcome"], found["code"]) == ("FAILED", "WRONG_DATA")
    assert f"names the type '{name}'" in found["error"]


@pytest.mark.parametrize("name", ["canary.Evil", "harmless.canary", "harmless.canary.Evil", "canary."])
@pytest.mark.usefixtures("code")
def test_a_footer_has_no_module_imported(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """If the module of a name is already imported, Python could still import a module below it."""
    import harmless  # type: ignore[import-not-found]  # noqa: F401, PLC0415

    found = run(order(tmp_path, write(tmp_path / "raw", name)), spark)
    refused(found, tmp_path, name)
    assert f"the file {tmp_path}/raw/part-1.parquet names" in found["error"]


@pytest.mark.usefixtures("code")
def test_no_module_is_imported_where_spark_itself_infers_the_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With options, with several locations, and in a hidden file beside the data."""
    for name in ("one", "two"):
        write(tmp_path / name, "canary.Evil")
    spark.range(2).write.parquet(str(tmp_path / "clean"))
    write(tmp_path / "clean", "canary.Evil", "_common_metadata")
    several = order(tmp_path, str(tmp_path / "one"), str(tmp_path / "two"))
    merged = order(tmp_path, str(tmp_path / "one"), options={"mergeSchema": True})
    hidden = order(tmp_path, str(tmp_path / "clean"), options={"mergeSchema": False})
    for one in (several, merged, hidden):
        found = run(one, spark)
        refused(found, tmp_path, "canary.Evil")
        assert "dataset raw: a file at" in found["error"]


def test_nor_where_the_job_reads_the_file_itself(spark: SparkSession, tmp_path: Path, code: Path) -> None:
    (code / "reads_itself.py").write_text(READS_ITSELF)
    location = write(tmp_path / "raw", "canary.Evil")
    refused(run(order(tmp_path, location, code="reads_itself:work"), spark), tmp_path, "canary.Evil")


def test_types_of_sparks_own_and_of_the_jobs_own_are_read(
    spark: SparkSession, tmp_path: Path, code: Path
) -> None:
    from pyspark.ml.linalg import Vectors  # noqa: PLC0415

    spark.createDataFrame([(Vectors.dense([1.0]),)], ["v"]).write.parquet(str(tmp_path / "vectors"))
    assert run(order(tmp_path, str(tmp_path / "vectors")), spark)["outcome"] == "DONE"
    (code / "own_type.py").write_text(OWN_TYPE)
    location = write(tmp_path / "raw", "own_type.Money")
    again = order(tmp_path, location, code="own_type:work")
    found = run(
        Order(**{**vars(again), "attempt": 8}),
        spark,
    )
    assert found["outcome"] == "DONE", found
