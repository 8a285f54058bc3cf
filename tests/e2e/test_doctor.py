"""The doctor finds what would stop a run, says what to do, and reports nothing else as failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import conninfo

from dataflowd import flow
from dataflowd.cli.doctor import checks
from tests.fix_proxy import proxy
from tests.terminals import open_terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl, Server

HOST_CHECKS = ["java", "spark", "spark_network", "disk", "roots"]
DATABASE_CHECKS = ["postgres", "tls", "schema", "roles", "clock", "daemons", "listen"]


def report(run_ctl: RunCtl, *arguments: str, env: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """The findings by check. Asserts that the exit status agrees with the report, and that each problem has a remedy."""
    result = run_ctl("doctor", "--json", *(arguments or ["--no-spark"]), env=env)
    assert result.stderr == ""
    shown = json.loads(result.stdout)
    assert result.returncode == (0 if shown["ok"] else 1)
    for check in shown["checks"]:
        assert check["remedy"] or check["state"] in {"ok", "skipped"}, check
    return {check["check"]: check for check in shown["checks"]}


def test_a_healthy_host_passes_and_spark_really_counts(run_ctl: RunCtl) -> None:
    found = report(run_ctl, "--spark")
    assert list(found) == [*HOST_CHECKS, *DATABASE_CHECKS, "promise"]
    assert found.pop("promise")["state"] == "warning"  # the server of the tests trusts every client
    assert {check["state"] for check in found.values()} == {"ok"}, [
        check for check in found.values() if check["state"] != "ok"
    ]
    assert "counted" in found["spark"]["detail"]


def test_a_spark_that_cannot_start_is_a_finding(tmp_path: Path) -> None:
    finding = checks.spark_starts({"JAVA_HOME": str(tmp_path)})
    assert finding.state == "failed"
    assert finding.remedy


def test_a_database_that_does_not_answer_fails_and_the_rest_is_still_checked(run_ctl: RunCtl) -> None:
    found = report(run_ctl, env={"DATAFLOW_DSN": "host=127.0.0.1 port=1 user=x dbname=x"})
    assert found["postgres"]["state"] == "failed"
    assert "Connection refused; Is the server running" in found["postgres"]["detail"]
    assert found["schema"]["state"] == "skipped"
    assert found["disk"]["state"] == "ok"


def test_a_database_without_the_schema_is_sent_to_init(run_ctl: RunCtl, empty_dsn: str) -> None:
    found = report(run_ctl, env={"DATAFLOW_DSN": empty_dsn})
    assert found["schema"]["state"] == "failed"
    assert "dataflowctl init" in found["schema"]["remedy"]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("INSERT INTO dataflow.migration VALUES ('9999_future.sql', 'x')", "9999_future.sql"),
        ("UPDATE dataflow.migration SET checksum = 'x' WHERE name = '0001_roles.sql'", "0001_roles.sql"),
        ("DELETE FROM dataflow.migration WHERE name = '0002_metadata.sql'", "0002_metadata.sql"),
    ],
)
def test_the_doctor_names_drift_of_the_schema(
    run_ctl: RunCtl, connection: psycopg.Connection, damage: str, expected: str
) -> None:
    connection.execute(damage)
    found = report(run_ctl)
    assert found["schema"]["state"] == "failed"
    assert expected in found["schema"]["detail"]


@pytest.mark.parametrize(
    ("role", "state"), [("dataflow_daemon", "ok"), ("dataflow_reader", "warning"), ("", "failed")]
)
def test_the_users_roles_are_judged(run_ctl: RunCtl, server: Server, dsn: str, role: str, state: str) -> None:
    with server.login(dsn, role) as theirs:
        found = report(run_ctl, env={"DATAFLOW_DSN": theirs})
        shown = run_ctl("doctor", "--no-spark", env={"DATAFLOW_DSN": theirs}).stdout
    assert found["roles"]["state"] == state
    assert shown.endswith("nothing would stop a run\n") is (state == "ok")


def test_a_transaction_mode_pooler_is_recognised(run_ctl: RunCtl, dsn: str) -> None:
    with proxy(dsn, servers=2) as pooled:
        found = report(run_ctl, env={"DATAFLOW_DSN": pooled})
    assert found["listen"]["state"] == "failed"
    assert "transaction-mode pooler" in found["listen"]["detail"]


def test_an_old_server_is_recognised(run_ctl: RunCtl, dsn: str) -> None:
    with proxy(dsn, server_version="14.9") as old:
        found = report(run_ctl, env={"DATAFLOW_DSN": old})
    assert found["postgres"]["state"] == "failed"
    assert "Postgres 14.9" in found["postgres"]["detail"]


def test_a_remote_server_without_verified_tls_is_only_a_warning(run_ctl: RunCtl, dsn: str) -> None:
    with proxy(dsn) as near:
        far = conninfo.make_conninfo(near, host="db.example", hostaddr="127.0.0.1", sslmode="disable")
        found = report(run_ctl, env={"DATAFLOW_DSN": far})
    assert found["tls"]["state"] == "warning"
    assert "not encrypted" in found["tls"]["detail"]
    assert "verify-full" in found["tls"]["remedy"]


def test_a_root_that_is_missing_fails_and_the_default_one_is_made(run_ctl: RunCtl, tmp_path: Path) -> None:
    missing = report(run_ctl, env={"DATAFLOW_ALLOWED_ROOTS": str(tmp_path / "nowhere")})
    assert missing["roots"]["state"] == "failed"
    assert not (tmp_path / "nowhere").exists()
    made = report(run_ctl, env={"DATAFLOW_DATA_DIR": str(tmp_path / "fresh")})
    assert made["roots"]["state"] == "ok"
    assert (tmp_path / "fresh" / "data").is_dir()


def test_a_root_that_is_no_place_on_this_host_is_left_to_the_runner(run_ctl: RunCtl) -> None:
    assert report(run_ctl, env={"DATAFLOW_ALLOWED_ROOTS": "s3a://bucket/flow"})["roots"]["state"] == "skipped"


def test_a_read_only_root_fails() -> None:
    assert checks._root("/proc/self").state == "failed"


def test_a_data_directory_below_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0o400)
    assert checks.disk(tmp_path / "file" / "data").state == "failed"


def test_a_java_that_is_set_but_absent_fails(run_ctl: RunCtl, tmp_path: Path) -> None:
    found = report(run_ctl, env={"DATAFLOW_JAVA_HOME": str(tmp_path)})
    assert found["java"]["state"] == "failed"
    assert found["spark"]["state"] == "skipped"


def test_a_flow_that_does_not_load_fails(run_ctl: RunCtl, tmp_path: Path) -> None:
    (tmp_path / "flow.toml").write_text("[flow]\nnane = 'x'\n", encoding="utf-8")
    found = report(run_ctl, env={"DATAFLOW_FLOWS": str(tmp_path / "flow.toml")})
    assert found["flows"]["state"] == "failed"
    assert "\n" not in found["flows"]["detail"]


def test_the_report_is_ascii_where_the_locale_is(run_ctl: RunCtl) -> None:
    plain = {"LC_ALL": "C", "LANG": None, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = run_ctl("doctor", "--no-spark", env=plain)
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert "[ok] postgres" in result.stdout
    assert result.stdout.endswith("nothing would stop a run\n")


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals_that_want_them(
    dsn: str, tmp_path: Path, no_color: str, coloured: bool
) -> None:
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(tmp_path), "NO_COLOR": no_color}
    env |= {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(tmp_path)}
    ours, theirs = open_terminal()
    program = Path(sys.executable).parent / "dataflowctl"
    with os.fdopen(ours, "rb", buffering=0) as screen:
        subprocess.run([program, "doctor", "--no-spark"], env=env, stdout=theirs, check=True)
        os.close(theirs)
        shown = screen.read(65536).decode()
    assert ("\x1b[32m\u2713\x1b[0m postgres" in shown) is coloured
    assert "\u2713" in shown


def test_a_flow_file_that_the_database_does_not_know_as_it_is_now_is_named(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "flow.toml"
    text = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.clean]
format = "none"
[job.work]
command = ["true"]
inputs = ["raw"]
outputs = ["clean"]
params = { day = 1 }
"""
    file.write_text(text, encoding="utf-8")
    env = {"DATAFLOW_FLOWS": str(file)}
    before = report(run_ctl, env=env)["applied"]
    assert before["state"] == "warning"
    assert "dataset clean (not there), dataset raw (not there), job work (not there)" in before["detail"]
    flow.apply(connection, flow.load(file, settings))
    assert "applied" not in report(run_ctl, env=env)
    file.write_text(text.replace("day = 1", "day = 2"), encoding="utf-8")
    changed = report(run_ctl, env=env)["applied"]
    assert "job work (config_hash, params)" in changed["detail"]
    assert changed["remedy"].startswith(f"`dataflowctl apply {file}`")
