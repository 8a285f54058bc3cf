"""Replays repaired records of a rowwise job alone: the result is the same as when the whole chunk is made again."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dataflowd import Context, job, node
from dataflowd.model.work_order import Chunk, Dataset, Input, Order, Output, Replay
from dataflowd.runner.execute import execute
from dataflowd.runner.rehearsal import Recorded

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "id bigint, amount double, tags array<string>, day date"
ROW_COUNT = {"row_count": {"input": "raw", "tolerance": 0, "severity": "error"}}
UNIQUE = {
    "unique": {"columns": ["id"], "severity": "error"},
    "not_null": {"columns": ["id"], "severity": "error"},
}
LINES = (
    '{"id": 1, "amount": 1.5, "tags": ["a"], "day": "2026-01-01"}',
    '{"id": 2, "amount": -1, "day": "2026-01-02"}',
    '{"id": "x", "amount": 3, "tags": [], "day": "2026-01-03"}',
    '{"id": 4, "amount": 1e300, "tags": ["q\\"", null], "day": "2026-01-04"}',
    '{"id": 5, "amount": -5}',
    '{"id": 6, "amount": -6}',
)


@node
def doubled(_: Context, rows: DataFrame) -> DataFrame:
    return rows.selectExpr("id", "amount * 2 AS twice", "tags", "day")


@job
def clean(ctx: Context) -> None:
    good = ctx.quarantine(ctx.read("raw"), unless="amount > 0", item="id", reason="no amount")
    ctx.write("out", doubled(ctx, good))


@job
def timed(ctx: Context) -> None:
    rows = ctx.read("raw").selectExpr("*", "timestamp_micros(id) AS at")
    ctx.write("out", ctx.quarantine(rows, unless="amount > 0", item="id", reason="no amount"))


@job
def twice(ctx: Context) -> None:
    good = ctx.quarantine(ctx.read("raw"), unless="amount > 0", item="id", reason="no amount")
    ctx.write("out", ctx.quarantine(good, unless="amount > 1", item="id", reason="no amount"))


@pytest.fixture(params=["parquet", "orc", "json"])
def order(tmp_path: Path, request: pytest.FixtureRequest) -> Order:
    (tmp_path / "raw.json").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    source = Dataset(name="raw", format="json", columns=COLUMNS)
    made = Dataset(name="out", format=getattr(request, "param", "parquet"), checks=ROW_COUNT | UNIQUE)
    return Order(
        attempt=1,
        jobid="clean",
        dataid="d1",
        tag="dataflow-test",
        code=f"{__name__}:clean",
        directory="",
        inputs={
            "raw": Input(dataset=source, chunks=(Chunk(dataid="d1", location=str(tmp_path / "raw.json")),))
        },
        outputs={"out": Output(dataset=made, location=str(tmp_path / "out"))},
        allowed_roots=(str(tmp_path),),
    )


def run(order: Order, spark: SparkSession) -> tuple[dict[str, Any], list[str]]:
    said = Recorded()
    result = execute(order, spark, said, threading.Event())
    assert result["outcome"] == "DONE", result["error"]
    return result, [line for line in said.lines if line.startswith("replay")]


def resolved(first: dict[str, Any], fixes: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """The records as dataflow._row_replay gives them; a fix of None drops a record."""
    return tuple(
        {
            "code": bad["code"],
            "reason": bad["reason"],
            "mark": bad["details"]["mark"],
            "is_dropped": fixes[bad["item"]] is None,
            "repaired": fixes[bad["item"]],
            "columns": bad["details"].get("parsed") or bad["details"]["record"],
            "text": bad["details"]["record"] if isinstance(bad["details"]["record"], str) else None,
        }
        for bad in first["quarantine"]
        if bad["item"] in fixes
    )


def replayed(order: Order, first: dict[str, Any], fixes: dict[str, Any], **changes: Any) -> Order:
    made = first["outputs"]["out"]
    dropped = sum(fix is None for fix in fixes.values())
    told = Replay(
        attempt=order.attempt,
        code_hash=None,
        config_hash=None,
        version=1,
        files=tuple(made["files"]),
        rows=made["rows"],
        columns=made["columns"],
        inputs=("raw",),
        nodes=tuple(first["nodes"]),
        records=resolved(first, fixes),
        dropped=dropped,
        aside=len(first["quarantine"]) - len(fixes),
    )
    marks = tuple({"mark": each["mark"], "repaired": each["repaired"]} for each in told.records)
    return replace(order, attempt=order.attempt + 1, replay=replace(told, **changes), resolved=marks)


def rows_of(spark: SparkSession, result: dict[str, Any], order: Order) -> list[str]:
    made = order.outputs["out"].dataset
    found = (
        spark.read.schema(result["outputs"]["out"]["columns"])
        .format(made.format)
        .load(result["outputs"]["out"]["location"])
    )
    return sorted(row[0] for row in found.selectExpr("to_json(struct(*))").collect())


def counts(result: dict[str, Any]) -> list[Any]:
    keys = ("node", "parent", "sources", "items", "successes", "failures")
    return [tuple(each[key] for key in keys) for each in result["nodes"]]


def test_replaying_rows_makes_the_same_as_making_the_whole_chunk(spark: SparkSession, order: Order) -> None:
    first, _ = run(order, spark)
    broken = next(bad["item"] for bad in first["quarantine"] if bad["code"] == "MALFORMED")
    asked = replayed(order, first, {"2": {"amount": "20.5"}, broken: {"id": "3"}})
    second, said = run(asked, spark)
    assert said == ["replay rows: 2 records, added to version 1"]
    assert (second["replayed"], second["applied"], second["quarantine"]) == (True, True, [])
    whole, said = run(replace(asked, attempt=9, replay=None), spark)
    assert said == []
    assert (
        second["outputs"]["out"]["rows"]
        == whole["outputs"]["out"]["rows"]
        == first["outputs"]["out"]["rows"] + 2
    )
    assert rows_of(spark, second, order) == rows_of(spark, whole, order)
    assert second["checks"] == whole["checks"]
    assert counts(second) == counts(whole)
    # A second replay on top of the first: a dropped record adds no row, and row_count counts it.
    second["quarantine"] = [bad for bad in first["quarantine"] if bad["item"] in {"5", "6"}]
    third, said = run(replayed(asked, second, {"5": None}), spark)
    assert said == ["replay rows: 1 record, added to version 1"]
    assert rows_of(spark, third, order) == rows_of(spark, whole, order)
    [row_count] = [check for check in third["checks"] if check["name"] == "row_count"]
    assert (row_count["passed"], row_count["observed"]) == (True, "4, 1 in quarantine, 1 dropped")


def test_a_repair_that_repairs_nothing_is_set_aside_again_and_checks_see_the_whole(
    spark: SparkSession, order: Order
) -> None:
    first, _ = run(order, spark)
    second, _ = run(replayed(order, first, {"2": {"amount": "-3"}}), spark)
    assert [bad["item"] for bad in second["quarantine"]] == ["2"]
    assert second["outputs"]["out"]["rows"] == first["outputs"]["out"]["rows"]
    twin = replace(replayed(order, first, {"2": {"amount": "3", "id": "1"}}), attempt=3)
    result = execute(twin, spark, Recorded(), threading.Event())
    assert (result["code"], "unique" in result["error"]) == ("CHECK_FAILED", True)


@pytest.mark.parametrize("order", ["parquet"], indirect=True)
@pytest.mark.parametrize(
    ("code", "changes", "why"),
    [
        ("timed", {}, "JSON does not hold at timestamp exactly"),
        ("twice", {}, "two places set records aside as 'no amount'"),
        ("clean", {"columns": "id int"}, "the published rows have the columns id int"),
        ("clean", {"attempt": 99}, "there is nothing at"),
        ("clean", {"files": ()}, "are not those that were published"),
        ("clean", {"records": "another reason"}, "no place sets records aside as 'another reason' any more"),
        ("clean", {"records": "another mark"}, "a record cannot be built again as it was"),
    ],
)
def test_when_rows_cannot_be_added_exactly_the_same_attempt_makes_the_whole_chunk(
    spark: SparkSession, order: Order, code: str, changes: dict[str, Any], why: str
) -> None:
    order = replace(order, code=f"{__name__}:{code}")
    first, _ = run(order, spark)
    if "records" in changes:
        [record] = resolved(first, {"2": {"amount": "2"}})
        told = {"another reason": {"reason": "another reason"}, "another mark": {"mark": "x"}}
        changes = {"records": (record | told[changes["records"]],)}
    second, [said] = run(replayed(order, first, {"2": {"amount": "2"}}, **changes), spark)
    assert said.startswith("replay whole: ")
    assert why in said
    assert "replayed" not in second
    assert second["outputs"]["out"]["rows"] == first["outputs"]["out"]["rows"] + 1
    assert len(second["quarantine"]) == len(first["quarantine"]) - 1


def test_a_replay_is_the_same_after_the_wire(order: Order) -> None:
    told = Replay(
        attempt=1,
        code_hash="k",
        config_hash=None,
        version=1,
        files=({"path": "a", "bytes": 1},),
        rows=1,
        columns="id bigint",
        inputs=("raw",),
        nodes=(),
        records=(),
        dropped=0,
        aside=0,
    )
    asked = replace(order, replay=told)
    assert Order.parse(asked.document()) == asked
