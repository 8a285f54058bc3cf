"""`dataflowctl init` makes one schema, however often and by however many it is run, and refuses with one clear error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from dataflowd.host import sqlfiles
from dataflowd.model.errors import EXIT
from tests.fix_postgres import SOMEBODY, Server, run_dataflowctl, run_program, running_server
from tests.fix_proxy import proxy

PARALLEL = 8
CTL = str(Path(sys.executable).parent / "dataflowctl")


def init(dsn: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_dataflowctl("init", *arguments, env=environment(dsn, home))


def environment(dsn: str, home: Path) -> dict[str, str]:
    return {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(home / "data"), "HOME": str(home)}


def assert_refused(result: subprocess.CompletedProcess[str], code: str, *words: str) -> None:
    """Asserts one error with this code, its subject and a remedy."""
    assert result.returncode == EXIT[code], result.stderr
    assert result.stderr.startswith(f"error [{code}]: ")
    assert result.stderr.count("error [") == 1
    assert "\n  remedy: " in result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def applied(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [
            str(row[0]) for row in connection.execute("SELECT name FROM dataflow.migration ORDER BY name")
        ]


def all_files() -> list[str]:
    return sorted(
        [path.name for path in sqlfiles.migrations()]
        + [f"functions/{path.name}" for path in sqlfiles.functions()]
    )


def test_several_at_once_on_an_empty_database_make_one_schema(empty_dsn: str, tmp_path: Path) -> None:
    variables = {"PATH": os.environ["PATH"], **environment(empty_dsn, tmp_path)}
    started = [
        subprocess.Popen(
            [CTL, "init", "--json"], env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(PARALLEL)
    ]
    ended = [(process.communicate(), process.returncode) for process in started]
    assert [status for _, status in ended] == [0] * PARALLEL, [err for (_, err), _ in ended]
    done = [json.loads(out)["done"] for (out, _), _ in ended]
    assert sorted(map(len, done)) == [0] * (PARALLEL - 1) + [len(all_files())]
    assert applied(empty_dsn) == all_files()


def test_init_says_what_it_did_and_then_that_nothing_is_left(empty_dsn: str, tmp_path: Path) -> None:
    first, second = init(empty_dsn, tmp_path), init(empty_dsn, tmp_path)
    assert first.returncode == second.returncode == 0, first.stderr
    assert [line for line in first.stdout.splitlines() if line.startswith("applied migration ")] == [
        f"applied migration {path.name}" for path in sqlfiles.migrations()
    ]
    made = len(first.stdout.splitlines()) - 1
    assert first.stdout.splitlines()[-1].startswith(f"made {made} changes; ")
    assert first.stdout.endswith(" is up to date now\n")
    assert second.stdout.endswith("is up to date; nothing to do\n")


def test_a_newer_database_is_refused_and_left_alone(
    dsn: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    connection.execute("INSERT INTO dataflow.migration (name, checksum) VALUES ('9999_future.sql', 'x')")
    connection.execute("DELETE FROM dataflow.migration WHERE name LIKE 'functions/%'")
    before = applied(dsn)
    assert_refused(
        init(dsn, tmp_path), "SCHEMA_MISMATCH", "newer than this program", "9999_future.sql", "upgrade"
    )
    assert applied(dsn) == before


def test_an_edited_migration_is_refused(dsn: str, connection: psycopg.Connection, tmp_path: Path) -> None:
    connection.execute("UPDATE dataflow.migration SET checksum = 'x' WHERE name = '0001_roles.sql'")
    assert_refused(init(dsn, tmp_path), "SCHEMA_MISMATCH", "edited", "0001_roles.sql")


def test_changed_functions_are_applied_again(
    dsn: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    connection.execute("UPDATE dataflow.migration SET checksum = 'x' WHERE name LIKE 'functions/%'")
    result = init(dsn, tmp_path, "--json")
    assert json.loads(result.stdout)["done"] == [
        f"updated functions {path.name}" for path in sqlfiles.functions()
    ]


def test_a_user_without_rights_is_told_whom_to_ask_and_leaves_nothing(
    server: Server, empty_dsn: str, tmp_path: Path
) -> None:
    with server.login(empty_dsn) as theirs:
        assert_refused(init(theirs, tmp_path), "NOT_ALLOWED", SOMEBODY, "superuser")
    with psycopg.connect(empty_dsn) as connection:
        assert connection.execute("SELECT to_regnamespace('dataflow')").fetchone() == (None,)


def test_an_owner_who_may_create_roles_needs_no_superuser(tmp_path: Path) -> None:
    """Needs its own server: roles belong to a server, and the server of the tests has them already."""
    with running_server({}) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE ROLE owner LOGIN CREATEROLE")
            connection.execute("CREATE DATABASE flow OWNER owner")
        result = init(conninfo.make_conninfo(server.database("flow"), user="owner"), tmp_path)
        assert result.returncode == 0, result.stderr


def test_a_member_of_dataflow_admin_may_upgrade(server: Server, dsn: str, tmp_path: Path) -> None:
    with server.login(dsn, "dataflow_admin") as theirs:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("UPDATE dataflow.migration SET checksum = 'x' WHERE name LIKE 'functions/%'")
        result = init(theirs, tmp_path)
        assert result.returncode == 0, result.stderr


def test_an_old_server_is_refused(empty_dsn: str, tmp_path: Path) -> None:
    with proxy(empty_dsn, server_version="14.9") as old:
        assert_refused(init(old, tmp_path), "SCHEMA_MISMATCH", "Postgres 14", "15 or newer")


def test_a_database_that_does_not_answer_is_named_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = init(f"postgresql://me:hunter2@127.0.0.1:{port}/flow", tmp_path)
    assert_refused(result, "DATABASE_UNREACHABLE", "127.0.0.1", str(port), "DATAFLOW_DSN")
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize(
    "dsn", ["nonsense hunter2", "postgresql://[::1/hunter2", "hots=x password=hunter2", "host='hunter2"]
)
def test_a_malformed_dsn_is_an_invalid_setting_and_not_shown(dsn: str, tmp_path: Path) -> None:
    result = init(dsn, tmp_path)
    assert_refused(result, "INVALID_SETTINGS", "dsn", "postgresql://user@host/database")
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize("program", ["dataflowctl", "dataflowd"])
def test_a_missing_settings_file_is_an_invalid_setting(program: str, tmp_path: Path) -> None:
    command = {"dataflowctl": "init", "dataflowd": "config"}[program]
    result = run_program(program, "--config", "/does/not/exist.toml", command, env={"HOME": str(tmp_path)})
    assert_refused(result, "INVALID_SETTINGS", "/does/not/exist.toml", "--config")


def test_a_hostile_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    result = run_program("dataflowctl", "--config", "\x1b[2Jx", "init", env={"HOME": str(tmp_path)})
    assert_refused(result, "INVALID_SETTINGS", r"\x1b[2Jx")


@pytest.mark.parametrize("arguments", [["nit"], ["init", "--nope"], ["init", "extra"], []])
def test_a_wrong_command_line_is_status_2(arguments: list[str], tmp_path: Path) -> None:
    result = run_program("dataflowctl", *arguments, env={"HOME": str(tmp_path)})
    assert result.returncode == EXIT["USAGE"]
    assert "dataflowctl" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_daemon_refuses_a_missing_schema_in_the_words_of_every_command(
    empty_dsn: str, tmp_path: Path
) -> None:
    env = environment(empty_dsn, tmp_path)
    refused = run_program("dataflowd", "run", "--once", "--engine", "noop", env=env)
    assert_refused(refused, "SCHEMA_MISMATCH", 'schema "dataflow" does not exist', "dataflowctl init")
    assert run_program("dataflowctl", "status", env=env).stderr == refused.stderr


@pytest.mark.parametrize(("option", "value"), [("--engine", "foo"), ("--name", "a b")])
def test_a_wrong_option_of_the_daemon_is_status_2(option: str, value: str, dsn: str, tmp_path: Path) -> None:
    refused = run_program("dataflowd", "run", option, value, env=environment(dsn, tmp_path))
    assert_refused(refused, "USAGE", f"{option} {value}: ")


@pytest.mark.alone
def test_help_is_quick_because_it_imports_little() -> None:
    code = "import resource, sys; from dataflowd.cli.app import app\n"
    code += "app(['--help'], standalone_mode=False)\n"
    code += "print(sorted({'pydantic', 'psycopg', 'structlog', 'pyspark', 'rich'} & set(sys.modules)))\n"
    code += "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    *_, heavy, seconds = shown.stdout.splitlines()
    assert heavy == "[]"
    # Twice the time on a slow machine, so that only a new import exceeds it.
    assert float(seconds) < 0.5
