"""Where chaos takes place: a Postgres of its own, a small disk for the output, and daemons, each behind a wire of its own.

The harness is the reaper of its descendants: what loses its parent becomes its child, so that no process can get out of
its sight. Daemons that end are started again, as systemd would. Nothing in here is random.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import conninfo, sql
from pydantic import SecretStr

from dataflowd import flow, migrate
from dataflowd.embedded import postgres
from dataflowd.settings import ENV_PREFIX, Settings
from tests.chaos import audit, processes
from tests.chaos.pipeline import WAREHOUSE, Branch
from tests.chaos.witness import Witness
from tests.fix_proxy import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LEASE_SECONDS = 6
DEEP_LEASE_SECONDS = 20  # a Spark application takes that long to start on a busy machine
DISK_BYTES = 512 * 1024 * 1024
RESTART_SECONDS = 1.0
GC_INTERVAL_SECONDS = 20  # also: how long a fixed path may lead to the version before, after its daemon died
END_SECONDS = 120.0
STARVED_SECONDS = 1.0  # by which a short sleep may be late before the machine is to blame for much
POLL_SECONDS = 0.05
STATEMENT_MS = 5000
PR_SET_CHILD_SUBREAPER = 36
FAKETIME = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
# A killed server must not lose what it has confirmed; only a power failure could take what the kernel holds.
SERVER_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "autovacuum_naptime": "5s",
    # When a change was there for others to see; the checks of strict order need it.
    "track_commit_timestamp": "on",
}
HAND = "chaos hand"
# Names of Postgres' own are written out: an operator's session may have any search path.
REGISTER = """
    SELECT dataflow.ready(%s::pg_catalog.text, ARRAY(
        SELECT d FROM pg_catalog.unnest(%s::pg_catalog.text[]) AS d WHERE NOT EXISTS (
            SELECT FROM dataflow.datastatus s WHERE s.datasetid = %s AND s.dataid = d AND s.locktype = 'OUT')), %s)
"""

Row = tuple[Any, ...]


@dataclass
class Daemon:
    """One name; its process comes and goes."""

    name: str
    branch: Branch
    wire: Relay
    environment: dict[str, str]
    log: Path
    lease: int
    process: subprocess.Popen[bytes] | None = None
    down_until: float = 0.0
    is_frozen: bool = False
    clock: Path | None = None
    starts: int = 0
    ends: list[int] = field(default_factory=list)
    disturbances: list[tuple[float, float]] = field(default_factory=list)  # from, until: by time.time()

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(str(Path(sys.executable).parent / "dataflowd"), "run"),
                    *("--engine", self.branch.engine, "--name", self.name),
                ],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.starts += 1
        self.is_frozen = False

    def disturbed(self, seconds: float = 0.0) -> None:
        """From now on, for so long: what it does meanwhile is excused."""
        self.disturbances.append((time.time(), time.time() + seconds))

    def signal(self, number: signal.Signals) -> bool:
        if self.process is None or self.process.poll() is not None:
            return False
        self.process.send_signal(number)
        return True

    def look(self, now: float) -> None:
        """Notes an end, and starts it again when it is due."""
        if self.process is not None and (ended := self.process.poll()) is not None:
            self.ends.append(ended)
            self.disturbed()
            self.process = None
            self.down_until = max(self.down_until, now + RESTART_SECONDS)
        if self.process is None and now >= self.down_until:
            self.start()

    def children(self) -> list[int]:
        """The leaders of its attempts' sessions."""
        if self.pid is None:
            return []
        return sorted(processes.children_of(self.pid))


