"""Files whose columns differ from their dataset's schema: the difference is reported before any job code, for each format."""

from __future__ import annotations

import bz2
import gzip
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from dataflowd.flow.model import Dataset as Declared
from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import Chunk, Dataset, Input, Order, Output
from dataflowd.runner.execute import execute
from dataflowd.runner.rehearsal import Recorded
from dataflowd.sdk import jobs
from dataflowd.storage import files, stored_columns
from dataflowd.storage.partition.files import FileSource
from dataflowd.testing import run_job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = "id bigint, name string, amount double"
ROWS = "1,ann,2.5\n2,bob,3.5\n"


def source(kind: str = "csv", columns: str = SCHEMA, **options: Any) -> Dataset:
    header = {"header": True} if kind == "csv" else {}
    return Dataset(name="raw", format=kind, columns=columns, options=header | options)


def order(dataset: Dataset, root: Path, *places: Path) -> Order:
    chunks = tuple(Chunk(dataid=f"d{number}", location=str(place)) for number, place in enumerate(places, 1))
    return Order(
        attempt=7,
        jobid="copy",
        dataid="d1",
        tag="dataflow-test",
        code="dataflowd.jobs:copy",
        directory="",
        inputs={"raw": Input(dataset=dataset, chunks=chunks)},
        outputs={"out": Output(dataset=Dataset(name="out"), location=str(root / "out"))},
        allowed_roots=(str(root),),
    )


def refused(spark: SparkSession, wanted: Order) -> str:
    said = Recorded()
    result = execute(wanted, spark, said, threading.Event())
    assert (result["outcome"], result.get("code")) == ("FAILED", "WRONG_DATA"), result
    assert said.steps == ["prepare"]
    assert "quarantine" not in result
    return str(result["error"])


def rows(spark: SparkSession, wanted: Order) -> int:
    result = execute(wanted, spark, Recorded(), threading.Event())
    assert result["outcome"] == "DONE", result["error"]
    return int(result["outputs"]["out"]["rows"])


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (
            "name,id,amount",
            "column 1 is `name`, the schema says `id`, column 2 is `id`, the schema says `name`",
        ),
        ("id,name,total", "column 3 is `total`, the schema says `amount`; missing: `amount`; extra: `total`"),
        ("id,name", "missing: `amount`"),
        ("id,name,amount,note", "extra: `note`"),
        ("amount,name", "the columns are in another order; missing: `id`"),
        ("id,Name,AMOUNT", "differs in case: `Name` for `name`, `AMOUNT` for `amount`"),
        ("id,id,amount", "column 2 is `id`, the schema says `name`; missing: `name`; twice: `id`"),
        ("id,,amount", "column 2 is ``, the schema says `name`; missing: `name`; extra: ``"),
        ("id, name,amount", "extra: ` name`"),
        ("1,ann,2.5", "column 1 is `1`, the schema says `id`"),
        ("id,na\x1bme,amount", r"extra: `na\x1bme`"),
    ],
)
def test_a_header_with_other_columns_is_refused_with_their_names(
    spark: SparkSession, tmp_path: Path, header: str, says: str
) -> None:
    (tmp_path / "raw.csv").write_text(f"{header}\n{ROWS}")
    error = refused(spark, order(source(), tmp_path, tmp_path / "raw.csv"))
    assert "raw/d1: the header of raw.csv is not what the schema says: " in error
    assert says in error
    assert 'header_match = "position"' in error


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("\ufeffid,name,amount\n", {}),
        ('"id","name","amount"\r\n', {}),
        ("id;name;amount\n", {"sep": ";"}),
        ("id\tname\tamount\n", {"delimiter": r"\t"}),
        ("id||name||amount\n", {"sep": "||"}),
        ("\n\n# a comment\nid,name,amount\n", {"comment": "#"}),
        (" id , name , amount \n", {"ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}),
        ("'id','name','amount'\n", {"quote": "'"}),
        ("id,name,amount", {}),
    ],
)
def test_a_header_is_read_as_spark_reads_it(
    spark: SparkSession, tmp_path: Path, content: str, options: Mapping[str, Any]
) -> None:
    sep = {"\\t": "\t"}.get(str(options.get("delimiter")), options.get("sep", ","))
    text = content + ("" if content.endswith("amount") else ROWS.replace(",", sep))
    (tmp_path / "raw.csv").write_text(text, encoding="utf-8")
    expected = 0 if content.endswith("amount") else 2
    assert rows(spark, order(source(**options), tmp_path, tmp_path / "raw.csv")) == expected


