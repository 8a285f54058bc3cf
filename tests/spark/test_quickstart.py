"""The example of the README under a real daemon: CSV files in, daily totals out, and a kill -9 in the middle of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import dataflowd.flow
from tests.fix_daemon import daemons, eventually

if TYPE_CHECKING:
    import psycopg

    from dataflowd.settings import Settings

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "flow.toml"
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
PATIENCE_SECONDS = 240.0


def write_day(root: Path, day: str, rows: int) -> None:
    path = root / "raw" / "orders" / f"{day}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    orders = [f"{number},customer{number % 3},{number}.50,{day}T08:00:00" for number in range(1, rows + 1)]
    path.write_text("\n".join(["order_id,customer,amount,ordered_at", *orders, "x,broken,1.00,"]) + "\n")


def statuses(connection: psycopg.Connection, dataset: str) -> list[str]:
    found = connection.execute(
        "SELECT status FROM dataflow.datastatus WHERE datasetid = %s AND locktype = 'OUT' ORDER BY dataid",
        [dataset],
    )
    return [status for [status] in found.fetchall()]


def test_the_example_runs_end_to_end_and_survives_the_death_of_its_daemon(
    connection: psycopg.Connection, dsn: str, settings: Settings, tmp_path: Path
) -> None:
    settings = settings.model_copy(update={"data_dir": tmp_path / "data"})
    dataflowd.flow.apply(connection, dataflowd.flow.load(QUICKSTART, settings))
    for day in DAYS:
        write_day(tmp_path / "data" / "data", day, rows=20)
    connection.execute("SELECT dataflow.ready('raw_orders', %s::text[])", [DAYS])
    env = {
        "DATAFLOW_DATA_DIR": str(tmp_path / "data"),
        "DATAFLOW_MASTER": "local[2]",
        "DATAFLOW_RUNNERS": "1",
    }
    with daemons(dsn, QUICKSTART, tmp_path) as start:
        first = start(engine="spark", env=env)
        first.said("attempt.started", seconds=PATIENCE_SECONDS)
        first.kill()
        second = start(engine="spark", env=env)
        eventually(lambda: statuses(connection, "daily_totals") == ["READY"] * 3, seconds=PATIENCE_SECONDS)
        began = {(event["job"], event["dataid"]) for event in second.events("attempt.started")}
        assert began >= {("daily_totals", day) for day in DAYS}
        assert 'dataflow_runner_starts_total{kind="warm"}' in second.get("/metrics")[1]
        assert second.stop() == 0
    manifests = connection.execute(
        "SELECT datasetid, dataid, version, location, rows FROM dataflow.manifest ORDER BY datasetid, dataid"
    ).fetchall()
    assert [(dataset, day, version, rows) for dataset, day, version, _, rows in manifests] == [
        *(("daily_totals", day, 1, 3) for day in DAYS),
        *(("orders", day, 1, 20) for day in DAYS),
    ]
    assert all(Path(location, "_SUCCESS").exists() for _, _, _, location, _ in manifests)
    quarantined = connection.execute(
        "SELECT dataid, code FROM dataflow.quarantine ORDER BY dataid"
    ).fetchall()
    assert quarantined == [(day, "MALFORMED") for day in DAYS]
    [[passed]] = connection.execute("SELECT bool_and(passed) FROM dataflow.check_result").fetchall()
    assert passed
    assert not list((tmp_path / "data" / "run").glob("*"))