@dataclass
class Stage:
    directory: Path
    data: Path
    data_dir: Path
    server_dir: Path
    dsn: str
    has_small_disk: bool
    faketime: Path | None
    branches: list[Branch]
    daemons: list[Daemon] = field(default_factory=list)
    commands: list[tuple[list[str], subprocess.Popen[bytes]]] = field(default_factory=list)
    session: dict[str, str] = field(default_factory=dict)  # what the operators' sessions have set
    witness: Witness = field(default_factory=Witness)
    starved: list[tuple[float, float]] = field(default_factory=list)  # when the machine gave us no time
    _connection: psycopg.Connection | None = None

    @property
    def host(self) -> str:
        return str(conninfo.conninfo_to_dict(self.dsn)["host"])

    # --- the database, as an operator uses it ---

    def connect(self, application: str = HAND) -> psycopg.Connection:
        connection = psycopg.connect(
            self.dsn,
            autocommit=True,
            application_name=application,
            connect_timeout=5,
            options=f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={STATEMENT_MS}",
        )
        for name, value in self.session.items():
            connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])
        return connection

    def set_session(self, settings: dict[str, str]) -> None:
        """From the next statement on."""
        self.session = settings
        self.close()

    def rows(self, statement: str, *parameters: Any) -> list[Row]:
        """Raises psycopg.Error; the connection is made anew next time if it was lost."""
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        found = self._connection.execute(statement.encode(), parameters or None)
        return found.fetchall() if found.description else []

    def value(self, statement: str, *parameters: Any) -> Any:
        [[value]] = self.rows(statement, *parameters)
        return value

    def between_claims(self, statement: str, *parameters: Any) -> list[Row]:
        """So that history tells of each claim whether it came before the change or after it."""
        self.rows("SELECT 1")
        assert self._connection is not None
        with self._connection.transaction():
            self.rows(
                "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('dataflow.claim', 0))"
            )
            return self.rows(statement, *parameters)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def settings(self) -> Settings:
        return Settings(
            dsn=SecretStr(self.dsn),
            data_dir=self.data_dir,
            root=str(self.data),
            allowed_hosts=[self.host],
        )

    def apply(self, branch: Branch, *, prune: bool = False) -> None:
        with self.connect() as connection:
            flow.apply(connection, flow.load(branch.flow, self.settings()), prune=prune)

    def feed(self, branch: Branch, windows: int, *, is_valid: bool = True) -> None:
        """What was not registered last time, because the database was away, is now."""
        branch.arrive(windows)
        for dataset in list(branch.unregistered):
            self.rows(REGISTER, dataset, branch.unregistered[dataset], dataset, is_valid)
            del branch.unregistered[dataset]

    # --- the server ---

    def postmaster(self) -> int | None:
        return postgres.status(self.server_dir).pid

    def stop_server(self, number: signal.Signals) -> bool:
        """As `pg_ctl stop` does: SIGINT fast, SIGQUIT immediate; SIGKILL as nobody should."""
        pid = self.postmaster()
        if pid is None:
            return False
        os.kill(pid, number)
        return True

    def start_server(self) -> None:
        postgres.ensure_running(self.server_dir)

    # --- processes ---

    def variables(self, dsn: str, branch: Branch) -> dict[str, str]:
        return {
            "DATAFLOW_ENVIRONMENT": branch.name,
            "PATH": os.environ["PATH"],
            "TMPDIR": str(self.directory / "tmp"),
            "HOME": str(self.directory),
            "DATAFLOW_DSN": dsn,
            "DATAFLOW_DATA_DIR": str(self.data_dir),
            "DATAFLOW_ROOT": str(self.data),
            "DATAFLOW_ALLOWED_HOSTS": self.host,
        }

    def ctl(self, branch: Branch, *arguments: str) -> subprocess.Popen[bytes]:
        """The installed dataflowctl, beside everything else."""
        with (self.directory / "ctl.log").open("ab") as log:
            log.write(f"$ dataflowctl {' '.join(arguments)}\n".encode())
            log.flush()
            options = " ".join(f"-c {name}={_escaped(value)}" for name, value in self.session.items())
            dsn = conninfo.make_conninfo(self.dsn, **({"options": options} if options else {}))
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / "dataflowctl"), *arguments],
                env=self.variables(dsn, branch)
                | {"DATAFLOW_FLOWS": str(branch.flow), "DATAFLOW_LEASE": str(LEASE_SECONDS)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.commands.append((list(arguments), process))
        return process

    def look(self, *, restart: bool = True) -> None:
        """Starts what ended, and waits for what nobody else does."""
        now = time.monotonic()
        for daemon in self.daemons:
            if restart:
                daemon.look(now)
        self.witness.look(self._hosts(), now)
        known = {daemon.pid for daemon in self.daemons} | {process.pid for _, process in self.commands}
        for pid in processes.children_of("self") - known:
            if processes.state(pid) == "Z":
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _hosts(self) -> list[tuple[int, bool]]:
        """The processes that run attempts, and whether each is frozen."""
        daemons = [(daemon.pid, daemon.is_frozen) for daemon in self.daemons if daemon.pid is not None]
        alive = [process.pid for _, process in self.commands if process.poll() is None]
        return daemons + [(pid, False) for pid in alive]

    def disturbed(self, seconds: float) -> None:
        """All of them: the server is away."""
        for daemon in self.daemons:
            daemon.disturbed(seconds)

    def rest(self, seconds: float) -> None:
        began = time.time()
        time.sleep(seconds)
        if time.time() - began > seconds + STARVED_SECONDS:
            self.starved.append((began, time.time()))

    def reload(self, branch: Branch) -> None:
        for daemon in self.daemons:
            if daemon.branch is branch:
                daemon.signal(signal.SIGHUP)

    def stop_daemons(self) -> list[str]:
        """In order; what did not end by itself, or ended badly."""
        bad = []
        for daemon in self.daemons:
            daemon.signal(signal.SIGTERM)
        for daemon in self.daemons:
            if daemon.process is None:
                continue
            try:
                ended = daemon.process.wait(END_SECONDS)
                if ended != 0:
                    bad.append(f"daemon {daemon.name} ended with status {ended}")
            except subprocess.TimeoutExpired:
                bad.append(f"daemon {daemon.name} did not end within {END_SECONDS:.0f} s")
                daemon.process.kill()
                daemon.process.wait()
            daemon.process = None
        return bad

    def strays(self) -> list[str]:
        """Processes that are left, but for the server's own and the commands that still run."""
        self.look(restart=False)
        mine = {daemon.pid for daemon in self.daemons} | {process.pid for _, process in self.commands}
        found = processes.children_of("self") - mine
        server = self.postmaster()
        return [
            processes.command(pid)
            for pid in found
            if pid != server and "postgres" not in processes.command(pid)
        ]


def _escaped(value: str) -> str:
    """As libpq's `options` wants it."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def find_faketime() -> Path | None:
    found = [path for pattern in FAKETIME for path in sorted(Path("/").glob(pattern.lstrip("/")))]
    return found[0] if found else None


@contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """A disk that can be filled; where nothing may be mounted, an ordinary directory, and False."""
    path.mkdir()
    mounted = shutil.which("mount") is not None and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", str(path)],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def opened(engines: Sequence[str], daemons_each: int, *, keep: bool = False) -> Iterator[Stage]:
    """The whole stage, with its daemons running. What was written to it stays if it is to be kept."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        del os.environ[name]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.chmod(0o755)
    with ExitStack() as stack:
        if not keep:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        for name in ("server", "flows", "tmp", "log"):
            (directory / name).mkdir()
        has_small_disk = stack.enter_context(small_disk(directory / "data"))
        server_dir = directory / "server"
        stack.callback(postgres.stop, server_dir)
        _prepare(server_dir)
        branches = [
            Branch(name, name[0], engine, directory / "flows" / name, directory / "data")
            for name, engine in (("files", "process"), ("noop", "noop"), ("deep", "spark"))
            if engine in engines
        ]
        stage = Stage(
            directory=directory,
            data=directory / "data",
            data_dir=directory / "home",
            server_dir=server_dir,
            dsn=postgres.ensure_running(server_dir),
            has_small_disk=has_small_disk,
            faketime=find_faketime(),
            branches=branches,
        )
        stack.callback(stage.close)
        with stage.connect() as connection:
            migrate.init(connection)
            audit.install(connection)
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(WAREHOUSE)))
        for branch in branches:
            branch.directory.mkdir()
            branch.warehouse = stage.host if branch.engine == "spark" else ""
            branch.write_next_version()
            stage.apply(branch)
            for number in range(1 if branch.engine == "spark" else daemons_each):
                stage.daemons.append(_daemon(stage, branch, number + 1, stack))
        stack.callback(_kill, stage)
        for daemon in stage.daemons:
            daemon.start()
        yield stage


