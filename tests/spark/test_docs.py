"""The jobs, checks and readers of docs/, as a reader types them."""

from __future__ import annotations

import runpy
import sys
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

import dataflowd.flow
from dataflowd.model.faults import AttemptError
from dataflowd.testing import run_job
from tests import published, readme

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from pyspark.sql import DataFrame, SparkSession

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

DOCS = readme.ROOT / "docs"
PRICED = """
[flow]
name = "shop"
[dataset.raw_orders]
format = "parquet"
location = "{root}/raw"
[dataset.orders]
format = "parquet"
location = "{root}/orders"
[dataset.orders.checks]
min_rows = 1
[job.price_orders]
python = "jobs:price_orders"
inputs = ["raw_orders"]
outputs = ["orders"]
params = { rate = 2.0 }
quarantine = 0.5
"""
CLEAN = 'def clean_orders(ctx):\n    ctx.write("orders", ctx.read("raw_orders"))\n'


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A flow's directory for imports. Its modules are removed from sys.modules afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("jobs", "rules"):
        sys.modules.pop(name, None)


def module(directory: Path, name: str, text: str) -> ModuleType:
    (directory / f"{name}.py").write_text(text, encoding="utf-8")
    return import_module(name)


def test_the_job_and_the_unit_test_of_the_page_work_as_they_stand(
    spark: SparkSession,
    settings: Settings,  # noqa: ARG001 - settings of the person who runs the tests are put out of sight
    modules: Path,
) -> None:
    page = DOCS / "context.md"
    [job], [test] = (readme.blocks(title, "python", page) for title in ("A job", "A test without a daemon"))
    priced = module(modules, "jobs", job)
    (modules / "flow.toml").write_text(PRICED, encoding="utf-8")
    (modules / "test_jobs.py").write_text(test, encoding="utf-8")
    runpy.run_path(str(modules / "test_jobs.py"))["test_negative_amounts_are_set_aside"]()
    raw = spark.createDataFrame([(1, 5.0)], "order_id bigint, amount double")
    ran = run_job(priced.price_orders, spark, {"raw_orders": raw}, ["orders"], params={"rate": 2})
    assert [(row.total, row.currency) for row in ran.outputs["orders"].collect()] == [(10.0, "EUR")]
    assert ran.lines == ["info priced currency='EUR' dataid='test'"]
    assert [(node["node"], node["items"]) for node in ran.nodes if node["node"] == "priced"] == [
        ("priced", 1)
    ]
    with pytest.raises(AttemptError, match="rate") as caught:
        run_job(priced.price_orders, spark, {"raw_orders": raw}, ["orders"], params={"rate": "much"})
    assert caught.value.code == "INVALID_PARAMS"


def test_the_chunks_of_a_window_are_read_one_by_one_as_the_page_says(
    spark: SparkSession, modules: Path, tmp_path: Path
) -> None:
    [block] = readme.blocks("What ctx.read gives", "python", DOCS / "context.md")
    month_by_day = module(modules, "jobs", block).month_by_day
    spark.range(3).write.parquet(str(tmp_path / "daily"))
    ran = run_job(month_by_day, spark, {"daily": tmp_path / "daily"}, ["monthly"])
    assert {row.day for row in ran.outputs["monthly"].collect()} == {"test"}


def frame(spark: SparkSession, *numbers: int) -> DataFrame:
    rows: list[tuple[Any, ...]] = [(number, "ann", "EUR", Decimal(5), None) for number in numbers]
    return spark.createDataFrame(
        rows, "order_id bigint, customer string, currency string, amount decimal(12,2), ordered_at timestamp"
    )


def test_the_checks_of_the_page_are_all_asked_and_custom_ones_say_what_failed(
    spark: SparkSession, settings: Settings, modules: Path
) -> None:
    page = DOCS / "checks.md"
    [flow_text], [rules_text] = (readme.page_blocks(page, language) for language in ("toml", "python"))
    rules, jobs = module(modules, "rules", rules_text), module(modules, "jobs", CLEAN)
    (modules / "flow.toml").write_text(flow_text, encoding="utf-8")
    flow = dataflowd.flow.load(modules / "flow.toml", settings)

    def ran(*numbers: int) -> list[dict[str, Any]]:
        inputs = {"raw_orders": frame(spark, *numbers)}
        return run_job(jobs.clean_orders, spark, inputs, ["orders"], datasets=flow.datasets).checks

    good = ran(1, 2, 3)
    assert [check["name"] for check in good if not check["passed"]] == []
    asked = {check["name"].partition("(")[0] for check in good}
    assert asked == {*flow.datasets["orders"].checks, "rules:no_gaps", "rules:is_plausible"}
    with pytest.raises(AttemptError, match="1 numbers are missing between 1 and 3") as caught:
        ran(1, 3)
    assert caught.value.code == "CHECK_FAILED"
    with pytest.raises(AssertionError, match="all orders are of one customer"):
        rules.has_customers(frame(spark, 1))


@pytest.fixture
def orders(run_ctl: RunCtl, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published.orders(run_ctl, settings, tmp_path)
    assert settings.dsn is not None
    monkeypatch.setenv("DATAFLOW_DSN", settings.dsn.get_secret_value())


@pytest.mark.usefixtures("orders")
def test_spark_reads_a_whole_dataset_from_outside_as_the_page_says(spark: SparkSession) -> None:
    [block] = readme.blocks("With Spark", "python", DOCS / "reading.md")
    found: dict[str, Any] = {"spark": spark}
    exec(compile(block, "reading.md", "exec"), found)  # noqa: S102 - a page of ours
    assert sorted(row.order_id for row in found["orders"].collect()) == published.CURRENT
    assert found["orders"].columns == ["order_id"]
