"""README's first job, as a reader types it: the flow passes its checks, and the function does what README says."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import dataflowd.flow
from dataflowd.testing import run_job
from tests import readme

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

    from dataflowd.host.settings import Settings

TITLE = "Your first job"


def test_the_first_job_of_readme_works_as_it_stands(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flow.toml").write_text(readme.blocks(TITLE, "toml")[0], encoding="utf-8")
    (tmp_path / "jobs.py").write_text("".join(readme.blocks(TITLE, "python")), encoding="utf-8")
    flow = dataflowd.flow.load(tmp_path / "flow.toml", settings)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("jobs", None)
    clean_orders = import_module("jobs").clean_orders
    raw = spark.createDataFrame(
        [(1, "ann", 5), (2, "bob", -1)], "order_id bigint, customer string, amount int"
    )
    params = flow.jobs["clean_orders"].params
    ran = run_job(clean_orders, spark, {"raw_orders": raw}, ["orders"], params=params, datasets=flow.datasets)
    sys.modules.pop("jobs")
    assert [(row.order_id, row.currency) for row in ran.outputs["orders"].collect()] == [(1, "EUR")]
    assert [record["item"] for record in ran.quarantine] == ["2"]
