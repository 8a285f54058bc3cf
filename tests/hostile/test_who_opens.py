"""With runner_user, the framework not only does not open passwords: it cannot."""

from __future__ import annotations

import base64
import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataflowd import flow
from dataflowd.host import keyfile, seal
from tests.fix_daemon import daemons, eventually
from tests.fix_postgres import reachable_directory, run_program
from tests.processes import require_python_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.fix_daemon import Daemon, StartDaemon

JOBS_USER = "nobody"
PASSWORD = "canary-of-a-password"  # noqa: S105
FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "jdbc"
tablename = "orders"
hostname = "localhost"
database = "bank"
username = "etl"
[dataset.clean]
format = "none"
[job.work]
command = ["./work.sh"]
inputs = ["raw"]
outputs = ["clean"]
"""
# Waits with its password, so that the test can inspect the daemon meanwhile.
WORK = """#!/bin/sh -eu
[ "$raw_password" = {password} ]
id -un > {told}
until [ -e {go} ]; do sleep 0.05; done
"""


class Host:
    """A host whose jobs run as another user, and a dataset with a sealed password."""

    def __init__(
        self, directory: Path, connection: psycopg.Connection, settings: Settings, start: StartDaemon
    ) -> None:
        self.directory, self.connection, self.start = directory, connection, start
        self.key = directory / "dataflowd" / "key"
        self.told, self.go = directory / "told", directory / "go"
        script = directory / "work.sh"
        script.write_text(WORK.format(password=PASSWORD, told=self.told, go=self.go), encoding="utf-8")
        script.chmod(0o755)
        self.told.touch()
        self.told.chmod(0o666)
        file = directory / "flow.toml"
        file.write_text(FLOW, encoding="utf-8")
        flow.apply(connection, flow.load(file, settings))
        self.made = seal.generate(seal.PLAIN)
        keyfile.add(self.key, [keyfile.line(self.made)])
        closed = seal.seal(PASSWORD, self.made.public, seal.Binding("raw", "etl", "localhost", "bank"))
        connection.execute("UPDATE dataflow.dataset SET encryptedpass = %s WHERE datasetid = 'raw'", [closed])
        connection.execute("SELECT dataflow.ready('raw', '1')")

    def works(self, env: dict[str, str]) -> Daemon:
        """A daemon with a job that has opened its password and waits."""
        daemon = self.start(env=env)
        eventually(lambda: self.told.read_text(encoding="utf-8").strip() == JOBS_USER)
        return daemon

    def ends(self, daemon: Daemon) -> None:
        self.go.touch()
        daemon.said("attempt.finished")
        assert daemon.stop() == 0
        assert self.connection.execute("SELECT outcome FROM dataflow.attempt").fetchall() == [("DONE",)]


@pytest.fixture
def host(connection: psycopg.Connection, dsn: str, settings: Settings) -> Iterator[Host]:
    with reachable_directory() as directory, daemons(dsn, directory / "flow.toml", directory) as start:
        yield Host(directory, connection, settings, start)


def memory_of(pid: int) -> bytes:
    """The readable and writable memory of a process, read by root."""
    found = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            first, last = (int(number, 16) for number in line.split()[0].split("-"))
            if line.split()[1].startswith("rw") and "[v" not in line:
                memory.seek(first)
                found.append(memory.read(last - first))
    return b"".join(found)


def test_with_runner_user_the_key_is_never_in_the_daemons_memory(host: Host) -> None:
    require_python_of(JOBS_USER)
    daemon = host.works({"DATAFLOW_RUNNER_USER": JOBS_USER})
    held = memory_of(daemon.pid)
    assert str(host.directory).encode() in held  # proves that this is the memory of the process
    written = keyfile.line(host.made).split()[-1]
    for secret in (host.made.raw, written.encode(), base64.b64decode(written), PASSWORD.encode()):
        assert secret not in held
    assert (host.key.stat().st_uid, host.key.stat().st_mode & 0o077) == (0, 0)
    host.ends(daemon)


def test_a_key_of_the_jobs_user_alone_is_read_by_its_processes_alone(host: Host) -> None:
    require_python_of(JOBS_USER)
    keys, readers = host.directory / "jobs.key", host.directory / "readers"
    host.key.rename(keys)
    os.chown(keys, pwd.getpwnam(JOBS_USER).pw_uid, -1)
    keys.chmod(0o400)
    readers.touch()
    readers.chmod(0o666)
    command = f'["sh", "-c", "id -un >> {readers}; cat {keys}"]'
    config = host.directory / "config.toml"
    config.write_text(f"key_command = {command}\n", encoding="utf-8")
    daemon = host.works({"DATAFLOW_RUNNER_USER": JOBS_USER, "DATAFLOW_CONFIG": str(config)})
    host.ends(daemon)
    assert set(readers.read_text(encoding="utf-8").split()) == {JOBS_USER}


def opens(env: dict[str, str]) -> str:
    said = run_program("dataflowctl", "doctor", "--no-spark", env=env).stdout
    [line] = re.findall(r"^. opens +(.*)$", said, re.MULTILINE)
    return str(line)


def test_the_doctor_says_which_of_the_two_this_host_has(host: Host, dsn: str) -> None:
    env = {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(host.key.parent), "HOME": str(host.directory)}
    assert opens(env).startswith("the framework does not open passwords, but could: ")
    assert str(host.key) in opens(env)
    env |= {"DATAFLOW_RUNNER_USER": JOBS_USER}
    if os.geteuid() == 0:
        assert opens(env) == (
            f"the framework cannot open passwords, root apart: {host.key} is root's,"
            f" and only what becomes a job of {JOBS_USER} gets a copy"
        )
    host.key.chmod(0o640)
    assert opens(env) == f"runner_user is {JOBS_USER}, but others than root can read {host.key}"
