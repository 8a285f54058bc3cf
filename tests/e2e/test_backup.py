"""The control database is lost, and restored on a new server as README says: the daemon goes on where the backup was made."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from dataflowd import flow, migrate
from dataflowd.embedded import postgres
from tests.fix_daemon import daemons, eventually
from tests.fix_postgres import TEST_SERVER_SETTINGS, running_server

if TYPE_CHECKING:
    from dataflowd.settings import Settings

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


def _run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(postgres.binary(program)), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


def test_a_daemon_goes_on_from_a_backup_on_a_new_server(
    dsn: str, connection: psycopg.Connection, settings: Settings, tmp_path: Path
) -> None:
    flow_file, backup, roles = tmp_path / "shop.toml", tmp_path / "flow.dump", tmp_path / "roles.sql"
    flow_file.write_text(FLOW, encoding="utf-8")
    flow.apply(connection, flow.load(flow_file, settings))
    with daemons(dsn, flow_file, tmp_path) as start:
        daemon = start(name="d1")
        connection.execute("SELECT dataflow.ready('raw', ARRAY['1', '2'])")
        eventually(lambda: _statuses(connection) == {"1": "READY", "2": "READY"})
        connection.execute("SELECT dataflow.ready('raw', 'flying'::text)")
        eventually(lambda: _statuses(connection).get("flying") == "RUNNING")
        roles.write_text(_run("pg_dumpall", "--roles-only", "--dbname", dsn), encoding="utf-8")
        _run("pg_dump", "--format=custom", "--file", str(backup), "--dbname", dsn)
        # What happens from here on is lost with the server; its files stay.
        connection.execute("SELECT dataflow.ready('raw', 'later'::text)")
        eventually(lambda: _statuses(connection).get("later") == "READY")
        daemon.kill()
    before = {path: path.read_text() for path in Path(settings.effective_root).rglob("*.csv")}
    (tmp_path / "go").touch()
    with running_server(TEST_SERVER_SETTINGS) as fresh:
        _run("psql", "--no-psqlrc", "--quiet", "--dbname", fresh.dsn, "--file", str(roles))
        with psycopg.connect(fresh.dsn, autocommit=True) as administrator:
            administrator.execute("CREATE DATABASE flow")
        _run("pg_restore", "--exit-on-error", "--dbname", fresh.database("flow"), str(backup))
        with psycopg.connect(fresh.database("flow"), autocommit=True) as restored:
            assert migrate.init(restored) == []
            [[first]] = restored.execute("SELECT dataflow.restored()").fetchall()
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
