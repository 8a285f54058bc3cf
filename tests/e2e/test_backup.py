"""The control database is lost, and restored on a new server as docs/upgrade.md says: the daemon goes on where the backup was made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import conninfo

from dataflowd import flow
from dataflowd.database import migrate
from dataflowd.host.embedded import postgres
from tests import readme
from tests.fix_daemon import daemons, eventually
from tests.fix_postgres import TEST_SERVER_SETTINGS, running_server

if TYPE_CHECKING:
    from dataflowd.host.settings import Settings

PAGE = readme.DOCS / "upgrade.md"
FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.clean]
format = "csv"
location = "{root}/clean"
[job.work]
command = ["sh", "-c", "test $dataid != flying || test -e $HOME/go || sleep 600; echo $dataid > $clean_location/part-1.csv"]
inputs = ["raw"]
outputs = ["clean"]
"""
STATUS = "SELECT dataid::text, status FROM dataflow.datastatus WHERE datasetid = 'clean' AND locktype = 'OUT'"


def _statuses(connection: psycopg.Connection) -> dict[str, str]:
    return dict(connection.execute(STATUS).fetchall())


def _type(command: str, directory: Path, **env: str) -> str:
    """Runs a command of the page, with the programs of the embedded Postgres on PATH, and returns its output."""
    path = f"{postgres.binary('pg_dump').parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=directory,
        env={"PATH": path, "HOME": str(directory), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def test_a_daemon_goes_on_from_a_backup_on_a_new_server(
    dsn: str, connection: psycopg.Connection, settings: Settings, tmp_path: Path
) -> None:
    flow_file = tmp_path / "shop.toml"
    backup = readme.commands("Backup", path=PAGE)
    restore, pass_over = readme.commands("Restore", path=PAGE)
    flow_file.write_text(FLOW, encoding="utf-8")
    flow.apply(connection, flow.load(flow_file, settings))
    with daemons(dsn, flow_file, tmp_path) as start:
        daemon = start(name="d1")
        connection.execute("SELECT dataflow.ready('raw', ARRAY['1', '2'])")
        eventually(lambda: _statuses(connection) == {"1": "READY", "2": "READY"})
        connection.execute("SELECT dataflow.ready('raw', 'flying'::text)")
        eventually(lambda: _statuses(connection).get("flying") == "RUNNING")
        for command in backup:
            _type(command, tmp_path, DATAFLOW_DSN=dsn)
        # The backup does not have the rest: with the server its rows are lost, and its files stay.
        connection.execute("SELECT dataflow.ready('raw', 'later'::text)")
        eventually(lambda: _statuses(connection).get("later") == "READY")
        daemon.kill()
    before = {path: path.read_text() for path in Path(settings.effective_root).rglob("*.csv")}
    (tmp_path / "go").touch()
    with running_server(TEST_SERVER_SETTINGS) as fresh:
        there = {
            f"PG{name.upper()}": str(value)
            for name, value in conninfo.conninfo_to_dict(fresh.dsn).items()
            if name in {"host", "port", "user"}
        }
        _type(restore, tmp_path, **there)
        first = int(_type(pass_over, tmp_path, **there).split("\n")[2])
        with psycopg.connect(fresh.database("flow"), autocommit=True) as restored:
            assert migrate.init(restored) == []
            with daemons(fresh.database("flow"), flow_file, tmp_path) as start:
                again = start(name="d1")
                eventually(lambda: _statuses(restored) == dict.fromkeys(("1", "2", "flying"), "READY"))
                restored.execute("SELECT dataflow.ready('raw', 'later'::text)")
                eventually(lambda: _statuses(restored).get("later") == "READY")
                with pytest.raises(psycopg.Error, match="a daemon works on this database"):
                    restored.execute("SELECT dataflow.restored()")
                again.stop()
            outcomes = restored.execute(
                "SELECT dataid::text, outcome, attempt >= %s FROM dataflow.attempt ORDER BY attempt", [first]
            ).fetchall()
            found = restored.execute("SELECT location FROM dataflow.manifest ORDER BY attempt").fetchall()
    assert sorted(outcomes[:2]) == [("1", "DONE", False), ("2", "DONE", False)]
    assert outcomes[2:] == [("flying", "LOST", False), ("flying", "DONE", True), ("later", "DONE", True)]
    assert all((Path(location) / "part-1.csv").read_text() for (location,) in found)
    assert {path: path.read_text() for path in before} == before
