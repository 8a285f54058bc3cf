"""Another user of the host can read and reach nothing of the daemon. Needs root, to become another user."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dataflowd import flow
from dataflowd.host.embedded import postgres
from tests.fix_daemon import daemons, eventually
from tests.fix_postgres import reachable_directory
from tests.processes import below, needs_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.fix_daemon import Daemon

SOMEBODY = 65534
SECRET = "canary-of-the-vault-77c1"  # noqa: S105 - the content of a file
FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.clean]
format = "none"
[job.work]
command = ["sh", "-c", "echo SECRET; until [ -e go ]; do sleep 0.1; done"]
inputs = ["raw"]
outputs = ["clean"]
"""
pytestmark = needs_root
# Prints which paths below a directory can be listed, read, written or connected to.
PROBE = """
import json, os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
reached = []
def attempt(what, do):
    try:
        do()
    except OSError:
        return
    reached.append(what)
def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
for path in json.loads(sys.argv[1]):
    attempt(f"read {path}", lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))
    attempt(f"write {path}", lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)))
    attempt(f"connect {path}", lambda: connect(path))
    attempt(f"make {path}/x", lambda: os.mkdir(path + "/x"))
for path in json.loads(sys.argv[2]):
    attempt(f"look at {path}", lambda: open(path, "rb").read())
print(json.dumps(reached))
"""


def reached(paths: list[str], processes: list[int]) -> list[str]:
    """The paths that another user can reach."""
    about = [f"/proc/{pid}/{what}" for pid in processes for what in ("environ", "mem", "maps")]
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROBE, json.dumps(paths), json.dumps(about)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return list(json.loads(done.stdout))


@pytest.fixture
def alive(dsn: str, settings: Settings, connection: psycopg.Connection) -> Iterator[tuple[Path, Daemon]]:
    """A daemon with a running attempt. It has made its data directory under an open umask."""
    before = os.umask(0o022)
    try:
        with reachable_directory() as directory:
            (directory / "flow.toml").write_text(FLOW.replace("SECRET", SECRET), encoding="utf-8")
            ours = settings.model_copy(update={"data_dir": directory / "dataflowd"})
            flow.apply(connection, flow.load(directory / "flow.toml", ours), prune=False)
            with daemons(dsn, directory / "flow.toml", directory) as start:
                daemon = start()
                connection.execute("SELECT dataflow.ready('raw', ARRAY['1'])")
                log_dir = directory / "dataflowd" / "log" / "work" / "1"
                eventually(
                    lambda: log_dir.is_dir() and any(path.stat().st_size for path in log_dir.iterdir())
                )
                yield directory / "dataflowd", daemon
                (directory / "go").touch()
    finally:
        os.umask(before)


def everything(data_dir: Path) -> list[str]:
    return [str(data_dir), *sorted(str(path) for path in data_dir.rglob("*"))]


def test_the_health_port_tells_nothing_that_is_worth_a_visit(alive: tuple[Path, Daemon]) -> None:
    data_dir, daemon = alive
    for path in ("/health", "/health/live", "/metrics", "/", "/../../etc/passwd", "/health?x=%00"):
        _, text = daemon.get(path)
        assert SECRET not in text
        assert str(data_dir) not in text
        assert "postgres" not in text
        assert "root:" not in text


def test_the_daemon_and_its_jobs_are_closed_to_others(alive: tuple[Path, Daemon]) -> None:
    _, daemon = alive
    processes = below(daemon.pid)
    assert len(processes) > 1
    assert reached([], processes) == []


def test_the_embedded_server_lets_nobody_else_in() -> None:
    with reachable_directory() as directory:
        try:
            dsn = postgres.ensure_running(directory / "mine")
            sockets = [str(path) for path in directory.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]
            assert sockets, dsn
            assert reached(sockets, []) == []
        finally:
            postgres.stop(directory / "mine")


def test_nobody_else_reaches_logs_or_spool(alive: tuple[Path, Daemon]) -> None:
    data_dir, _ = alive
    assert reached([*everything(data_dir / "log"), *everything(data_dir / "run")], []) == []
