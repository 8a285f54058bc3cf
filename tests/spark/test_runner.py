"""What a runner refuses before any job code runs, and how an order becomes a result. All runs in this process, on the shared Spark."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dataflowd.model import formats
from dataflowd.model.work_order import Chunk, Dataset, Input, Order, Output
from dataflowd.runner import wire
from dataflowd.runner.execute import execute
from dataflowd.runner.rehearsal import Recorded
from dataflowd.storage import files
from tests.hostile import corpus

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def order(tmp_path: Path) -> Order:
    (tmp_path / "raw.csv").write_text("1\n2\n")
    return Order(
        attempt=7,
        jobid="copy",
        dataid="d1",
        tag="dataflow-test",
        code="dataflowd.jobs:copy",
        directory="",
        inputs={
            "raw": Input(
                dataset=Dataset(name="raw", format="csv", columns="id int"),
                chunks=(Chunk(dataid="d1", location=str(tmp_path / "raw.csv")),),
            )
        },
        outputs={"out": Output(dataset=Dataset(name="out"), location=str(tmp_path / "out"))},
        allowed_roots=(str(tmp_path),),
    )


def run(order: Order, spark: SparkSession) -> dict[str, Any]:
    return execute(order, spark, Recorded(), threading.Event())


def with_chunk(order: Order, **changes: Any) -> Order:
    [chunk] = order.inputs["raw"].chunks
    return replace(order, inputs={"raw": replace(order.inputs["raw"], chunks=(replace(chunk, **changes),))})


def test_an_order_is_the_same_after_the_wire(order: Order) -> None:
    [message] = wire.Lines().feed(wire.encode({"type": "order", "order": order.document()}))
    assert Order.parse(message["order"]) == order


def test_the_four_steps_are_announced_and_the_manifest_describes_the_files(
    spark: SparkSession, order: Order
) -> None:
    said = Recorded()
    result = execute(order, spark, said, threading.Event())
    assert said.steps == ["prepare", "run", "validate", "publish"]
    assert result["outcome"] == "DONE"
    manifest = result["outputs"]["out"]
    again = Input(
        dataset=order.outputs["out"].dataset,
        chunks=(
            Chunk(
                dataid="d1",
                location=manifest["location"],
                files=tuple(manifest["files"]),
                rows=manifest["rows"],
            ),
        ),
    )
    copied = replace(order, attempt=8, inputs={"out2": again})
    assert run(copied, spark)["outputs"]["out"]["rows"] == 2


def test_an_attempt_never_writes_where_something_lies(spark: SparkSession, order: Order) -> None:
    assert run(order, spark)["outcome"] == "DONE"
    again = run(order, spark)
    assert again["code"] == "LOCKED"
    assert "which this attempt alone may write, exists already" in again["error"]


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"location": "{root}/gone.csv"}, "INVALID_PATH", "there is nothing at"),
        ({"location": "/etc/passwd"}, "INVALID_PATH", "outside the allowed roots"),
        ({"location": "{root}/../x.csv"}, "INVALID_PATH", "has '..' in it"),
        ({"validated": False}, "NOT_VALIDATED", "raw/d1 is not validated"),
        ({"files": ({"path": "", "bytes": 5},)}, "WRONG_DATA", "1 of another size"),
        ({"files": ({"path": "part-0", "bytes": 4},)}, "WRONG_DATA", "1 missing, such as part-0"),
    ],
)
def test_a_wrong_input_stops_the_attempt_before_job_code(  # noqa: PLR0913, PLR0917
    spark: SparkSession, order: Order, tmp_path: Path, changes: dict[str, Any], code: str, says: str
) -> None:
    if "location" in changes:
        changes = {"location": changes["location"].format(root=tmp_path)}
    said = Recorded()
    result = execute(with_chunk(order, **changes), spark, said, threading.Event())
    assert (result["outcome"], result["code"]) == ("FAILED", code)
    assert says in result["error"]
    assert said.steps == ["prepare"]


CHECKED = {
    "min_rows": {"value": 1, "severity": "error"},
    "not_null": {"columns": ["id"], "severity": "error"},
    "range": {"id": {"min": 0, "max": 9, "severity": "error"}},
    "unique": {"columns": ["id"], "severity": "warn"},
    "row_count": {"input": "elsewhere", "tolerance": 0, "severity": "error"},
}


def checked(order: Order, checks: dict[str, Any] | None = None, **changes: Any) -> Order:
    """The order with an input from outside whose dataset has checks."""
    source = with_chunk(order, **changes).inputs["raw"]
    dataset = replace(source.dataset, checks=CHECKED if checks is None else checks)
    return replace(order, inputs={"raw": replace(source, dataset=dataset)})


def test_checks_of_what_comes_from_outside_are_judged_before_job_code(
    spark: SparkSession, order: Order, tmp_path: Path
) -> None:
    good = run(checked(order), spark)
    assert good["outcome"] == "DONE"
    assert good["judged"] == [{"dataset": "raw", "dataid": "d1", "passed": True, "said": ""}]
    assert {one["name"]: one["passed"] for one in good["checks"] if one["dataset"] == "raw"} == {
        "not_null(id)": True,
        "range(id)": True,
        "min_rows": True,
        "unique(id)": True,
    }
    (tmp_path / "raw.csv").write_text("1\n1\n12\nx\n")
    said = Recorded()
    bad = execute(replace(checked(order), attempt=8), spark, said, threading.Event())
    assert (bad["outcome"], bad["code"], said.steps) == ("FAILED", "NOT_VALIDATED", ["prepare"])
    assert (
        "raw/d1 does not pass the checks of its dataset: not_null(id): observed 1 of 4 rows" in bad["error"]
    )
    assert "range(id): observed 1 of 4 rows, such as '12', expected min 0, max 9" in bad["error"]
    assert [one["passed"] for one in bad["judged"]] == [False]
    assert {one["name"] for one in bad["checks"] if not one["passed"]} == {
        "not_null(id)",
        "range(id)",
        "unique(id)",
    }
    # The verdict on a version that was judged before counts. A forced run ignores the checks.
    assert "judged" not in run(replace(checked(order, judged=True), attempt=9), spark)
    refused = run(replace(checked(order, judged=False), attempt=10), spark)
    assert (refused["code"], "its checks failed before" in refused["error"]) == ("NOT_VALIDATED", True)
    assert run(replace(checked(order), attempt=11, forced=True), spark)["outcome"] == "DONE"
    unknown = {"not_null": {"columns": ["idd"], "severity": "error"}}
    missing = run(replace(checked(order, unknown), attempt=12), spark)
    assert (missing["code"], "did you mean 'id'" in missing["error"]) == ("NOT_VALIDATED", True)


@pytest.mark.parametrize(("kind", "location"), [("delta", "{root}/out"), ("parquet", "s3a://bucket/out")])
def test_a_missing_jar_is_named_before_anything_runs(
    spark: SparkSession, order: Order, tmp_path: Path, kind: str, location: str
) -> None:
    output = Output(dataset=Dataset(name="out", format=kind), location=location.format(root=tmp_path))
    wanted = replace(order, outputs={"out": output}, allowed_roots=(str(tmp_path), "s3a://bucket"))
    result = run(wanted, spark)
    assert (result["code"], result["retry"]) == ("MISSING_JARS", False)
    assert "spark.jars.packages" in result["error"]


def test_an_unknown_option_is_refused(spark: SparkSession, order: Order) -> None:
    raw = replace(order.inputs["raw"].dataset, options={"mode": "DROPMALFORMED"})
    result = run(replace(order, inputs={"raw": replace(order.inputs["raw"], dataset=raw)}), spark)
    assert result["code"] == "INVALID_OPTION"


def test_the_job_validate_publishes_existing_files_in_place(
    spark: SparkSession, order: Order, tmp_path: Path
) -> None:
    checks = {"min_rows": {"value": 2, "severity": "error"}}
    dataset = Dataset(name="raw", format="csv", columns="id int", checks=checks)
    adopted = replace(
        order,
        code="dataflowd.jobs:validate",
        inputs={},
        outputs={"raw": Output(dataset=dataset, location=f"{tmp_path}/{{dataid}}.csv")},
    )
    assert run(adopted, spark)["code"] == "DATA_NOT_READY"
    (tmp_path / "d1.csv").write_text("1\n2\nx\n")
    result = run(adopted, spark)
    assert result["outcome"] == "DONE"
    manifest = result["outputs"]["raw"]
    assert (manifest["location"], manifest["rows"]) == (f"{tmp_path}/d1.csv", 2)
    assert manifest["files"] == [{"path": "", "bytes": 6}]
    assert [item["details"]["record"] for item in result["quarantine"]] == ["x"]
    (tmp_path / "d1.csv").write_text("1\nx\n")
    failed = run(adopted, spark)
    assert failed["code"] == "CHECK_FAILED"
    assert failed["checks"][0]["observed"] == "1"


def test_messages_are_bounded_and_have_a_type() -> None:
    lines = wire.Lines()
    assert lines.feed(b'{"type":"a"}\n{"ty') == [{"type": "a"}]
    assert lines.feed(b'pe":"b"}\n') == [{"type": "b"}]
    with pytest.raises(wire.WireError, match="an object with a type"):
        lines.feed(b"[1]\n")
    with pytest.raises(wire.WireError, match="longer than"):
        wire.Lines().feed(b"x" * (wire.LINE_BYTES + 1))


def with_dataset(order: Order, **changes: Any) -> Order:
    source = order.inputs["raw"]
    return replace(order, inputs={"raw": replace(source, dataset=replace(source.dataset, **changes))})


def with_output(order: Order, location: str, **dataset: Any) -> Order:
    return replace(order, outputs={"out": Output(dataset=Dataset(name="out", **dataset), location=location)})


def test_no_schema_that_an_attacker_has_stored_runs_anything(spark: SparkSession, order: Order) -> None:
    for number, columns in enumerate(corpus.COLUMNS, start=100):
        result = run(with_dataset(replace(order, attempt=number), columns=columns), spark)
        assert result["outcome"] == "DONE" or result["code"] == "JOB_FAILED", columns
    jvm: Any = spark.sparkContext._jvm
    assert jvm.java.lang.System.getProperty("hostile") is None


def test_no_option_or_location_that_an_attacker_has_stored_reaches_spark(
    spark: SparkSession, order: Order, tmp_path: Path
) -> None:
    """tests/hostile tests links, without Spark."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for path in (root, outside):
        path.mkdir()
    inside = replace(order, allowed_roots=(str(root),))
    for name in corpus.OPTIONS:
        assert run(with_dataset(order, options={name: "x"}), spark)["code"] == "INVALID_OPTION", name
    for kind, name, value in corpus.OPTION_VALUES:
        if kind in formats.FILES:
            wanted = with_output(order, f"{root}/out", format=kind, options={name: value})
            assert run(wanted, spark)["code"] == "INVALID_OPTION", (name, value)
    for location in corpus.locations(root, outside):
        if not any(link in location for link in ("/link", "/chain", "/relative", "/proc/environ")):
            assert run(with_chunk(inside, location=location), spark)["code"] == "INVALID_PATH", location
            assert run(with_output(replace(inside, inputs={}), location), spark)["code"] == "INVALID_PATH", (
                location
            )
    assert [*root.iterdir(), *outside.iterdir()] == []


