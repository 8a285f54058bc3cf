"""Moves the embedded database to another server, as docs/move.md says; also to an older Postgres, if this host has one."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from dataflowd.host.embedded import account, postgres
from dataflowd.model.errors import EXIT
from tests import readme
from tests.fix_postgres import reachable_directory, run_dataflowctl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_postgres import Server

    Ctl = Callable[..., subprocess.CompletedProcess[str]]

PAGE = readme.ROOT / "docs" / "move.md"
COMMANDS = readme.commands(next(iter(readme.sections(PAGE))), path=PAGE)
OTHERS = Path("/usr/lib/postgresql")  # where distributions install each version
FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.warehouse]
format = "jdbc"
hostname = "localhost"
database = "sales"
tablename = "orders"
username = "loader"
[dataset.clean]
format = "csv"
location = "{root}/clean"
[job.work]
command = ["sh", "-c", "echo $dataid:$warehouse_password > $clean_location/part-1.csv; test $dataid != bad"]
inputs = ["raw", "warehouse"]
outputs = ["clean"]
"""
# Tables that the copy changes: they refer to sessions and transactions of the old server, or record the copy.
OF_THE_SERVER = {"daemon", "recheck", "event"}


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[tuple[Ctl, Path]]:
    """An embedded database in which a job has run, failed, and used a sealed password."""
    with reachable_directory() as directory:
        data_dir = directory / "dataflowd"
        flow = tmp_path / "flow.toml"
        flow.write_text(FLOW, encoding="utf-8")

        def ctl(*words: str, status: int = 0, stdin: str = "", **env: str) -> Any:
            variables = {
                "DATAFLOW_DATA_DIR": str(data_dir),
                "DATAFLOW_FLOWS": str(flow),
                "HOME": str(tmp_path),
            }
            ended = run_dataflowctl(*words, env=variables | env, stdin=stdin)
            assert ended.returncode == status, (words, ended.stdout, ended.stderr)
            return ended

        try:
            ctl("init")
            ctl("apply", str(flow))
            ctl("key", "generate")
            ctl("seal", "warehouse", stdin="secret\n")
            ctl("ready", "raw", "1", "2", "bad")
            ctl("ready", "warehouse", "1", "2", "bad")
            ctl("run", "work", "--all", status=EXIT["FAILED"])
            yield ctl, data_dir
        finally:
            postgres.stop(data_dir)


@contextmanager
def older_server() -> Iterator[str]:
    """The oldest other Postgres that this host has."""
    found = sorted(path.parent for path in OTHERS.glob("*/bin/initdb"))
    if not found:
        pytest.skip("no other version of Postgres is on this host")
    with reachable_directory() as directory:
        owner = account.choose(directory / "data")
        owner.own(directory)

        def run(program: str, *words: str) -> None:
            command = [str(found[0] / program), *words]
            subprocess.run(
                command,
                cwd=directory,
                check=True,
                stdout=subprocess.DEVNULL,
                **owner.popen_arguments(),
            )

        run("initdb", "--pgdata=data", "--auth=trust", "--username=postgres", "--no-sync")
        options = f"-c listen_addresses='' -c fsync=off -k {shlex.quote(str(directory))}"
        run("pg_ctl", "start", "-D", "data", "-w", "-l", "log", "-o", options)
        try:
            dsn = psycopg.conninfo.make_conninfo(host=str(directory), user="postgres", dbname="postgres")
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("CREATE DATABASE flow")
            yield psycopg.conninfo.make_conninfo(dsn, dbname="flow")
        finally:
            run("pg_ctl", "stop", "-D", "data", "-w", "-m", "immediate")


def rows(dsn: str) -> dict[str, list[str]]:
    """All rows of every table, as text."""
    with psycopg.connect(dsn, options="-c TimeZone=UTC") as connection:
        names = connection.execute(
            "SELECT relname::text FROM pg_class WHERE relnamespace = 'dataflow'::regnamespace AND relkind = 'r'"
        ).fetchall()
        found = {}
        for (name,) in names:
            query = sql.SQL("SELECT t::text FROM dataflow.{} AS t ORDER BY 1").format(sql.Identifier(name))
            found[name] = [row[0] for row in connection.execute(query)]
        return found


