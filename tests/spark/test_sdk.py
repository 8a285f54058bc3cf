"""Tests dataflowd.testing: what the author of a job sees, on real Spark and without a daemon."""

from __future__ import annotations

import json
import sys
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from pyspark.sql import functions

import dataflowd.flow
from dataflowd import Context, job, node
from dataflowd.cli import quarantine_file as records
from dataflowd.flow.model import Dataset
from dataflowd.host.settings import Settings
from dataflowd.model.faults import AttemptError
from dataflowd.runner import file_checks, jobcode
from dataflowd.sdk import _quarantine as sieves
from dataflowd.sdk import jobs
from dataflowd.storage import checks
from dataflowd.testing import Ran, run_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from dataflowd.flow import Flow

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
RAW = """order_id,customer,amount,ordered_at
1,ann,10.00,2026-01-01T08:00:00
2,bob,20.00,2026-01-01T09:00:00
3,ann,-5.00,2026-01-01T10:00:00
4,eve,xx,2026-01-01T10:00:00
5,eve
6,eve,1.00,2026-01-01T10:00:00,more
7,ann,2.50,2026-01-01T11:00:00
7,ann,2.50,2026-01-01T11:00:00
8,bob,3.00,2025-12-30T11:00:00
9,bob,4.00,2025-12-20T11:00:00
"""


def dataset(name: str, **known: Any) -> Dataset:
    return Dataset(name=name, **({"options": {}, "checks": {}} | known))


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(100).selectExpr("id", "id % 10 AS digit", "if(id = 13, NULL, 'x' || id) AS name")


@job
def forward(ctx: Context) -> None:
    ctx.write("out", ctx.read("numbers"))


def test_the_example_cleans_a_real_file(spark: SparkSession, tmp_path: Path) -> None:
    flow = dataflowd.flow.load(QUICKSTART / "flow.toml", Settings(data_dir=tmp_path))
    (tmp_path / "raw.csv").write_text(RAW)
    function = jobcode.named("jobs:clean_orders", str(QUICKSTART))
    try:
        ran = run_job(
            function,
            spark,
            {"raw_orders": tmp_path / "raw.csv"},
            ["orders"],
            params=flow.jobs["clean_orders"].params,
            dataid="2026-01-01",
            datasets=flow.datasets,
        )
    finally:
        sys.path.remove(str(QUICKSTART))
        sys.modules.pop("jobs")
    good = ran.outputs["orders"].orderBy("order_id").collect()
    assert [(row.order_id, row.days_late) for row in good] == [(1, 0), (2, 0), (7, 0), (8, 2)]
    assert {row.currency for row in good} == {"EUR"}
    bad = {(item["code"], str(item["details"]["record"])) for item in ran.quarantine}
    malformed = {record for kind, record in bad if kind == "MALFORMED"}
    assert malformed == {
        "4,eve,xx,2026-01-01T10:00:00",
        "5,eve",
        "6,eve,1.00,2026-01-01T10:00:00,more",
    }
    negative, again, too_late = sorted(
        (item for item in ran.quarantine if item["code"] == "BAD_RECORD"), key=lambda item: str(item["item"])
    )
    assert (negative["item"], negative["reason"]) == ("3", "amount must be positive")
    assert (again["item"], again["reason"]) == ("7", "the same order again")
    assert (too_late["item"], too_late["reason"][:27]) == ("9", "ordered more than 3 days ag")
    assert negative["details"]["record"]["customer"] == "ann"
    assert negative["details"]["source"].endswith("/raw.csv")
    assert all(check["passed"] for check in ran.checks)
    assert {check["name"] for check in ran.checks} >= {"min_rows", "unique(order_id)", "row_count", "schema"}
    nodes = {node["node"]: node for node in ran.nodes}
    assert (nodes["read raw_orders"]["items"], nodes["read raw_orders"]["failures"]) == (10, 3)
    assert nodes["amount must be positive"]["failures"] == 1
    assert [nodes[name]["items"] for name in ("timely", "once", "priced")] == [5, 4, 4]


@node
def even(ctx: Context, numbers: DataFrame, rest: int = 0) -> DataFrame:
    return ctx.quarantine(numbers, unless="name IS NOT NULL", reason="no name").where(f"id % 2 = {rest}")