def _prepare(server_dir: Path) -> None:
    with psycopg.connect(postgres.ensure_running(server_dir), autocommit=True) as connection:
        for name, value in SERVER_SETTINGS.items():
            connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value))
    postgres.stop(server_dir)


def _daemon(stage: Stage, branch: Branch, number: int, stack: ExitStack) -> Daemon:
    wire = Relay(stage.dsn)
    stack.callback(wire.close)
    name = f"{branch.name}{number}"
    lease = DEEP_LEASE_SECONDS if branch.engine == "spark" else LEASE_SECONDS
    environment = stage.variables(wire.dsn, branch) | {
        "DATAFLOW_FLOWS": str(branch.flow),
        "DATAFLOW_LEASE": str(lease),
        "DATAFLOW_POLL": "3",
        "DATAFLOW_CONNECT_TIMEOUT": "3",
        "DATAFLOW_STATEMENT_TIMEOUT": "10",
        "DATAFLOW_DRAIN_TIMEOUT": "5",
        "DATAFLOW_HTTP_PORT": "0",
        "DATAFLOW_GC_INTERVAL": str(GC_INTERVAL_SECONDS),
        "DATAFLOW_GC_GRACE": "5",
        "DATAFLOW_GC_RETENTION": "60",
        "DATAFLOW_MASTER": "local[1]",
        "DATAFLOW_RUNNERS": "1",
        "DATAFLOW_RUNNER_SILENCE": "20",
    }
    daemon = Daemon(name, branch, wire, environment, stage.directory / "log" / f"{name}.log", lease)
    if stage.faketime is not None and branch.engine == "process" and number == 1:
        daemon.clock = stage.directory / f"{name}.clock"
        daemon.clock.write_text("+0", encoding="ascii")
        environment |= {
            "LD_PRELOAD": str(stage.faketime),
            "FAKETIME_TIMESTAMP_FILE": str(daemon.clock),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
        }
        daemon.environment = environment
    return daemon


def _kill(stage: Stage) -> None:
    for _, process in stage.commands:
        process.kill()
        process.wait()
    for daemon in stage.daemons:
        if daemon.process is not None:
            daemon.process.kill()
            daemon.process.wait()
