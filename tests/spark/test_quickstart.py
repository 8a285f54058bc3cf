"""The quickstart by hand, as its README says, with a kill -9 of the daemon in the middle. test_demo.py tests `dataflowd demo`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fix_daemon import daemons, eventually

if TYPE_CHECKING:
    import psycopg

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart"
DAYS = [f"2026-02-0{number}" for number in range(1, 8)]
IN_CENTS = "2026-02-05"
PATIENCE_SECONDS = 600.0
REFUSED = """
    SELECT s.dataid FROM dataflow.datastatus s JOIN dataflow.attempt a USING (attempt)
    WHERE s.datasetid = 'orders' AND s.locktype = 'OUT' AND s.status = 'FAILED' AND a.code = 'CHECK_FAILED' AND a.retry_at IS NULL
"""


def by_hand() -> list[list[str]]:
    """The commands of the last session in the README."""
    *_, session = re.findall(r"```console\n(.*?)```", (QUICKSTART / "README.md").read_text(), re.DOTALL)
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in session.splitlines()]


def statuses(connection: psycopg.Connection, dataset: str) -> dict[str, str]:
    found = connection.execute(
        "SELECT dataid, status FROM dataflow.datastatus WHERE datasetid = %s AND locktype = 'OUT' ORDER BY dataid",
        [dataset],
    )
    return dict(found.fetchall())


def test_the_quickstart_works_as_its_readme_says_and_survives_the_death_of_its_daemon(
    connection: psycopg.Connection, dsn: str, tmp_path: Path
) -> None:
    env = {
        "DATAFLOW_DATA_DIR": str(tmp_path / "data"),
        "DATAFLOW_MASTER": "local[2]",
        "DATAFLOW_RUNNERS": "1",
    }

    def typed(command: list[str]) -> str:
        program, *arguments = command
        ended = subprocess.run(
            [Path(sys.executable).parent / program, *arguments],
            cwd=ROOT,
            env={
                **env,
                "PATH": os.environ["PATH"],
                "TMPDIR": os.environ["TMPDIR"],
                "HOME": str(tmp_path),
                "DATAFLOW_DSN": dsn,
                "DATAFLOW_FLOWS": str(QUICKSTART / "flow.toml"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    export, *commands = by_hand()
    assert export == ["export", "DATAFLOW_FLOWS=examples/quickstart/flow.toml"]
    runs = [place for place, command in enumerate(commands) if command == ["dataflowd", "run", "--once"]]
    first, second = runs
    for command in commands[:first]:
        typed(command)
    bad = dict.fromkeys(DAYS, "READY") | {IN_CENTS: "FAILED"}
    with daemons(dsn, QUICKSTART / "flow.toml", tmp_path) as start:
        daemon = start(engine="spark", env=env)
        daemon.said("attempt.started", seconds=PATIENCE_SECONDS)
        daemon.kill()
        daemon = start(engine="spark", env=env)
        # Waits for the code too: a lost attempt and the first of two tries are FAILED for a moment as well.
        eventually(lambda: connection.execute(REFUSED).fetchall() == [(IN_CENTS,)], seconds=PATIENCE_SECONDS)
        eventually(lambda: statuses(connection, "orders") == bad, seconds=PATIENCE_SECONDS)
        explained, *_ = (typed(command) for command in commands[first + 1 : second])
        assert "CHECK_FAILED: orders: range(amount)" in explained
        eventually(
            lambda: statuses(connection, "daily_totals") == dict.fromkeys(DAYS, "READY"),
            seconds=PATIENCE_SECONDS,
        )
        assert 'dataflow_runner_starts_total{kind="warm"}' in daemon.get("/metrics")[1]
        assert daemon.stop() == 0
    quarantined, month = (typed(command) for command in commands[second + 1 :])
    for reason in ("amount must be positive", "the same order again", "ordered more than 3 days ago"):
        assert reason in quarantined
    assert "daily_totals/2026-02-08 is not there (and 20 more)" in month
    assert_all_is_accounted_for(connection, tmp_path / "data" / "data" / "raw" / "orders")
    assert not list((tmp_path / "data" / "run").glob("*"))


def assert_all_is_accounted_for(connection: psycopg.Connection, raw: Path) -> None:
    """Checks that every raw record is once in the published version or in quarantine."""
    manifests = connection.execute(
        "SELECT datasetid, dataid, location, rows FROM dataflow.manifest ORDER BY datasetid, dataid"
    ).fetchall()
    assert [(dataset, day) for dataset, day, _, _ in manifests] == [
        *(("daily_totals", day) for day in DAYS),
        *(("orders", day) for day in DAYS),
    ]
    assert all(Path(location, "_SUCCESS").exists() for _, _, location, _ in manifests)
    published = {day: rows for dataset, day, _, rows in manifests if dataset == "orders"}
    set_aside: dict[str, int] = dict(
        connection.execute("SELECT dataid, count(*) FROM dataflow.quarantine GROUP BY dataid").fetchall()
    )
    came = {day: (raw / f"{day}.csv").read_text().count("\n") - 1 for day in DAYS}
    assert came == {day: rows + set_aside[day] for day, rows in published.items()}
