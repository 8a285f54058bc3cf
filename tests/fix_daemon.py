"""Starts the installed `dataflowd run` on the test's database, with a flow of commands.

When a test ends, every daemon that it started is killed. A test reads the daemon's log, whose lines are events.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

from dataflowd import flow
from tests import fix_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import psycopg

    from dataflowd.host.settings import Settings

T = TypeVar("T")

PATIENCE_SECONDS = 180.0  # a busy machine may need that long; a test that passes does not wait so long
PROMPT_SECONDS = (
    15.0  # for reactions to a NOTIFY: shorter than the poll and than the renewal of a default lease
)
POLL_SECONDS = 0.02

FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.clean]
format = "none"
[job.work]
command = {command}
inputs = ["raw"]
outputs = ["clean"]
{options}
"""


def eventually(look: Callable[[], T], *, seconds: float = PATIENCE_SECONDS) -> T:
    """Calls `look` until its result is true, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {found!r}")
        time.sleep(POLL_SECONDS)
    return found


@dataclass
class Daemon:
    process: subprocess.Popen[bytes]
    log_path: Path
    port: int
    _read: int = 0  # bytes of the log
    _events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """The events so far. Reads only new lines: tests ask every few milliseconds, and a log may have thousands of runs."""
        with self.log_path.open("rb") as log:
            log.seek(self._read)
            whole_lines = log.read().rpartition(b"\n")[0]
        self._read += len(whole_lines) + bool(whole_lines)
        lines = whole_lines.split(b"\n")
        self._events += [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        return [event for event in self._events if name in {"", event["event"]}]

    def said(self, name: str, *, times: int = 1, seconds: float = PATIENCE_SECONDS) -> list[dict[str, Any]]:
        """Waits for so many events of that name, and returns them."""

        def look() -> list[dict[str, Any]]:
            found = self.events(name)
            return found if len(found) >= times else []

        try:
            return eventually(look, seconds=seconds)
        except AssertionError:
            raise AssertionError(
                f"no {name} in {seconds} s:\n{self.log_path.read_text(encoding='utf-8')}"
            ) from None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = PATIENCE_SECONDS) -> int:
        return self.process.wait(seconds)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


class StartDaemon(Protocol):
    def __call__(  # noqa: PLR0913 - the options of one daemon
        self,
        *arguments: str,
        name: str = "d1",
        engine: str = "process",
        env: Mapping[str, str] | None = None,
        wait: bool = True,
        stderr: IO[bytes] | None = None,
        files: int = 0,
    ) -> Daemon: ...


@dataclass
class Shop:
    """One job, `work`, that runs a shell command for each chunk of `raw` and makes a chunk of `clean`."""

    connection: psycopg.Connection
    flow: Path
    settings: Settings

    def job(self, script: str, options: str = "") -> None:
        command = json.dumps(["sh", "-c", script])
        self.flow.write_text(FLOW.format(command=command, options=options), encoding="utf-8")
        flow.apply(self.connection, flow.load(self.flow, self.settings), prune=False)

    def ready(self, *dataids: str | int) -> None:
        self.connection.execute(
            "SELECT dataflow.ready('raw', %s::text[])", [[str(dataid) for dataid in dataids]]
        )

    def limit(self, concurrency: int, scope: str = "global") -> None:
        self.connection.execute("SELECT dataflow.set_concurrency(%s, %s)", [scope, concurrency])

    def value(self, query: str, *parameters: object) -> Any:
        row = self.connection.execute(query.encode(), parameters).fetchone()
        return row[0] if row else None

    def count(self, status: str) -> int:
        return int(
            self.value(
                "SELECT count(*) FROM dataflow.datastatus WHERE datasetid = 'clean' AND status = %s", status
            )
        )

    def live(self) -> int:
        return int(self.value("SELECT count(*) FROM dataflow.attempt WHERE ended IS NULL"))

    def outcomes(self) -> list[str]:
        rows = self.connection.execute("SELECT outcome FROM dataflow.attempt ORDER BY attempt")
        return [str(outcome) for [outcome] in rows]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def shop(connection: psycopg.Connection, tmp_path: Path, settings: Settings) -> Shop:
    return Shop(connection, tmp_path / "shop.toml", settings)


@pytest.fixture
def start_daemon(dsn: str, shop: Shop, tmp_path: Path) -> Iterator[StartDaemon]:
    with daemons(dsn, shop.flow, tmp_path) as start:
        yield start


@contextmanager
def daemons(dsn: str, flow_file: Path, directory: Path) -> Iterator[StartDaemon]:
    started: list[Daemon] = []

    def start(  # noqa: PLR0913 - see StartDaemon
        *arguments: str,
        name: str = "d1",
        engine: str = "process",
        env: Mapping[str, str] | None = None,
        wait: bool = True,
        stderr: IO[bytes] | None = None,
        files: int = 0,
    ) -> Daemon:
        log_path = directory / f"{name}-{len(started)}.log"
        port = free_port()
        variables = {
            "PATH": os.environ["PATH"],
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - the usual default
            "HOME": str(directory),
            "DATAFLOW_DSN": dsn,
            "DATAFLOW_DATA_DIR": str(directory / "dataflowd"),
            "DATAFLOW_HTTP_PORT": str(port),
            "DATAFLOW_LOG_LEVEL": "debug",
        } | ({"DATAFLOW_FLOWS": str(flow_file)} if flow_file.exists() else {})
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [
                    *(("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh") if files else ()),
                    str(Path(sys.executable).parent / "dataflowd"),
                    *("run", "--engine", engine, "--name", name, *arguments),
                ],
                env=variables | fix_classes.variables() | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=stderr or log,
            )
        daemon = Daemon(process, log_path, port)
        started.append(daemon)
        if wait:
            daemon.said("listener.listening")
        return daemon

    try:
        yield start
    finally:
        for daemon in started:
            daemon.process.kill()
        for daemon in started:
            daemon.process.wait()
