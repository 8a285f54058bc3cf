"""A host under siege: an allowed root, a forbidden directory beside it, a flow of scripts, a live daemon and the command
line. Canaries show what must not happen.

The script reads any location that it gets and publishes the content, so published data shows a location that leads out of the
root. The script prints its password, so a log shows if the password is not masked.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from pydantic import SecretStr

from dataflowd import flow
from dataflowd.host import keyfile, seal
from dataflowd.host.settings import Settings
from dataflowd.model.errors import EXIT
from tests import processes
from tests.fix_daemon import Daemon, daemons, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECRET = "canary-of-the-disk-3f9a"  # noqa: S105 - the content of a file
PASSWORD = "canary-of-the-vault-77c1"  # noqa: S105
FOREIGN = "127.0.0.2"  # an address of this host that is not allowed
MEMORY_MOST = 700 * 1024 * 1024
CTL_SECONDS = 180
# Tabs and line ends are harmless.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")
FLOW = """
[flow]
name = "siege"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
[dataset.src]
format = "postgres"
hostname = "localhost"
database = "nowhere"
schemaname = "public"
tablename = "orders"
username = "etl"
[dataset.clean]
format = "csv"
location = "{root}/clean"
[dataset.shown]
format = "csv"
location = "{root}/shown"
publish = "rename"
[dataset.asked]
format = "none"
[dataset.answered]
format = "none"
[job.work]
command = ["./work.sh", "{dataid}"]
inputs = ["raw", "src"]
outputs = ["clean", "shown"]
params = { word = "plain" }
[job.live]
command = ["./live.sh"]
inputs = ["asked"]
outputs = ["answered"]
"""
WORK = """#!/bin/sh
set -eu
echo "told $src_password"
printf '%s\\n' "$src_hostname" >> told
head -c 100000 -- "$raw_location" > "$clean_location/part.csv"
echo 1 > "$shown_location/part.csv"
"""
LIVE = """#!/bin/sh
while [ ! -e stop ]; do sleep 0.2; done
"""
# The programs that processes of the daemon may run.
PROGRAMS = re.compile(r"(sh|sleep|head|echo|printf|work\.sh|live\.sh|python[0-9.]*|dataflowd)")


@dataclass
class Stage:
    directory: Path
    dsn: str
    settings: Settings
    daemon: Daemon
    connection: psycopg.Connection
    foreign: ForeignHost
    start: Callable[[], Daemon]
    stops: int = 0
    _before: dict[str, tuple[object, ...]] = field(default_factory=dict)
    _chunks: int = 0

    @property
    def root(self) -> Path:
        return self.settings.data_dir / "data"

    @property
    def outside(self) -> Path:
        return self.directory / "outside"

    @property
    def marker(self) -> Path:
        """A file that only a command outside of the flow file would make."""
        return self.directory / "marker"

    def ready(self) -> str:
        """Registers a fresh chunk for the job `work`, and returns its dataid."""
        self._chunks += 1
        dataid = f"d{self._chunks}"
        path = self.root / "raw" / f"{dataid}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\n", encoding="ascii")
        for dataset in ("raw", "src"):
            self.connection.execute("SELECT dataflow.ready(%s, ARRAY[%s])", [dataset, dataid])
        return dataid

    def ask(self) -> str:
        """Registers a fresh chunk for the job that runs until the end, and returns its dataid."""
        self._chunks += 1
        dataid = f"d{self._chunks}"
        self.connection.execute("SELECT dataflow.ready('asked', ARRAY[%s])", [dataid])
        return dataid

    def status(self, dataset: str, dataid: str) -> str | None:
        row = self.connection.execute(
            "SELECT status FROM dataflow.datastatus WHERE datasetid = %s AND dataid = %s AND locktype = 'OUT'",
            [dataset, dataid],
        ).fetchone()
        return row[0] if row else None

    def work_off(self) -> str:
        """Lets the daemon make one chunk by the rules, and returns its dataid."""
        dataid = self.ready()

        def is_made() -> bool:
            if self.daemon.process.poll() is not None:
                raise AssertionError(f"the daemon has ended with {self.daemon.process.returncode}")
            return self.status("clean", dataid) == "READY"

        eventually(is_made, seconds=120)
        return dataid

    def is_alive(self) -> bool:
        return self.daemon.process.poll() is None

    def how_it_ended(self) -> list[str]:
        """Checks how the daemon ended: it must name the error once, and exit with the status of that error."""
        self.stops += 1
        status, died = self.daemon.process.returncode, self.daemon.events("service.died")
        is_clear = len(died) == 1 and "exception" not in died[0] and died[0].get("remedy")
        if is_clear and status in EXIT.values() and status != EXIT["INTERNAL"]:
            return []
        return [f"the daemon ended with {status}: {self.last_words()}"]

    def last_words(self) -> str:
        lines = self.daemon.log_path.read_text(encoding="utf-8").splitlines()
        told = [line for line in lines if '"level": "debug"' not in line]
        return " | ".join(line[:1500] for line in told[-5:])

    def restart(self) -> None:
        self.daemon.kill()
        self.daemon = self.start()

    def ctl(self, *arguments: str) -> list[str]:
        """Runs a command, and returns what is wrong with its behaviour."""
        env = {
            "PATH": os.environ["PATH"],
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - the usual default
            "HOME": str(self.directory),
            "DATAFLOW_DSN": self.dsn,
            "DATAFLOW_DATA_DIR": str(self.settings.data_dir),
            "DATAFLOW_FLOWS": str(self.directory / "flow.toml"),
        }
        program = str(Path(sys.executable).parent / "dataflowctl")
        try:
            done = subprocess.run(
                [program, *arguments], env=env, input="", capture_output=True, text=True, timeout=CTL_SECONDS, check=False,
                errors="backslashreplace", cwd=self.directory,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [f"{arguments}: no end after {CTL_SECONDS} s"]
        said = done.stdout + done.stderr
        found = [
            f"{arguments}: {word} in its output" for word in (SECRET, PASSWORD, "Traceback") if word in said
        ]
        if done.returncode not in EXIT.values():
            found.append(f"{arguments}: exit status {done.returncode}: {done.stderr[-300:]}")
        if steering := UNPRINTABLE.search(said):
            found.append(f"{arguments}: {steering[0]!r} reaches the terminal")
        return found

    def violations(self) -> list[str]:
        """What has happened that no owner of the database may achieve."""
        found = [f"{path} is not what it was" for path in self._changed()]
        if self.marker.exists():
            found.append("a command has run that nobody declared")
        if self.foreign.met:
            found.append(f"{self.foreign.met} connections to a host that is not allowed")
        told = self.directory / "told"
        hosts = (
            set(told.read_text(encoding="utf-8", errors="replace").splitlines()) if told.exists() else set()
        )
        if strange := hosts - {"localhost"}:
            found.append(f"a script was sent to {strange}, with the password")
        found += [
            f"{word} in {where}"
            for where, text in self._texts()
            for word in (SECRET, PASSWORD)
            if word in text
        ]
        found += self._processes()
        if self.is_alive() and (used := _peak(self.daemon.pid)) > MEMORY_MOST:
            found.append(f"the daemon has taken {used >> 20} MB")
        return found

    def remember(self) -> None:
        self._before = _tree(self.outside)

    def _changed(self) -> list[str]:
        now = _tree(self.outside)
        return sorted(path for path in {*now, *self._before} if now.get(path) != self._before.get(path))

    def _texts(self) -> Iterator[tuple[str, str]]:
        """All texts that were published, logged or stored."""
        for top in (self.root, self.settings.effective_log_dir):
            for path in top.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    with suppress(FileNotFoundError):
                        yield str(path), path.read_text(encoding="utf-8", errors="replace")
        yield "the daemon's log", self.daemon.log_path.read_text(encoding="utf-8", errors="replace")
        tables = self.connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'dataflow'"
        ).fetchall()
        for [table] in tables:
            for word in (SECRET, PASSWORD):
                held = sql.SQL("SELECT count(*) FROM dataflow.{} t WHERE strpos(t::text, {}) > 0").format(
                    sql.Identifier(table), sql.Literal(word)
                )
                row = self.connection.execute(held).fetchone()
                yield f"the table {table}", word if row and row[0] else ""

    def _processes(self) -> Iterator[str]:
        """Checks the daemon and all its descendants: their programs, and which of them have the password."""
        for pid in processes.below(self.daemon.pid):
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
                names = [Path(word).name for word in words[:2] if word]
                if names and not PROGRAMS.fullmatch(names[0]):
                    yield f"a process {words!r:.200}"
                if PASSWORD in "".join(words):
                    yield f"the password is an argument of {words!r:.100}"
                if PASSWORD in environ and not {"work.sh", "head"} & set(names):
                    yield f"the password is in the environment of {words!r:.100}"


class ForeignHost:
    """Listens on an address that is not allowed, and counts the connections."""

    def __init__(self) -> None:
        self.met = 0
        self._listener = socket.create_server((FOREIGN, 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def close(self) -> None:
        # close does not wake a blocked accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.met += 1
                connection.close()


@contextmanager
def opened(dsn: str, directory: Path) -> Iterator[Stage]:
    """The stage, with some chunks made and one attempt running."""
    with ExitStack() as stack:
        settings = Settings(
            dsn=SecretStr(dsn), data_dir=directory / "dataflowd", flows=[directory / "flow.toml"]
        )
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        _furnish(directory, settings, connection)
        foreign = ForeignHost()
        stack.callback(foreign.close)
        start = stack.enter_context(daemons(dsn, directory / "flow.toml", directory))
        stack.callback((directory / "stop").touch)
        env = {"DATAFLOW_POLL": "1", "DATAFLOW_GC_INTERVAL": "1", "DATAFLOW_GC_GRACE": "0"}

        def started() -> Daemon:
            return start(env=env)

        stage = Stage(directory, dsn, settings, started(), connection, foreign, started)
        connection.execute("SELECT dataflow.set_concurrency('global', 50)")
        stage.remember()
        live = stage.ask()
        stage.work_off()
        eventually(lambda: stage.status("answered", live) == "RUNNING")
        yield stage


def _furnish(directory: Path, settings: Settings, connection: psycopg.Connection) -> None:
    root, outside = settings.data_dir / "data", directory / "outside"
    for path in (
        root / "raw",
        outside / "dataid=d1" / "attempt=1",
        outside / "dataid=d1" / ".attempts" / "attempt=1",
        outside / ".attempts" / "dataid=d1" / "attempt=1",
        outside / ".attempts" / "raw" / "dataid=d1" / "attempt=1",
    ):
        path.mkdir(parents=True)
        (path / "part.csv").write_text(SECRET + "\n", encoding="ascii") if path.is_relative_to(
            outside
        ) else None
    (outside / "secret.csv").write_text(SECRET + "\n", encoding="ascii")
    links = {
        "link": str(outside),
        "chain": str(root / "link"),
        "relative": "../../outside",
        "proc": "/proc/self",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    for name, text in {"flow.toml": FLOW, "work.sh": WORK, "live.sh": LIVE}.items():
        (directory / name).write_text(text, encoding="utf-8")
        (directory / name).chmod(0o755)
    flow.apply(connection, flow.load(directory / "flow.toml", settings), prune=False)
    key = seal.generate(seal.PLAIN)
    keyfile.add(settings.data_dir / "key", [keyfile.line(key)])
    sealed = seal.seal(PASSWORD, key.public, seal.Binding("src", "etl", "localhost", "nowhere"))
    connection.execute("UPDATE dataflow.dataset SET encryptedpass = %s WHERE datasetid = 'src'", [sealed])


def _tree(top: Path) -> dict[str, tuple[object, ...]]:
    """The state of a directory tree, which any change would alter and reading does not."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (top, *top.rglob("*")):
        about = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (about.st_ino, about.st_mode, about.st_mtime_ns, about.st_uid, content)
    return found


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