def test_headers_of_compressed_and_empty_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "raw"
    place.mkdir()
    good = f"id,name,amount\n{ROWS}".encode()
    (place / "a.csv.gz").write_bytes(gzip.compress(good))
    (place / "b.csv.bz2").write_bytes(bz2.compress(good))
    (place / "c.csv").write_bytes(b"")
    (place / "_note").write_text("nothing of the data")
    assert rows(spark, order(source(), tmp_path, place)) == 4

    (place / "d.csv.gz").write_bytes(gzip.compress(b"id,amount,name\n1,2.5,ann\n"))
    assert "the header of d.csv.gz" in refused(spark, replace(order(source(), tmp_path, place), attempt=8))


def test_another_character_set_and_a_quoted_line_end_are_left_to_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "wide.csv").write_text(f"id,name,amount\n{ROWS}", encoding="utf-16")
    wide = source(encoding="UTF-16", multiLine=True)
    assert rows(spark, order(wide, tmp_path, tmp_path / "wide.csv")) == 2

    (tmp_path / "two.csv").write_text(f'id,"na\nme",amount\n{ROWS}')
    two = source(columns="id bigint, `na\nme` string, amount double", multiLine=True)
    assert rows(spark, replace(order(two, tmp_path, tmp_path / "two.csv"), attempt=8)) == 2


def test_every_file_of_every_chunk_is_compared(spark: SparkSession, tmp_path: Path) -> None:
    places = [tmp_path / f"d{number}" for number in range(1, 41)]
    for place in places:
        place.mkdir()
        for part in range(2):
            (place / f"part-{part}.csv").write_text(f"id,name,amount\n{ROWS}")
    assert rows(spark, order(source(), tmp_path, *places)) == 160
    (places[36] / "part-1.csv").write_text("id,amount,name\n1,2.5,ann\n")
    error = refused(spark, replace(order(source(), tmp_path, *places), attempt=8))
    assert "raw/d37: the header of part-1.csv" in error


def test_only_files_that_match_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "raw files"
    place.mkdir()
    (place / "a b.csv").write_text(f"id,name,amount\n{ROWS}")
    (place / "readme.txt").write_text("what this is\n")
    wanted = order(source(pathGlobFilter="*.csv"), tmp_path, place)
    assert rows(spark, wanted) == 2
    (place / "b.csv").write_text("name,id,amount\n")
    assert "the header of b.csv" in refused(spark, replace(wanted, attempt=8))


def test_a_column_that_stands_in_a_directory_is_not_in_the_header(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "raw" / "day=1").mkdir(parents=True)
    (tmp_path / "raw" / "day=1" / "part.csv").write_text(f"id,name,amount\n{ROWS}")
    wanted = order(source(columns=f"{SCHEMA}, day int"), tmp_path, tmp_path / "raw")
    assert rows(spark, wanted) == 2


def test_by_position_only_the_number_of_columns_counts(spark: SparkSession, tmp_path: Path) -> None:
    wanted = order(source(header_match="position"), tmp_path, tmp_path / "raw.csv")
    (tmp_path / "raw.csv").write_text(f"no,who,how much\n{ROWS}")
    assert rows(spark, wanted) == 2
    (tmp_path / "raw.csv").write_text("no,who\n1,ann\n")
    error = refused(spark, replace(wanted, attempt=8))
    assert "the header of raw.csv is not what the schema says: it has 2 columns, the schema has 3" in error


