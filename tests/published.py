"""A small dataset with a history, made by a script: one day has a second version; the only attempt of another day failed
after it had written.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

FLOW = """
[flow]
name = "shop"
[dataset.raw_orders]
format = "csv"
location = "{{root}}/raw/{{dataid}}.csv"
[dataset.orders]
format = "parquet"
location = "{{root}}/orders"
[job.clean_orders]
command = ["{python}", "clean.py"]
inputs = ["raw_orders"]
outputs = ["orders"]
"""
SCRIPT = """
import os, pathlib, sys
import pyarrow
from pyarrow import parquet
words = pathlib.Path(os.environ["raw_orders_location"]).read_text().split()
numbers = [int(word) for word in words if word != "fail"]
parquet.write_table(pyarrow.table({"order_id": numbers}), os.environ["orders_location"] + "/part-1.parquet")
sys.exit(1 if "fail" in words else 0)
"""
CURRENT = [1, 2, 30, 40, 50]


def orders(run_ctl: RunCtl, settings: Settings, directory: Path) -> None:
    """The published rows are CURRENT. The rows 3, 4 and 666 are of a replaced version and of a failed attempt."""
    (directory / "flow.toml").write_text(FLOW.format(python=sys.executable), encoding="utf-8")
    (directory / "clean.py").write_text(SCRIPT, encoding="utf-8")
    flow = {"DATAFLOW_FLOWS": str(directory / "flow.toml")}

    def say(*words: str, status: int = 0) -> None:
        said = run_ctl(*words, env=flow)
        assert said.returncode == status, (words, said.stdout, said.stderr)

    say("apply", str(directory / "flow.toml"))
    for day, numbers in {"2026-01-01": "1 2", "2026-01-02": "3 4"}.items():
        lay_down(settings, day, numbers)
    say("ready", "raw_orders", "2026-01-01", "2026-01-02")
    say("run", "clean_orders", "--all")
    lay_down(settings, "2026-01-02", "30 40 50")
    say("ready", "raw_orders", "2026-01-02")
    say("resubmit", "clean_orders", "--stale", "--yes")
    say("run", "clean_orders", "--all")
    lay_down(settings, "2026-01-03", "666 fail")
    say("ready", "raw_orders", "2026-01-03")
    say("run", "clean_orders", "--all", status=1)


def lay_down(settings: Settings, day: str, numbers: str) -> None:
    path = settings.data_dir / "data" / "raw" / f"{day}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(numbers, encoding="utf-8")
