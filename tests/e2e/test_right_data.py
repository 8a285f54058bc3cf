"""A file that was replaced after its registration or publication is not read; yesterday's file is not loaded for today."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from dataflowd import flow

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

FLOW = """
[flow]
name = "right"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
ordering = "date"
expect_newer = true
[dataset.clean]
format = "csv"
location = "{root}/clean"
digest = true
[dataset.sums]
format = "none"
[job.load]
command = ["sh", "-c", 'cp "$raw_location" "$clean_location/part.csv"']
inputs = ["raw"]
outputs = ["clean"]
[job.sum]
command = ["true"]
inputs = ["clean"]
outputs = ["sums"]
"""
DAY = "2026-01-31"


class Place:
    def __init__(self, run_ctl: RunCtl, connection: psycopg.Connection, root: Path, file: Path) -> None:
        self._ctl, self.connection, self.root, self._file = run_ctl, connection, root, file

    def ctl(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = self._ctl(*arguments, env={"DATAFLOW_FLOWS": str(self._file)})
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def put(self, text: str, day: int = 31) -> None:
        path = self.root / "raw" / f"{DAY}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        moment = datetime(2026, 1, day, 12, tzinfo=UTC).timestamp()
        os.utime(path, (moment, moment))


@pytest.fixture
def place(run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings, tmp_path: Path) -> Place:
    file = tmp_path / "flow.toml"
    file.write_text(FLOW, encoding="utf-8")
    flow.apply(connection, flow.load(file, settings), prune=False)
    return Place(run_ctl, connection, settings.data_dir / "data", file)


def test_a_file_that_was_exchanged_is_refused_until_it_is_registered_anew(place: Place) -> None:
    place.put("1\n")
    place.ctl("ready", "raw", DAY)
    place.put("1\n2\n")
    refused = place.ctl("run", "load", "--dataid", DAY, status=11)
    assert f"is not the data that was registered as raw/{DAY}: bytes 2 then, 4 now" in refused.stdout
    place.ctl("ready", "raw", DAY)
    place.ctl("resubmit", "load", "--dataid", DAY, "--yes")
    place.ctl("run", "load", "--dataid", DAY)
    # A replaced published file is found too, although it has the same size.
    [[published]] = place.connection.execute(
        "SELECT location FROM dataflow.manifest WHERE datasetid = 'clean'"
    )
    part = place.root.__class__(published) / "part.csv"
    part.write_text("1\n3\n")
    exchanged = place.ctl("run", "sum", "--dataid", DAY, status=11)
    assert "1 of the same size with other content, such as part.csv" in exchanged.stdout
    part.write_text("1\n2\n")
    place.ctl("resubmit", "sum", "--dataid", DAY, "--yes")
    place.ctl("run", "sum", "--dataid", DAY)


def test_yesterdays_file_is_not_loaded_for_today(place: Place) -> None:
    place.put("1\n", day=30)
    place.ctl("ready", "raw", DAY)
    refused = place.ctl("run", "load", "--dataid", DAY, status=11)
    assert "before the day of the chunk" in refused.stdout


def test_what_sql_registered_is_measured_by_the_first_run_that_succeeds(place: Place) -> None:
    place.put("1\n")
    place.connection.execute("SELECT dataflow.ready('raw', %s)", [DAY])
    place.ctl("run", "load", "--dataid", DAY)
    [[found]] = place.connection.execute("SELECT found FROM dataflow.measurement")
    assert found == {"files": 1, "bytes": 2, "modified": "2026-01-31T12:00:00.000+00:00"}
    place.put("1\n2\n")
    place.ctl("resubmit", "load", "--dataid", DAY, "--status", "READY", "--yes")
    place.ctl("run", "load", "--dataid", DAY, status=11)