def test_off_and_without_a_header_or_a_schema_nothing_is_compared(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "raw.csv").write_text(f"a,b,c\n{ROWS}")
    datasets = [
        source(header_match="off"),
        replace(source(), options={}),
        replace(source(), columns=None),
    ]
    for dataset in datasets:
        stored_columns.check(spark, dataset, [Chunk(dataid="d1", location=str(tmp_path / "raw.csv"))])


def test_hadoop_reads_the_beginning_of_a_file_that_is_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id,name\n"))
    for name in ("a.csv", "a.csv.gz"):
        assert files.beginning(spark, f"file://{tmp_path}/{name}", 1000) == b"id,name\n"
    assert files.beginning(spark, f"file://{tmp_path}/a.csv", 2) == b"id"
    assert files.beginning(spark, f"file://{tmp_path}/gone.csv", 2) is None


def test_parquet_that_lacks_a_column_or_has_another_type_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "raw"
    place.mkdir()
    good = {
        "id": pa.array([1], pa.int32()),
        "name": ["ann"],
        "amount": pa.array([1.5], pa.float32()),
        "more": [1],
    }
    parquet.write_table(pa.table(good), place / "a.parquet")
    wanted = order(source("parquet"), tmp_path, place)
    assert rows(spark, wanted) == 1  # Spark reads int as bigint and float as double

    bad = {"ID": pa.array([1], pa.int64()), "amount": ["1.5"]}
    parquet.write_table(pa.table(bad), place / "b.parquet")
    error = refused(spark, replace(wanted, attempt=8))
    assert "raw/d1: what b.parquet holds is not what the schema says: missing: `name`" in error
    assert "`amount` is string, the schema says double" in error
    assert 'header_match = "off"' in error
    stored_columns.check(spark, source("parquet", header_match="off"), wanted.inputs["raw"].chunks)


@pytest.mark.parametrize(
    ("kind", "stored", "declared", "is_read"),
    [
        ("parquet", pa.int8(), "smallint", True),
        ("parquet", pa.int64(), "int", False),
        ("parquet", pa.int32(), "smallint", False),
        ("parquet", pa.int32(), "decimal(12,2)", True),
        ("parquet", pa.int32(), "decimal(9,2)", False),
        ("parquet", pa.int32(), "double", True),
        ("parquet", pa.decimal128(10, 2), "decimal(12,2)", True),
        ("parquet", pa.decimal128(10, 2), "decimal(10,1)", False),
        ("parquet", pa.decimal128(10, 2), "bigint", False),
        ("parquet", pa.timestamp("us", tz="UTC"), "timestamp", True),
        ("parquet", pa.timestamp("us"), "timestamp", True),
        ("parquet", pa.date32(), "timestamp", False),
        ("parquet", pa.string(), "date", False),
        ("parquet", pa.binary(), "string", True),
        ("parquet", pa.dictionary(pa.int32(), pa.string()), "string", True),
        ("parquet", pa.bool_(), "int", False),
        ("parquet", pa.uint64(), "decimal(20,0)", True),
        ("parquet", pa.list_(pa.int32()), "array<bigint>", True),
        ("parquet", pa.list_(pa.string()), "array<bigint>", False),
        ("parquet", pa.struct([("a", pa.int32())]), "struct<a: int>", True),
        ("parquet", pa.struct([("a", pa.int32())]), "struct<a: int, b: int>", False),
        ("parquet", pa.struct([("a", pa.int32())]), "string", False),
        ("orc", pa.int32(), "int", True),
        ("orc", pa.string(), "int", False),
    ],
)
def test_what_spark_reads_without_loss_is_no_other_type(  # noqa: PLR0913, PLR0917
    spark: SparkSession, tmp_path: Path, kind: str, stored: pa.DataType, declared: str, is_read: bool
) -> None:
    table = pa.table({"x": pa.array([None], stored)})
    write = parquet.write_table if kind == "parquet" else orc.write_table
    write(table, tmp_path / f"x.{kind}")
    chunk = Chunk(dataid="d1", location=str(tmp_path / f"x.{kind}"))
    dataset = source(kind, columns=f"x {declared}")
    if is_read:
        stored_columns.check(spark, dataset, [chunk])
        assert files.read(spark, dataset, [str(chunk.location)]).collect()[0]["x"] is None
    else:
        with pytest.raises(AttemptError, match=r"x`|x\.b`|x\.element`"):
            stored_columns.check(spark, dataset, [chunk])