@node
def halves(_: Context, numbers: DataFrame, divisor: int) -> DataFrame:
    return numbers.withColumn("half", numbers["id"] / (100 // divisor))


@job
def in_nodes(ctx: Context) -> None:
    found = halves(ctx, even(ctx, ctx.read("numbers"), rest=0), ctx.params.divisor)
    ctx.write("out", found.where("id < 10"))


def test_a_job_of_nodes_counts_them_in_order_and_names_the_one_that_fails(numbers: DataFrame) -> None:
    ran = run_job(in_nodes, numbers.sparkSession, {"numbers": numbers}, ["out"], params={"divisor": 50})
    told = ("node", "parent", "sources", "items", "failures")
    assert [tuple(each[key] for key in told) for each in ran.nodes] == [
        ("even", None, ["no name"], 50, 0),
        ("no name", "even", [], 100, 1),
        ("halves", None, ["even"], 50, 0),
        ("write out", None, ["halves"], 5, 0),
    ]
    assert all(each["seconds"] > 0 for each in ran.nodes if each["node"] != "no name")
    with pytest.raises(AttemptError, match=r"^in node halves: ZeroDivisionError") as raised:
        run_job(in_nodes, numbers.sparkSession, {"numbers": numbers}, ["out"], params={"divisor": 0})
    assert "in in_nodes" in raised.value.message


@node
def route(_: Context, numbers: DataFrame) -> dict[str, DataFrame]:
    return {"low": numbers.where("id < 30"), "high": numbers.where("id >= 30")}


@node
def ends(_: Context, numbers: DataFrame) -> tuple[DataFrame, int, DataFrame]:
    return numbers.where("id < 40"), 7, numbers.where("id >= 90")


@job
def branching(ctx: Context) -> None:
    ways = route(ctx, halves(ctx, ctx.read("numbers"), 50))
    first, seven, last = ends(ctx, ways["high"])
    assert seven == 7
    ctx.write("low", ways["low"])
    ctx.write("high", first.unionByName(last))


def test_of_a_node_that_branches_each_branch_is_counted_and_knows_where_its_rows_come_from(
    numbers: DataFrame,
) -> None:
    ran = run_job(
        branching, numbers.sparkSession, {"numbers": numbers}, ["low", "high"], params={"divisor": 50}
    )
    assert [(each["node"], each["parent"], each["sources"], each["items"]) for each in ran.nodes] == [
        ("halves", None, [], 100),
        ("route", None, ["halves"], 100),
        ("route: low", "route", ["route"], 30),
        ("route: high", "route", ["route"], 70),
        ("ends", None, ["route: high"], 20),
        ("ends: 1", "ends", ["ends"], 10),
        ("ends: 3", "ends", ["ends"], 10),
        ("write low", None, ["route: low"], 30),
        ("write high", None, ["ends: 1", "ends: 3"], 20),
    ]


def test_a_spark_sql_file_gets_views_and_bound_parameters(spark: SparkSession) -> None:
    own = spark.newSession()
    orders = own.createDataFrame(
        [("ann", 3, 0), ("ann", 4, 2), ("bob", 1, 0)], "customer string, amount int, days_late int"
    )
    function = jobcode.sql_function(QUICKSTART / "daily_totals.sql")
    ran = run_job(
        function,
        own,
        {"orders": orders},
        ["daily_totals"],
        params={"least": 2},
        dataid="2026'--",
    )
    assert [tuple(row) for row in ran.outputs["daily_totals"].collect()] == [("2026'--", "ann", 2, 1, 7)]


def test_a_spark_sql_file_may_wait_for_a_calendar_which_has_nothing_to_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    own = spark.newSession()
    days = own.createDataFrame(
        [("2026-02-01", "ann", 2, 1, 7), ("2026-02-02", "ann", 1, 0, 3)],
        "day string, customer string, orders int, late int, total int",
    )
    flow = dataflowd.flow.load(QUICKSTART / "flow.toml", Settings(data_dir=tmp_path))
    ran = run_job(
        jobcode.sql_function(QUICKSTART / "monthly_totals.sql"),
        own,
        {"daily_totals": days, "month_end": tmp_path},
        ["monthly_totals"],
        dataid="2026-02",
        datasets=flow.datasets,
    )
    assert [tuple(row) for row in ran.outputs["monthly_totals"].collect()] == [
        ("2026-02", "ann", 2, 3, 1, 10)
    ]


@pytest.mark.parametrize("is_large", [False, True])
def test_checks_are_judged_with_what_was_observed_and_its_limit(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    warn = {"severity": "warn"}
    declared = {
        "min_rows": {"value": 101, **warn},
        "max_rows": {"value": 99, **warn},
        "not_null": {"columns": ["id", "name"], **warn},
        "unique": {"columns": ["digit"], **warn},
        "accepted_values": {"digit": {"values": [0, 1, 2, 3, 4, 5, 6, 7], **warn}},
        "range": {"id": {"min": 5, "max": 90, **warn}},
        "regex": {"name": {"pattern": "x[0-9]", **warn}},
        "schema": {"columns": "id bigint, digit bigint", **warn},
        "row_count": {"input": "numbers", "tolerance": 0, **warn},
    }
    given: DataFrame | Path = numbers
    if is_large:
        monkeypatch.setattr("dataflowd.sdk.context.LARGE_BYTES", 1)
        given = tmp_path / "raw"
        numbers.write.parquet(str(given))
    ran = run_job(
        forward,
        spark,
        {"numbers": given},
        ["out"],
        datasets={"numbers": dataset("numbers"), "out": dataset("out", checks=declared)},
    )
    observed = {check["name"]: (check["passed"], check["observed"]) for check in ran.checks}
    assert observed == {
        "min_rows": (False, "100"),
        "max_rows": (False, "100"),
        "not_null(id)": (True, "0 of 100 rows"),
        "not_null(name)": (False, "1 of 100 rows"),
        "unique(digit)": (False, "90 rows too many"),
        "accepted_values(digit)": (False, "20 of 100 rows, such as '8'"),
        "range(id)": (False, "14 of 100 rows, such as '0'"),
        "regex(name)": (False, "89 of 100 rows, such as 'x10'"),
        "schema": (False, "id bigint, digit bigint, name string"),
        "row_count": (True, "100"),
    }
    expected = {check["name"]: check["expected"] for check in ran.checks}
    assert expected["min_rows"] == "at least 101"
    assert expected["row_count"] == "100 rows of numbers"


OF_ALL_KINDS = """
    SELECT id AS number, cast(id - 20 AS tinyint) AS small, cast(id - 7 AS decimal(9,2)) AS price,
        cast(id AS decimal(30,4)) AS large, date_add(date'2026-01-01', cast(id AS int)) AS day,
        timestamp_seconds(id) AS moment, if(id = 40, double('NaN'), cast(id AS double)) AS share,
        'x' || id % 3 AS word, uuid() AS unique_word, if(id = 13, NULL, 'y') AS missing, cast(NULL AS int) AS nothing,
        if(id < 50, NULL, id) AS late, 'x' || id % 2 AS `dotted.word`, named_struct('word', id) AS dotted,
        array('a', 'b') AS many, cast(X'e9' AS string) AS latin, date_add(date'9999-12-31', cast(id AS int)) AS far
    FROM range(0, 100, 1, 3)
"""


@pytest.fixture(scope="module")
def of_all_kinds(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = tmp_path_factory.mktemp("kinds") / "files"
    spark.sql(OF_ALL_KINDS).write.parquet(str(files))
    return files


@pytest.mark.parametrize(
    ("rule", "broken", "by"),
    [
        ({"not_null": {"columns": ["missing"]}}, True, "files"),
        ({"not_null": {"columns": ["number", "moment", "share"]}}, False, "files"),
        ({"not_null": {"columns": ["dotted.word"]}}, False, "rows"),
        ({"not_null": {"columns": ["dotted"]}}, False, "rows"),
        ({"range": {"number": {"min": 0, "max": 99}}}, False, "files"),
        ({"range": {"number": {"min": 0, "max": 98}}}, True, "files"),
        ({"range": {"small": {"min": -19}}}, True, "files"),
        ({"range": {"price": {"min": -7, "max": 92}, "large": {"max": 99}}}, False, "files"),
        ({"range": {"price": {"max": 91.99}}}, True, "files"),
        ({"range": {"day": {"max": "2026-04-10"}}}, False, "files"),
        ({"range": {"day": {"max": "2026-04-09"}}}, True, "files"),
        ({"range": {"moment": {"max": "1970-01-01T00:01:39"}}}, False, "rows"),
        ({"range": {"share": {"max": 1000}}}, True, "rows"),  # NaN is greater than any number
        ({"range": {"late": {"min": 50}, "nothing": {"min": 5}}}, False, "files"),
        ({"range": {"word": {"max": "x2"}}}, False, "rows"),
        ({"range": {"unique_word": {"max": "g"}}}, False, "rows"),
        ({"accepted_values": {"word": {"values": ["x0", "x1", "x2"]}}}, False, "files"),
        ({"accepted_values": {"word": {"values": ["x0", "x1"]}}}, True, "files"),
        ({"accepted_values": {"small": {"values": [1]}}}, True, "rows"),
        ({"regex": {"word": {"pattern": "x[0-2]"}, "missing": {"pattern": "y"}}}, False, "files"),
        ({"regex": {"word": {"pattern": "x[0-1]"}}}, True, "files"),
        ({"regex": {"unique_word": {"pattern": "[0-9a-f-]+"}}}, False, "rows"),
        ({"regex": {"dotted.word": {"pattern": "x0"}}}, True, "rows"),
        ({"range": {"number": {"min": 0}}, "regex": {"unique_word": {"pattern": "x"}}}, True, "rows"),
        # Values that Spark can hold and Python cannot.
        ({"not_null": {"columns": ["latin", "far", "word"]}}, False, "files"),
        ({"range": {"far": {"min": "2020-01-01"}}}, False, "rows"),
        ({"range": {"far": {"max": "9999-12-31"}}}, True, "rows"),
        ({"regex": {"latin": {"pattern": "x"}}}, True, "rows"),
        ({"regex": {"many": {"pattern": ".*a.*"}}}, False, "rows"),
    ],
)
def test_checks_by_file_statistics_agree_with_checks_of_all_rows(
    spark: SparkSession, of_all_kinds: Path, rule: dict[str, Any], broken: bool, by: str
) -> None:
    declared = {
        name: check | {"severity": "error"}
        if name == "not_null"
        else {column: one | {"severity": "error"} for column, one in check.items()}
        for name, check in rule.items()
    }
    stored, looked = spark.read.parquet(str(of_all_kinds)), []
    compiled = checks.column_checks(declared, stored.schema, "out")

    def rows() -> DataFrame:
        looked.append("rows")
        return stored

    assert file_checks.is_broken(spark, of_all_kinds, stored.schema, compiled, rows) is broken
    assert bool(stored.where(checks.any_broken(compiled)).count()) is broken
    assert bool(looked) is (by == "rows")


def test_a_large_chunk_of_another_type_than_declared_breaks_its_schema_and_not_its_checks(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataflowd.sdk.context.LARGE_BYTES", 1)
    numbers.selectExpr("cast(id AS double) AS share").write.parquet(str(tmp_path / "raw"))
    in_bounds = {"range": {"share": {"min": 0, "severity": "error"}}}
    declared = {
        "numbers": dataset("numbers"),
        "out": dataset(
            "out", columns="share decimal(9,2)", options={"pathGlobFilter": "none"}, checks=in_bounds
        ),
    }
    with pytest.raises(AttemptError, match=r"^out: schema: observed share double, expected share decimal"):
        run_job(forward, spark, {"numbers": tmp_path / "raw"}, ["out"], datasets=declared)


def test_footers_give_the_rows_of_an_input_and_spark_reports_a_broken_file(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    raw = tmp_path / "raw"
    numbers.repartition(3).write.parquet(str(raw))
    declared = {
        "numbers": dataset("numbers"),
        "out": dataset(
            "out", checks={"row_count": {"input": "numbers", "tolerance": 0, "severity": "error"}}
        ),
    }

    def some(ctx: Context) -> None:
        ctx.write("out", ctx.read("numbers").where("id < 90"))
        assert not ctx._counts  # the rows come from the footers, without a count in the pass

    assert run_job(forward, spark, {"numbers": raw}, ["out"], datasets=declared).outputs["out"].count() == 100
    with pytest.raises(AttemptError, match="observed 90, expected 100 rows of numbers"):
        run_job(some, spark, {"numbers": raw}, ["out"], datasets=declared)
    max(raw.glob("*.parquet")).write_bytes(b"nonsense")
    with pytest.raises(AttemptError, match="FAILED_READ_FILE"):
        run_job(forward, spark, {"numbers": raw}, ["out"], datasets=declared)


def test_a_broken_check_of_severity_error_stops_publication(spark: SparkSession, numbers: DataFrame) -> None:
    declared = {"unique": {"columns": ["digit"], "severity": "error"}}
    with pytest.raises(AttemptError, match=r"out: unique\(digit\): observed 90 rows too many") as stopped:
        run_job(
            forward, spark, {"numbers": numbers}, ["out"], datasets={"out": dataset("out", checks=declared)}
        )
    assert stopped.value.code == "CHECK_FAILED"


@pytest.mark.parametrize(
    ("columns", "surplus"), [(["digit", "name"], 5), (["id"], 6), (["day"], 6), (["share"], 6)]
)
def test_large_and_small_chunks_agree_on_what_is_unique(
    spark: SparkSession,
    numbers: DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    columns: list[str],
    surplus: int,
) -> None:
    declared = {"unique": {"columns": columns, "severity": "error"}}
    many = numbers.union(numbers.where("id < 5 OR id = 13")).selectExpr(
        "*", "date_add(DATE '2026-01-01', CAST(id AS int)) AS day", "id / 3 AS share"
    )
    for small in (0, 10**9):
        monkeypatch.setattr("dataflowd.storage.files.SMALL_BYTES", small)
        with pytest.raises(AttemptError, match=f"observed {surplus} rows too many"):
            run_job(
                forward, spark, {"numbers": many}, ["out"], datasets={"out": dataset("out", checks=declared)}
            )


def test_a_check_of_a_column_that_was_not_written_says_so(spark: SparkSession, numbers: DataFrame) -> None:
    declared = {"not_null": {"columns": ["nam"], "severity": "warn"}}
    with pytest.raises(AttemptError, match=r"which the output does not have .did you mean 'name'"):
        run_job(
            forward, spark, {"numbers": numbers}, ["out"], datasets={"out": dataset("out", checks=declared)}
        )


def no_gaps(frame: DataFrame) -> bool | str:
    return True if frame.count() == 100 else "there are gaps"


def test_custom_checks_see_what_was_written(spark: SparkSession, numbers: DataFrame) -> None:
    custom = ({"function": f"{__name__}:no_gaps", "severity": "error"},)
    declared = {"out": dataset("out", custom_checks=custom)}
    sys.modules[__name__] = sys.modules.get(__name__) or sys.modules[no_gaps.__module__]
    ran = run_job(forward, spark, {"numbers": numbers}, ["out"], datasets=declared)
    assert [check["passed"] for check in ran.checks] == [True]
    with pytest.raises(AttemptError, match="there are gaps"):
        run_job(forward, spark, {"numbers": numbers.limit(5)}, ["out"], datasets=declared)


def needs_a_column(frame: DataFrame) -> bool:
    return bool(frame.where("nix > 0").count() == 0)


def divides(frame: DataFrame) -> bool:
    return bool(1 / (frame.count() - 100))


def fails_in_a_worker(frame: DataFrame) -> bool:
    divided = functions.udf(lambda digit: 1 // (digit - digit), "long")
    return frame.select(divided("digit")).first() is None


def test_a_custom_check_that_raises_is_one_failed_check_beside_the_others(
    spark: SparkSession, numbers: DataFrame
) -> None:
    sys.modules[__name__] = sys.modules.get(__name__) or sys.modules[no_gaps.__module__]
    custom = tuple(
        {"function": f"{__name__}:{name}", "severity": "error"}
        for name in ("divides", "needs_a_column", "fails_in_a_worker", "no_gaps")
    )
    rules = {"unique": {"columns": ["digit"], "severity": "error"}}
    declared = {"out": dataset("out", checks=rules, custom_checks=custom)}
    with pytest.raises(AttemptError) as stopped:
        run_job(forward, spark, {"numbers": numbers}, ["out"], datasets=declared)
    results = {check["name"].rpartition(":")[2]: check for check in stopped.value.details["checks"]}
    assert {name: check["passed"] for name, check in results.items()} == {
        "unique(digit)": False,
        "divides": False,
        "needs_a_column": False,
        "fails_in_a_worker": False,
        "no_gaps": True,
    }
    assert results["divides"]["observed"].startswith(
        "it raised ZeroDivisionError: division by zero (test_sdk.py, line "
    )
    assert "ZeroDivisionError" in results["fails_in_a_worker"]["observed"]
    assert "`nix` cannot be resolved" in results["needs_a_column"]["observed"]
    assert stopped.value.code == "CHECK_FAILED"


def only_names(frame: DataFrame) -> bool | str:
    return frame.columns == ["id", "digit", "name"] or f"columns are {frame.columns}"


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_look_at_what_was_written_sees_the_columns_that_were_written(
    spark: SparkSession, numbers: DataFrame, kind: str
) -> None:
    custom = ({"function": f"{__name__}:only_names", "severity": "error"},)
    unique = {"unique": {"columns": ["id"], "severity": "error"}}
    declared = {"out": dataset("out", format=kind, custom_checks=custom, checks=unique)}
    ran = run_job(forward, spark, {"numbers": numbers}, ["out"], datasets=declared)
    assert [check["passed"] for check in ran.checks] == [True, True]
    assert ran.outputs["out"].dtypes == numbers.dtypes


@pytest.mark.parametrize("kind", ["parquet", "orc", "json"])
def test_files_that_this_host_does_not_hold_are_listed_and_counted_by_spark(
    spark: SparkSession, numbers: DataFrame, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataflowd.host.allowed_roots.local_path", lambda _location: None)
    declared = {
        "out": dataset("out", format=kind, checks={"unique": {"columns": ["id"], "severity": "error"}})
    }
    ran = run_job(forward, spark, {"numbers": numbers}, ["out"], datasets=declared)
    assert ran.outputs["out"].count() == 100
    monkeypatch.setattr("dataflowd.sdk.context.Written.rows", 99)
    if kind == "json":
        return
    with pytest.raises(AttemptError, match="99 rows were observed, and the files hold 100"):
        run_job(forward, spark, {"numbers": numbers}, ["out"], datasets=declared)


def test_a_condition_that_is_null_does_not_hold(spark: SparkSession, numbers: DataFrame) -> None:
    def sift(ctx: Context) -> None:
        ctx.write("out", ctx.quarantine(ctx.read("numbers"), unless="name <> 'x1'", item="id"))

    ran = run_job(sift, spark, {"numbers": numbers}, ["out"])
    assert {item["item"] for item in ran.quarantine} == {"1", "13"}
    assert ran.outputs["out"].count() == 98


def test_a_look_at_the_data_before_the_write_does_not_spoil_the_counts(
    spark: SparkSession, numbers: DataFrame
) -> None:
    def peek(ctx: Context) -> None:
        good = ctx.quarantine(ctx.read("numbers"), unless="digit <> 3", item="id")
        good.limit(2).collect()
        ctx.write("out", good)

    ran = run_job(peek, spark, {"numbers": numbers}, ["out"])
    assert len(ran.quarantine) == 10


def test_records_are_set_aside_behind_an_aggregation_too(spark: SparkSession, numbers: DataFrame) -> None:
    def total(ctx: Context) -> None:
        sums = ctx.read("numbers").groupBy("digit").count()
        ctx.write("out", ctx.quarantine(sums, unless="digit > 1", item="digit").groupBy().count())

    ran = run_job(total, spark, {"numbers": numbers}, ["out"])
    assert {item["item"] for item in ran.quarantine} == {"0", "1"}
    assert ran.outputs["out"].collect()[0][0] == 8


def test_resolved_records_are_repaired_in_place_and_checked_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Records that are repaired, dropped, repaired wrongly, left open, or no longer in the source; parsed and unparsed ones."""
    raw = tmp_path / "raw.csv"
    raw.write_text(
        "id,amount,note\n1,5,ok\n2,-1,two\n3,-1,three\n4,-1,four\n5,-1,five\n6,x,six\n7,-1,seven\n"
    )
    options = {"header": "true"}
    declared = {
        "raw": dataset("raw", format="csv", columns="id int, amount int, note string", options=options)
    }

    def sift(ctx: Context) -> None:
        ctx.write("out", ctx.quarantine(ctx.read("raw"), unless="amount > 0", item="id", reason="negative"))

    first = run_job(sift, spark, {"raw": raw}, ["out"], datasets=declared)
    bad = {
        str(item["details"]["record"]["id"]): item
        for item in first.quarantine
        if item["item"] in set("23457")
    }
    [broken] = [item for item in first.quarantine if item["code"] == "MALFORMED"]
    raw.write_text(
        "id,amount,note\n1,5,ok\n2,-1,two\n3,-1,three\n4,-1,four\n5,-1,five\n6,x,six\n7,70,seven\n"
    )
    again = run_job(
        sift,
        spark,
        {"raw": raw},
        ["out"],
        datasets=declared,
        resolved=[
            (bad["2"], {"amount": "20", "note": None}),
            (bad["3"], None),
            (bad["4"], {"amount": -4}),
            (bad["7"], {"amount": 7}),
            (broken, {"id": "6", "amount": 60, "note": "six"}),
        ],
    )
    rows = {(row.id, row.amount, row.note) for row in again.outputs["out"].collect()}
    assert rows == {(1, 5, "ok"), (2, 20, None), (6, 60, "six"), (7, 70, "seven")}
    assert {(item["item"], item["details"]["record"]["amount"]) for item in again.quarantine} == {
        ("4", -4),
        ("5", -1),
    }
    assert all(item["details"]["source"].endswith("/raw.csv") for item in again.quarantine)


def test_equal_items_are_all_kept(spark: SparkSession) -> None:
    def sift(ctx: Context) -> None:
        ctx.write("out", ctx.quarantine(ctx.read("rows"), unless="good", item="name"))

    rows = spark.createDataFrame([("a", False), ("a", False), ("b", True)], "name string, good boolean")
    ran = run_job(sift, spark, {"rows": rows}, ["out"])
    assert {item["item"] for item in ran.quarantine} == {"a", "a#2"}


@pytest.mark.parametrize(
    ("limit", "stops"), [(10, False), (9, True), (0.1, False), (0.09, True), (None, False)]
)
def test_a_threshold_by_count_or_share_fails_the_attempt(
    spark: SparkSession, numbers: DataFrame, limit: float | None, stops: bool
) -> None:
    def sift(ctx: Context) -> None:
        ctx.write("out", ctx.quarantine(ctx.read("numbers"), unless="digit <> 3", item="id"))

    if not stops:
        assert len(run_job(sift, spark, {"numbers": numbers}, ["out"], quarantine=limit).quarantine) == 10
        return
    with pytest.raises(AttemptError, match="10 of 100 records are bad") as stopped:
        run_job(sift, spark, {"numbers": numbers}, ["out"], quarantine=limit)
    assert stopped.value.code == "QUARANTINE_LIMIT"


def test_a_share_is_one_of_all_records_that_were_read(spark: SparkSession) -> None:
    def sift(ctx: Context) -> None:
        left = ctx.quarantine(ctx.read("left"), unless="id > 9", item="id")
        right = ctx.quarantine(ctx.read("right"), unless="id > 9", item="id")
        ctx.write("out", left.union(right))

    inputs: dict[str, DataFrame | Path] = {"left": spark.range(100), "right": spark.range(100)}
    assert len(run_job(sift, spark, inputs, ["out"], quarantine=0.1).quarantine) == 20
    with pytest.raises(AttemptError, match="20 of 200 records are bad"):
        run_job(sift, spark, inputs, ["out"], quarantine=0.09)


def test_bad_records_are_kept_when_no_good_one_can_pass(spark: SparkSession) -> None:
    def sift(ctx: Context) -> None:
        ctx.write("out", ctx.quarantine(ctx.read("rows"), unless="false", item="id"))

    ran = run_job(sift, spark, {"rows": spark.range(3)}, ["out"])
    assert {item["item"] for item in ran.quarantine} == {"0", "1", "2"}


def test_more_bad_records_than_can_be_kept_fail_the_attempt(spark: SparkSession) -> None:
    def sift(ctx: Context) -> None:
        ctx.write("out", ctx.quarantine(ctx.read("rows"), unless="id < 5", item="id"))

    with pytest.raises(AttemptError, match=f"at most {sieves.KEPT} can be set aside"):
        run_job(sift, spark, {"rows": spark.range(sieves.KEPT + 6)}, ["out"])


def test_broken_json_is_set_aside_even_in_columns_that_the_job_does_not_use(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = ['{"id": 1, "n": 5}', '{"id": 2, "n": "five"}', '{"id": 3, ', '{"id": 4, "n": 6, "more": 1}']
    (tmp_path / "raw.json").write_text("\n".join(lines))

    def pick(ctx: Context) -> None:
        ctx.write("out", ctx.read("raw").select("id"))

    declared = {"raw": dataset("raw", format="json", columns="id bigint, n int")}
    ran = run_job(pick, spark, {"raw": tmp_path / "raw.json"}, ["out"], datasets=declared)
    assert {row.id for row in ran.outputs["out"].collect()} == {1, 4}
    assert {str(item["details"]["record"]) for item in ran.quarantine} == {
        "{'id': 2, 'n': 'five'}",
        lines[2],
    }


def test_a_file_that_is_changed_while_it_is_read_is_not_published_without_its_broken_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    raw = tmp_path / "raw.csv"
    raw.write_text("1\nx\ny\n")

    def copy(ctx: Context) -> None:
        ctx.write("out", ctx.read("raw"))
        raw.write_text("1\nx\n3\n")

    declared = {"raw": dataset("raw", format="csv", columns="id int")}
    with pytest.raises(
        AttemptError, match="2 bad records were counted in read raw, and only 1 of them could be read"
    ) as told:
        run_job(copy, spark, {"raw": raw}, ["out"], datasets=declared)
    assert told.value.code == "WRONG_DATA"


def test_a_json_document_over_many_lines_is_good_or_bad_as_a_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "good.json").write_text('[{"id": 1,\n "n": 5}, {"id": 4, "n": 1}]')
    (tmp_path / "bad.json").write_text('[{"id": 2,\n "n": "five"}, {"id": 3, "n": 1}]')
    declared = {"raw": dataset("raw", format="json", columns="id bigint, n int", options={"multiLine": True})}
    ran = run_job(jobs.copy, spark, {"raw": tmp_path}, ["out"], datasets=declared)
    assert {row.id for row in ran.outputs["out"].collect()} == {1, 4}
    assert {item["details"]["source"].rsplit("/", 1)[1] for item in ran.quarantine} == {"bad.json"}


def test_a_quoted_line_break_is_no_broken_record_when_records_span_lines(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "raw.csv").write_text('1,"two\nlines",5\n2,"one",x\n')
    declared = {
        "raw": dataset("raw", format="csv", columns="id int, t string, n int", options={"multiLine": True}),
        "out": dataset("out", format="json"),
    }
    ran = run_job(jobs.copy, spark, {"raw": tmp_path / "raw.csv"}, ["out"], datasets=declared)
    assert [(row.id, row.t) for row in ran.outputs["out"].collect()] == [(1, "two\nlines")]
    assert [item["details"]["record"] for item in ran.quarantine] == ['2,"one",x']


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "orc", "text"])
def test_copy_writes_every_format_of_files(spark: SparkSession, kind: str) -> None:
    rows = spark.createDataFrame([("a",), ("b",)], "value string")
    declared = {"out": dataset("out", format=kind, columns="value string", checks={})}
    ran = run_job(jobs.copy, spark, {"in": rows}, ["out"], datasets=declared)
    assert sorted(row.value for row in ran.outputs["out"].collect()) == ["a", "b"]


class Typed(BaseModel):
    factor: int


@job(params=Typed)
def typed(ctx: Context) -> None:
    ctx.log.info("scaled", factor=ctx.params.factor + 1, password="hunter2")  # noqa: S106
    ctx.write("out", ctx.read("numbers"))


def test_parameters_are_typed_by_the_jobs_own_model(spark: SparkSession, numbers: DataFrame) -> None:
    ran = run_job(typed, spark, {"numbers": numbers}, ["out"], params={"factor": "2"})
    assert ran.lines == ["info scaled factor=3 password=***"]
    with pytest.raises(AttemptError, match="do not fit Typed: factor: Field required"):
        run_job(typed, spark, {"numbers": numbers}, ["out"])


def mistyped_parameter(ctx: Context) -> None:
    ctx.write("out", ctx.read("numbers").where(ctx.params.curency))


def mistyped_input(ctx: Context) -> None:
    ctx.write("out", ctx.read("number"))


def exits(ctx: Context) -> None:
    ctx.log.info("about to leave")
    sys.exit(3)


def writes_nothing(ctx: Context) -> None:
    ctx.read("numbers")


def returns_what_it_should_write(ctx: Context) -> Any:
    return ctx.read("numbers")


def unknown_column(ctx: Context) -> None:
    ctx.write("out", ctx.read("numbers").select("nix"))


@pytest.mark.parametrize(
    ("function", "code_word", "says", "has_frame"),
    [
        (mistyped_parameter, "JOB_FAILED", "no parameter 'curency' (did you mean 'currency'?)", True),
        (mistyped_input, "JOB_FAILED", "no input 'number' (did you mean 'numbers'?)", True),
        (exits, "JOB_FAILED", "the job called sys.exit(3)", True),
        (writes_nothing, "NO_OUTPUT", "the job returned without writing out", False),
        (returns_what_it_should_write, "NO_OUTPUT", "the DataFrame that it returned was not written", False),
        (unknown_column, "JOB_FAILED", "`nix` cannot be resolved", True),
    ],
)
def test_mistakes_of_job_code_are_reported_to_their_author(  # noqa: PLR0913, PLR0917
    spark: SparkSession, numbers: DataFrame, function: Any, code_word: str, says: str, has_frame: bool
) -> None:
    with pytest.raises(AttemptError) as told:
        run_job(function, spark, {"numbers": numbers}, ["out"], params={"currency": "EUR"})
    assert told.value.code == code_word
    assert says in str(told.value)
    assert "/sdk/" not in str(told.value)
    assert (f"in {function.__name__}" in str(told.value)) == has_frame


SHOP = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
schema = "id int, amount int"
options = { header = true }
[dataset.orders]
location = "{root}/orders"
[job.take]
python = "shop_jobs:take"
inputs = ["raw"]
outputs = ["orders"]
quarantine = 1
params = { least = 0 }
[job.take.checks]
unique = ["id"]
max_rows = 100
[job.take_again]
python = "shop_jobs:take_again"
inputs = ["raw"]
outputs = ["copies"]
[dataset.copies]
location = "{root}/copies"
"""
SHOP_JOBS = """
from dataflowd import job

@job
def take(ctx):
    good = ctx.quarantine(ctx.read("raw"), unless=f"amount > {ctx.params['least']}", item="id")
    ctx.write("orders", good)

def take_again(ctx):
    ctx.write("copies", ctx.read("raw"))
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Flow]:
    (tmp_path / "flow.toml").write_text(SHOP)
    (tmp_path / "shop_jobs.py").write_text(SHOP_JOBS)
    yield dataflowd.flow.load(tmp_path / "flow.toml", Settings(data_dir=tmp_path))
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))
    sys.modules.pop("shop_jobs", None)


def test_a_test_with_the_flow_has_its_parameters_limit_and_checks(
    spark: SparkSession, tmp_path: Path, shop: Flow
) -> None:
    take = jobcode.named("shop_jobs:take", str(tmp_path))

    def ran(*records: tuple[int, int], **more: Any) -> Ran:
        raw = spark.createDataFrame(records, "id int, amount int")
        return run_job(take, spark, {"raw": raw}, ["orders"], flow=shop, **more)

    good = ran((1, 5), (2, -1))
    assert [row.id for row in good.outputs["orders"].collect()] == [1]
    assert [check["name"] for check in good.checks] == ["max_rows", "unique(id)"]
    with pytest.raises(AttemptError, match="2 of 3 records are bad, and the job allows 1") as refused:
        ran((1, 5), (2, -1), (3, -1))
    assert refused.value.code == "QUARANTINE_LIMIT"
    assert len(ran((1, 5), (2, -1), (3, -1), quarantine=2).quarantine) == 2
    assert len(ran((1, 5), (2, 6), params={"least": 5}).quarantine) == 1
    with pytest.raises(AttemptError, match="unique") as refused:
        ran((1, 5), (1, 6))
    assert refused.value.code == "CHECK_FAILED"


def test_a_test_says_which_job_of_the_flow_it_lacks(spark: SparkSession, tmp_path: Path, shop: Flow) -> None:
    raw = {"raw": spark.createDataFrame([(1, 5)], "id int, amount int")}
    with pytest.raises(AttemptError, match=r"has 0 jobs whose code is 'forward'.*"):
        run_job(forward, spark, raw, ["orders"], flow=shop)
    with pytest.raises(AttemptError, match=r"flow\.toml has no job 'tke'"):
        run_job(forward, spark, raw, ["orders"], flow=shop, job="tke")
    again = jobcode.named("shop_jobs:take_again", str(tmp_path))
    assert run_job(again, spark, raw, ["copies"], flow=shop, job="take_again").outputs["copies"].count() == 1


def test_metadata_of_a_frame_is_one_short_error_and_nothing_else(
    spark: SparkSession, numbers: DataFrame, capfd: pytest.CaptureFixture[str]
) -> None:
    def asks(ctx: Context) -> None:
        ctx.write("out", ctx.read("numbers").selectExpr("id", "_metadata.file_path AS file"))

    def judges(ctx: Context) -> None:
        ctx.write("out", ctx.quarantine(ctx.read("numbers"), unless="name IS NOT NULL", item="id"))

    with pytest.raises(AttemptError) as refused:
        run_job(asks, spark, {"numbers": numbers}, ["out"])
    assert refused.value.code == "JOB_FAILED"
    assert "asks for _metadata, which only rows of files have, and numbers came as a DataFrame" in str(
        refused.value
    )
    assert (refused.value.__cause__, refused.value.__suppress_context__) == (None, True)
    # dataflowd itself asks for the file of a bad record. Without _metadata there is none, and no message appears.
    assert len(run_job(judges, spark, {"numbers": numbers}, ["out"]).quarantine) == 1
    assert "_metadata" not in "".join(capfd.readouterr())


def test_lines_that_could_not_be_parsed_are_repaired_in_an_export(
    spark: SparkSession, tmp_path: Path
) -> None:
    raw = tmp_path / "raw.csv"
    raw.write_text("id,amount,note\n1,5,good\n4,xx,eve\n5,\n6,1,bob,more\n")
    declared = {
        "raw": dataset(
            "raw", format="csv", columns="id int, amount int, note string", options={"header": True}
        )
    }
    ran = run_job(jobs.copy, spark, {"raw": raw}, ["out"], datasets=declared)
    rows = [
        {"dataid": "d", "itemid": bad["item"], "code": bad["code"], "reason": bad["reason"]}
        | {name: bad["details"][name] for name in ("record", "parsed")}
        for bad in ran.quarantine
    ]
    told = {row["record"]: line for row, line in zip(rows, _exported(rows), strict=True)}
    assert [line["reason"].partition("; ")[2] for line in (told["4,xx,eve"], told["5,"])] == [
        "fill in amount",
        "fill in amount, note",
    ]
    assert "as they stand" in told["6,1,bob,more"]["reason"]
    assert told["4,xx,eve"]["record"] == {"id": 4, "amount": None, "note": "eve"}

    told["4,xx,eve"]["record"]["amount"] = "7"
    told["5,"]["record"] |= {"amount": "8", "note": "short"}
    edited = "".join(json.dumps(line | {"action": "repair"}) + "\n" for line in told.values())
    repairs: dict[str, dict[str, Any]] = {
        one["itemid"]: one["resolution"]["repaired"]
        for one in records.resolutions(records.parsed(edited, "json"), rows)
    }
    resolved = [(bad, repairs[bad["item"]]) for bad in ran.quarantine]
    again = run_job(jobs.copy, spark, {"raw": raw}, ["out"], datasets=declared, resolved=resolved)
    assert again.quarantine == []
    found = sorted(tuple(row) for row in again.outputs["out"].collect())
    assert found == [(1, 5, "good"), (4, 7, "eve"), (5, 8, "short"), (6, 1, "bob")]


def test_equal_records_with_different_resolutions_each_get_their_own(spark: SparkSession) -> None:
    def sift(ctx: Context) -> None:
        ctx.write("out", ctx.quarantine(ctx.read("rows"), unless="amount > 0", item="id"))

    def rows(count: int) -> DataFrame:
        return spark.createDataFrame([(1, 5), *count * [(2, -1)], *2 * [(3, -1)]], "id int, amount int")

    first = run_job(sift, spark, {"rows": rows(3)}, ["out"])
    chosen: dict[str, dict[str, Any] | None]
    chosen = {"2": None, "2#2": {"amount": "20"}, "2#3": {"amount": "30"}, "3": None, "3#2": None}
    resolved = [(item, chosen[item["item"]]) for item in sorted(first.quarantine, key=itemgetter("item"))]

    def made(count: int) -> list[tuple[int, int]]:
        again = run_job(sift, spark, {"rows": rows(count)}, ["out"], resolved=resolved)
        assert again.quarantine == []
        return sorted((row.id, row.amount) for row in again.outputs["out"].collect())

    assert made(3) == [(1, 5), (2, 20), (2, 30)]
    assert made(4) == [(1, 5), (2, 20), (2, 30), (2, 30)]  # a fourth equal record is treated as the last one
    assert made(1) == [(1, 5)]


def test_a_repair_that_does_not_fit_is_set_aside_again(spark: SparkSession) -> None:
    schema = "id int, amount decimal(10,3), tags array<string>, note string"
    rows = spark.createDataFrame([(number, None, None, None) for number in range(8)], schema)

    def sift(ctx: Context) -> None:
        ctx.write("out", ctx.quarantine(ctx.read("rows"), unless="amount IS NOT NULL", item="id"))

    first = {item["item"]: item for item in run_job(sift, spark, {"rows": rows}, ["out"]).quarantine}
    # NULL values are listed too: a person has to fill them in.
    assert first["0"]["details"]["record"] == {"id": 0, "amount": None, "tags": None, "note": None}
    repairs: dict[str, dict[str, Any]] = {
        "0": {"amount": "1.5"},
        "1": {"amount": "1.5", "note": None, "tags": '["a"]'},
        "2": {"amount": "abc"},
        "3": {"amount": "0.1234"},
        "4": {"amount": "1", "amuont": "2"},
        "5": {"amount": "99999999999"},
        "6": {"amount": "1", "tags": "no list"},
        "7": {"amount": "1", "id": "1.5"},
    }
    resolved = [(first[item], repair) for item, repair in repairs.items()]
    again = run_job(sift, spark, {"rows": rows}, ["out"], resolved=resolved)
    assert {item["item"] for item in again.quarantine} == set("234567")
    assert sorted((row.id, str(row.amount), row.tags) for row in again.outputs["out"].collect()) == [
        (0, "1.500", None),
        (1, "1.500", ["a"]),
    ]


def _exported(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in records.text(rows, "json").splitlines()]
