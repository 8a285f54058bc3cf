"""The stage of chaos: a Postgres of its own, a small disk for the output, and daemons, each behind a wire of its own.

The harness is the subreaper of its descendants: a process that loses its parent becomes a child of the harness, so that the
harness sees every process. It starts daemons again when they end, as systemd would. Nothing here is random.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import conninfo
from pydantic import SecretStr

from dataflowd import flow
from dataflowd.host.embedded import postgres
from dataflowd.host.settings import Settings
from tests import processes
from tests.chaos.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.pipeline import Branch
    from tests.chaos.pulse import Pulse
    from tests.fix_proxy import Relay

LEASE_SECONDS = 6
RESTART_SECONDS = 1.0
GC_INTERVAL_SECONDS = (
    20  # after its daemon has died, a fixed path may lead to the version before for this long
)
END_SECONDS = 120.0
STARVED_SECONDS = 1.0  # if a short sleep is later than this, the machine is overloaded
POLL_SECONDS = 0.05
STATEMENT_MS = 5000
HAND = "chaos hand"
# Names of pg_catalog are qualified, because an operator's session may have any search path.
REGISTER = """
    SELECT dataflow.ready(%s::pg_catalog.text, ARRAY(
        SELECT d FROM pg_catalog.unnest(%s::pg_catalog.text[]) AS d WHERE NOT EXISTS (
            SELECT FROM dataflow.datastatus s WHERE s.datasetid = %s AND s.dataid = d AND s.locktype = 'OUT')), %s)
"""

Row = tuple[Any, ...]


@dataclass
class Daemon:
    """A daemon by its name. Its process may end and be started again."""

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
    places: int = 2  # attempts at a time, unless an operator sets another limit
    disturbances: list[tuple[float, float]] = field(default_factory=list)  # start and end, by time.time()

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

    def disturbed(self, seconds: float = 0.0) -> Callable[[], None]:
        """Excuses the daemon for so long. The caller calls the returned function when the fault has ended, which may be later."""
        began = time.time()
        self.disturbances.append((began, began + seconds))
        return lambda: self.disturbances.append((began, time.time()))

    def signal(self, number: signal.Signals) -> bool:
        if self.process is None or self.process.poll() is not None:
            return False
        self.process.send_signal(number)
        return True

    def look(self, now: float) -> None:
        """Notes the end of the process, and starts it again when that is due."""
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
    session: dict[str, str] = field(default_factory=dict)  # the settings of the operators' sessions
    witness: Witness = field(default_factory=Witness)
    starved: list[tuple[float, float]] = field(
        default_factory=list
    )  # start and end of times when the machine was overloaded
    pulse: Pulse | None = None
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
        """Changes the settings of the operators' sessions, from the next statement on."""
        self.session = settings
        self.close()

    def rows(self, statement: str, *parameters: Any) -> list[Row]:
        """Runs a statement of an operator. Raises psycopg.Error; a lost connection is opened again next time."""
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        found = self._connection.execute(statement.encode(), parameters or None)
        return found.fetchall() if found.description else []

    def value(self, statement: str, *parameters: Any) -> Any:
        [[value]] = self.rows(statement, *parameters)
        return value

    def between_claims(self, statement: str, *parameters: Any) -> list[Row]:
        """Runs a statement under the claim lock, so that the history tells whether a claim came before or after the change."""
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
        """Registers the chunks that arrived, also those of an earlier try that failed because the database was down."""
        branch.arrive(windows)
        for dataset in list(branch.unregistered):
            self.rows(REGISTER, dataset, branch.unregistered[dataset], dataset, is_valid)
            del branch.unregistered[dataset]

    # --- the server ---

    def postmaster(self) -> int | None:
        return postgres.status(self.server_dir).pid

    def stop_server(self, number: signal.Signals) -> bool:
        """Stops the server by a signal: SIGINT is pg_ctl's fast stop, SIGQUIT its immediate stop, SIGKILL a crash."""
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
        """Starts the installed dataflowctl without waiting for it."""
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
        """Starts ended daemons again, and reaps orphaned processes."""
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

    def disturbed(self, seconds: float = 0.0) -> Callable[[], None]:
        """Excuses every daemon, because the server is down. The caller calls the returned function when it is up again."""
        ends = [daemon.disturbed(seconds) for daemon in self.daemons]

        def is_over() -> None:
            for end in ends:
                end()

        return is_over

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
        """Stops the daemons in order, and returns those that did not end by themselves or ended with an error."""
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
        """The processes that are left, without those of the server and the commands that still run."""
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
    """Escapes a value for libpq's parameter `options`."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