def test_one_footer_is_enough_for_files_that_a_job_wrote(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "raw"
    spark.range(10).repartition(3).write.parquet(str(place))
    listed = tuple(file.document() for file in files.listing(spark, str(place)))
    chunk = Chunk(dataid="d1", location=str(place), files=listed)
    stored_columns.check(spark, source("parquet", columns="id bigint"), [chunk])
    with pytest.raises(AttemptError, match="missing: `added`"):
        stored_columns.check(spark, source("parquet", columns="id bigint, added string"), [chunk])


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([{"id": 1, "name": "ann", "amount": 2.5}], ""),
        ([{"id": 1, "name": "ann"}, {"id": 2}], ""),  # a missing field is NULL
        ([{"id": 1, "name": "ann", "amount": 2.5, "more": 1}], ""),
        ([{"id": 1, "name": "ann", "Amount": 2.5}], "missing: `amount`; instead there: `Amount`"),
        ([{"id": "1", "name": "ann", "amount": 2}], "`id` is text, the schema says bigint"),
        ([{"id": "1"}, {"id": 2}, "broken"], ""),  # some records fit; the others go to quarantine
        ([{"id": 1, "amount": [1]}], "`amount` is a list, the schema says double"),
        ([], ""),
    ],
)
def test_fields_of_json_are_sampled(
    spark: SparkSession, tmp_path: Path, records: list[Any], says: str
) -> None:
    text = "".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in records)
    (tmp_path / "raw.json").write_text(text)
    chunk = Chunk(dataid="d1", location=str(tmp_path / "raw.json"))
    if not says:
        stored_columns.check(spark, source("json"), [chunk])
        return
    with pytest.raises(AttemptError) as error:
        stored_columns.check(spark, source("json"), [chunk])
    assert error.value.message.endswith(f"raw/d1: what its records hold is not what the schema says: {says}")
    stored_columns.check(spark, source("json", header_match="off"), [chunk])


def test_json_over_several_lines_is_sampled_too(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "raw.json").write_text(json.dumps([{"id": "x"}, {"id": "y"}], indent=1))
    chunk = Chunk(dataid="d1", location=str(tmp_path / "raw.json"))
    with pytest.raises(AttemptError, match="`id` is text"):
        stored_columns.check(spark, source("json", columns="id int", multiLine=True), [chunk])


def test_a_split_a_test_and_data_that_is_adopted_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "d1.csv").write_text("name,id,amount\nann,1,2.5\n")
    with pytest.raises(AttemptError, match=r"raw: the header of d1\.csv"):
        FileSource(spark, source(), str(tmp_path / "d1.csv"), ["id"])

    declared = {
        "raw": Declared(name="raw", format="csv", columns=SCHEMA, options={"header": True}, checks={})
    }
    with pytest.raises(AttemptError, match="column 1 is `name`, the schema says `id`"):
        run_job(jobs.copy, spark, {"raw": tmp_path / "d1.csv"}, ["out"], datasets=declared)

    output = Output(dataset=source(), location=f"{tmp_path}/{{dataid}}.csv")
    adopting = replace(
        order(source(), tmp_path), inputs={}, outputs={"raw": output}, code="dataflowd.jobs:validate"
    )
    result = execute(adopting, spark, Recorded(), threading.Event())
    assert (result["outcome"], result["code"]) == ("FAILED", "WRONG_DATA")
    assert "raw/d1: the header of d1.csv" in result["error"]
