"""The check row_count counts every record: written, in quarantine, or dropped by a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dataflowd import Context, node
from dataflowd.flow.model import Dataset
from dataflowd.model.faults import AttemptError
from dataflowd.testing import run_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from dataflowd.testing import Ran

COUNTED = {"row_count": {"input": "raw", "tolerance": 0, "severity": "error"}}
ROWS = "id,amount,shop\n" + "".join(f"{number},{number % 10},{number % 4}\n" for number in range(40)) + "x\n"


def declared(*outputs: str) -> dict[str, Dataset]:
    raw = Dataset(
        name="raw",
        format="csv",
        columns="id int, amount int, shop int",
        options={"header": "true"},
        checks={},
    )
    return {"raw": raw} | {name: Dataset(name=name, options={}, checks=COUNTED) for name in outputs}


def chain(ctx: Context) -> None:
    paid = ctx.quarantine(ctx.read("raw"), unless="amount > 0", item="id", reason="nothing paid")
    ctx.write("out", ctx.quarantine(paid, unless="amount < 9", item="id", reason="too much"))


def behind_a_join(ctx: Context) -> None:
    paid = ctx.quarantine(ctx.read("raw"), unless="amount > 0", item="id", reason="nothing paid")
    shops = ctx.spark.createDataFrame([(0, "a"), (1, "b"), (2, "c")], "shop int, name string")
    named = paid.join(shops, "shop", "left").repartition(3)
    ctx.write("out", ctx.quarantine(named, unless="name IS NOT NULL", item="id", reason="unknown shop"))


def in_nodes(ctx: Context) -> None:
    ctx.write("out", _shopped(ctx, _paid(ctx, ctx.read("raw"))))


@node
def _paid(ctx: Context, rows: DataFrame) -> DataFrame:
    return ctx.quarantine(rows, unless="amount > 0", item="id", reason="nothing paid")


@node
def _shopped(ctx: Context, rows: DataFrame) -> DataFrame:
    return ctx.quarantine(rows.cache(), unless="shop < 3", item="id", reason="unknown shop").repartition(2)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw.csv"
    path.write_text(ROWS)
    return path


@pytest.mark.parametrize("function", [chain, behind_a_join, in_nodes])
def test_records_that_were_dropped_at_any_quarantine_are_accounted_for(
    spark: SparkSession, raw: Path, function: Callable[[Context], None]
) -> None:
    def made(resolved: list[Any]) -> Ran:
        return run_job(function, spark, {"raw": raw}, ["out"], datasets=declared("out"), resolved=resolved)

    first = made([])
    reasons = {bad["reason"] for bad in first.quarantine}
    assert len(reasons) == 3  # one of the reader, and one of each ctx.quarantine
    dropped = made([(bad, None) for bad in first.quarantine])
    assert dropped.quarantine == []
    assert dropped.outputs["out"].count() == first.outputs["out"].count()
    [count] = [check for check in dropped.checks if check["name"] == "row_count"]
    assert count["observed"] == f"{first.outputs['out'].count()}, {len(first.quarantine)} dropped"
    # One of each reason is repaired, one stays open, the others are dropped.
    of_each = {reason: [bad for bad in first.quarantine if bad["reason"] == reason] for reason in reasons}
    repair = {"id": 7, "amount": 5, "shop": 1} | ({"name": "b"} if function is behind_a_join else {})
    mixed: list[Any] = [(bads[0], repair) for bads in of_each.values()]
    mixed += [(bad, None) for bads in of_each.values() for bad in bads[2:]]
    made(mixed)


def test_records_set_aside_for_one_output_do_not_count_for_another(spark: SparkSession, raw: Path) -> None:
    def two(ctx: Context) -> None:
        rows = ctx.read("raw")
        ctx.write("paid", ctx.quarantine(rows, unless="amount > 0", item="id", reason="nothing paid"))
        ctx.write("shops", ctx.quarantine(rows, unless="shop < 3", item="id", reason="unknown shop"))

    ran = run_job(two, spark, {"raw": raw}, ["paid", "shops"], datasets=declared("paid", "shops"))
    observed = {check["dataset"]: check["observed"] for check in ran.checks if check["name"] == "row_count"}
    assert observed == {"paid": "36, 5 in quarantine", "shops": "30, 11 in quarantine"}


def test_a_record_that_got_lost_is_found_also_beside_dropped_ones(spark: SparkSession, raw: Path) -> None:
    def lossy(ctx: Context) -> None:
        paid = ctx.quarantine(ctx.read("raw"), unless="amount > 0", item="id", reason="nothing paid")
        ctx.write("out", paid.where("id <> 11"))

    def honest(ctx: Context) -> None:
        ctx.write(
            "out", ctx.quarantine(ctx.read("raw"), unless="amount > 0", item="id", reason="nothing paid")
        )

    first = run_job(honest, spark, {"raw": raw}, ["out"], datasets=declared("out"))
    resolved = [(bad, None) for bad in first.quarantine]
    with pytest.raises(AttemptError, match="observed 35, 5 dropped, expected 41 rows of raw"):
        run_job(lossy, spark, {"raw": raw}, ["out"], datasets=declared("out"), resolved=resolved)