def test_a_directory_that_is_named_like_a_pattern_is_refused(
    spark: SparkSession, order: Order, tmp_path: Path
) -> None:
    """Spark would expand the pattern and read another directory."""
    (tmp_path / "root" / "{x,.." / "outside}").mkdir(parents=True)
    wanted = replace(order, allowed_roots=(f"{tmp_path}/root",))
    assert (
        run(with_chunk(wanted, location=f"{tmp_path}/root/{{x,../outside}}"), spark)["code"] == "INVALID_PATH"
    )


def test_reading_files_that_spark_has_written_starts_no_spark_job_for_the_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql("SELECT 1 AS id, 'a' AS `a.b`, 1.50BD AS amount, array(named_struct('x', 1)) AS xs")
    frame.write.parquet(str(tmp_path / "plain"))
    frame.write.partitionBy("id").parquet(str(tmp_path / "parted"))
    group = "what reading starts"
    spark.sparkContext.setJobGroup(group, "")
    try:
        found = files.read(spark, Dataset(name="out"), [str(tmp_path / "plain")])
        assert spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert found.schema == spark.read.parquet(str(tmp_path / "plain")).schema
    assert found.collect() == frame.collect()
    parted = files.read(spark, Dataset(name="out"), [str(tmp_path / "parted")])
    assert parted.columns == ["a.b", "amount", "xs", "id"]


def test_evidence_is_reported_before_the_job_begins_also_when_the_input_is_refused(
    spark: SparkSession, order: Order, tmp_path: Path
) -> None:
    said = Recorded()
    assert execute(order, spark, said, threading.Event())["outcome"] == "DONE"
    found = said.evidence["inputs"]["raw"]
    assert (found["chunks"], found["files"], found["bytes"]) == (1, 1, 4)
    assert found["listed"][0]["location"] == str(tmp_path / "raw.csv")
    assert said.evidence["outputs"] == {"out": f"{tmp_path}/.attempts/out/dataid=d1/attempt=7"}
    (tmp_path / "raw.csv").unlink()
    refused = Recorded()
    assert execute(replace(order, attempt=8), spark, refused, threading.Event())["outcome"] == "FAILED"
    assert (refused.evidence["inputs"], refused.steps) == ({"raw": {"note": "nothing is there"}}, ["prepare"])
