"""Opens and closes the stage of chaos: the server, the small disk, the flows, and the daemons behind their wires."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg import sql

from dataflowd.database import migrate
from dataflowd.host.embedded import postgres
from dataflowd.host.settings import ENV_PREFIX
from tests.chaos import audit
from tests.chaos.pipeline import WAREHOUSE, Branch
from tests.chaos.pulse import Pulse
from tests.chaos.stage import GC_INTERVAL_SECONDS, LEASE_SECONDS, Daemon, Stage
from tests.fix_postgres import configure
from tests.fix_proxy import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEEP_LEASE_SECONDS = 20  # on a busy machine a Spark application needs that long to start
DISK_BYTES = 512 * 1024 * 1024
PR_SET_CHILD_SUBREAPER = 36
FAKETIME = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
# A killed server must keep its commits. Without fsync, only a power failure could lose them.
SERVER_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "autovacuum_naptime": "5s",
    # The time at which a change became visible; the checks of strict order need it.
    "track_commit_timestamp": "on",
}


def find_faketime() -> Path | None:
    found = [path for pattern in FAKETIME for path in sorted(Path("/").glob(pattern.lstrip("/")))]
    return found[0] if found else None


@contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """A disk that can be filled, and True; or an ordinary directory, and False, if mounting is not allowed."""
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
    """The whole stage, with running daemons. Its files stay if they are to be kept."""
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
        configure(server_dir, SERVER_SETTINGS)
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
        stage.pulse = Pulse(stage.dsn)
        stack.callback(stage.pulse.close)
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
    # Runs that take no time need no second slot.
    daemon.places = 1 if branch.engine == "noop" else 2
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
