"""`dataflowctl quarantine replay --rows`, from the flow file to the new version, with a real daemon."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dataflowd import flow
from dataflowd.model.errors import EXIT
from tests.e2e.ctl_flow import asked, ok
from tests.fix_daemon import daemons, eventually

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
schema = "id bigint, amount double"
[dataset.orders]
format = "parquet"
location = "{root}/orders"
checks = { row_count = { input = "raw" }, unique = ["id"] }
[job.clean]
python = "shop:clean"
inputs = ["raw"]
outputs = ["orders"]
rowwise = true
quarantine = 0.9
"""
CODE = """
from dataflowd import job

@job
def clean(ctx):
    ctx.write("orders", ctx.quarantine(ctx.read("raw"), unless="amount > 0", item="id", reason="no amount"))
"""
DAY = "2026-01-01"
PATIENCE_SECONDS = 300.0  # until Spark has started on a busy machine


def test_repaired_records_are_run_alone_and_added(
    dsn: str, connection: psycopg.Connection, run_ctl: RunCtl, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "flow.toml"
    file.write_text(FLOW, encoding="utf-8")
    (tmp_path / "shop.py").write_text(CODE, encoding="utf-8")
    flow.apply(connection, flow.load(file, settings), prune=False)
    raw = settings.data_dir / "data" / "raw"
    raw.mkdir(parents=True)
    (raw / f"{DAY}.csv").write_text("1,5\n2,-1\n3,7\n4,-1\n", encoding="ascii")
    connection.execute("SELECT dataflow.ready('raw', %s)", [DAY])
    with daemons(dsn, file, tmp_path) as start:
        daemon = start(engine="spark")
        replays(connection, run_ctl)
        assert daemon.stop() == 0


def made(connection: psycopg.Connection, *expected: tuple[int, int]) -> None:
    """Waits for the versions, and returns the rows of each."""

    def look() -> bool:
        query = "SELECT version, rows FROM dataflow.manifest ORDER BY version"
        return connection.execute(query).fetchall() == list(expected)

    eventually(look, seconds=PATIENCE_SECONDS)


def replays(connection: psycopg.Connection, run_ctl: RunCtl) -> None:
    made(connection, (1, 2))
    ok(run_ctl("quarantine", "resolve", "clean", DAY, "2", "--repaired", json.dumps({"amount": "20"})))
    shown = asked(run_ctl, "quarantine", "replay", "clean", "--rows", "--dry-run")
    assert shown["runs"] == [
        {"dataid": DAY, "was": "READY", "resolved": 1, "open": 1, "way": "rows", "because": None}
    ]
    assert run_ctl("quarantine", "replay", "clean", "--rows", "--open").returncode == EXIT["USAGE"]
    assert "resubmitted 1 run" in ok(run_ctl("quarantine", "replay", "clean", "--rows", "--yes"))
    made(connection, (1, 2), (2, 3))
    assert "replay rows: 1 record, added to version 1" in ok(run_ctl("logs", "clean", DAY))
    stats = asked(run_ctl, "stats", "clean")
    assert stats["quarantine"] == {"open": 1, "resolved": 1, "unapplied": 0}
    nodes = {each["node"]: (each["items"], each["successes"], each["failures"]) for each in stats["nodes"]}
    assert nodes == {"read raw": (4, 4, 0), "no amount": (4, 3, 1), "write orders": (3, 3, 0)}
    assert asked(run_ctl, "chunks", "orders", "--stale") == []
    [[checks]] = connection.execute(
        "SELECT jsonb_object_agg(name, observed) FROM dataflow.check_result WHERE attempt = (SELECT max(attempt) FROM dataflow.attempt)"
    ).fetchall()
    assert checks["row_count"] == "3, 1 in quarantine"
    # After a change of configuration the whole chunk is made again, and the command says so.
    ok(run_ctl("quarantine", "resolve", "clean", DAY, "4", "--repaired", json.dumps({"amount": "40"})))
    connection.execute("UPDATE dataflow.job SET config_hash = 'another'")
    again = asked(run_ctl, "quarantine", "replay", "clean", "--rows", "--yes")
    assert [(each["way"], each["because"]) for each in again["runs"]] == [
        ("whole", "other code or configuration made what is published")
    ]
    made(connection, (1, 2), (2, 3), (3, 4))
    assert "replay" not in ok(run_ctl("logs", "clean", DAY))