def test_the_embedded_database_moves_to_a_server_of_another_version(embedded: tuple[Ctl, Path]) -> None:
    with older_server() as dsn:
        assert_moves(*embedded, dsn)


def test_the_embedded_database_moves_to_a_server_of_its_own_version(
    embedded: tuple[Ctl, Path], empty_dsn: str
) -> None:
    assert_moves(*embedded, empty_dsn)


def assert_moves(ctl: Ctl, data_dir: Path, dsn: str) -> None:
    before = rows(postgres.ensure_running(data_dir))
    export, *typed = COMMANDS
    assert export.startswith("export DATAFLOW_DSN=")
    said = {command: ctl(*shlex.split(command)[1:], DATAFLOW_DSN=dsn) for command in typed}
    assert f"stay in {data_dir}" in said["dataflowctl embedded copy"].stdout
    assert "1 run of 1 job FAILED" in said["dataflowctl status"].stdout.replace("runs", "run").replace(
        "jobs", "job"
    )
    after = rows(dsn)
    assert after.keys() == before.keys()
    kept = before.keys() - OF_THE_SERVER - {"migration"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert set(before["event"]) < set(after["event"])
    assert rows(postgres.ensure_running(data_dir)) == before
    # The copy works: the failed run runs again, a new chunk runs with the sealed password, and triggers are enabled.
    ctl("ready", "raw", "3", DATAFLOW_DSN=dsn)
    ctl("ready", "warehouse", "3", DATAFLOW_DSN=dsn)
    ctl("resubmit", "work", "--yes", DATAFLOW_DSN=dsn)
    ctl("run", "work", "--all", DATAFLOW_DSN=dsn, status=EXIT["FAILED"])
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT dataid, location FROM dataflow.published WHERE datasetid = 'clean' ORDER BY dataid"
        ).fetchall()
    assert [Path(location, "part-1.csv").read_text() for _, location in found] == [
        f"{dataid}:secret\n" for dataid in ("1", "2", "3")
    ]
    again = ctl("embedded", "copy", DATAFLOW_DSN=dsn, status=EXIT["NOT_ALLOWED"])
    assert "is in use: it holds 1 job, 3 datasets" in again.stderr


def test_a_copy_that_is_not_possible_is_refused_and_changes_nothing(
    embedded: tuple[Ctl, Path], empty_dsn: str, server: Server
) -> None:
    ctl, data_dir = embedded
    nowhere = ctl("embedded", "copy", status=EXIT["NOT_ALLOWED"])
    assert "no DSN is configured" in nowhere.stderr
    unprepared = ctl("embedded", "copy", DATAFLOW_DSN=empty_dsn, status=EXIT["SCHEMA_MISMATCH"])
    assert "run `dataflowctl init`" in unprepared.stderr
    itself = ctl(
        "embedded",
        "copy",
        DATAFLOW_DSN=postgres.ensure_running(data_dir),
        status=EXIT["NOT_ALLOWED"],
    )
    assert "names the embedded database itself" in itself.stderr
    ctl("init", DATAFLOW_DSN=empty_dsn)
    before = rows(empty_dsn)
    with server.login(empty_dsn, "dataflow_operator") as operator:
        ctl("embedded", "copy", DATAFLOW_DSN=operator, status=EXIT["NOT_ALLOWED"])
    with psycopg.connect(postgres.ensure_running(data_dir), autocommit=True) as connection:
        connection.execute("SELECT dataflow.register_daemon('alpha', 'host', 1, '1 hour')")
        busy = ctl("embedded", "copy", DATAFLOW_DSN=empty_dsn, status=EXIT["LOCKED"])
    assert "a daemon works on the embedded database: alpha" in busy.stderr
    assert rows(empty_dsn) == before
    elsewhere = ctl(
        "embedded",
        "copy",
        DATAFLOW_DSN=empty_dsn,
        DATAFLOW_DATA_DIR=os.devnull,
        status=EXIT["NOT_FOUND"],
    )
    assert "there is no embedded database in /dev/null" in elsewhere.stderr
