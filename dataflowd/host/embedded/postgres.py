"""The embedded Postgres: one server a data directory, shared by every process of its user.

`<data_dir>/postgres` holds `data` (the cluster), `run` (its socket), `log`, and `lock`. A process that needs the server
reads `postmaster.pid`: a ready server that accepts on its socket is used as it is, without any lock. Otherwise one
process at a time, under a flock, makes the cluster and starts the server. pg_ctl detaches the server, so it outlives that
process and holds none of its pipes. A cluster is made in `data.new` and renamed when it is complete, so a failed or
killed initdb leaves no directory that looks like a cluster. There is no TCP. The socket's directory has mode 0700, and the
server demands a password (password.py), which stands in a file beside the cluster and in no DSN.

For root the server runs under another account (account.py), which perhaps cannot reach root's data directory, as below
/root. Then the server gets `<data_dir>/postgres` as an open descriptor, with the name /proc/self/fd/N. This name works only
for the server and its children.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg import conninfo

from dataflowd.host.embedded import account, directories, password, programs
from dataflowd.model.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataflowd.host.embedded.account import Account

SUPERUSER = DATABASE = "postgres"
HERE = "<here>"  # in a command: replaced by the path of `<data_dir>/postgres` that works for the server's account

INITDB_TIMEOUT_SECONDS = 300
START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 60
POLL_SECONDS = 0.05
LOG_LINES_SHOWN = 8
SPACE_REMEDY = "free some space (a new database takes 60 MB)"

# initdb writes these into postgresql.conf, so that ALTER SYSTEM can change each of them. The log has one file for each day
# of the week, and overwrites it a week later.
SERVER_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "256MB",
    "min_wal_size": "128MB",
    "max_wal_size": "1GB",
    "wal_compression": "on",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "10s",
    "jit": "off",
    "logging_collector": "on",
    "log_directory": "../log",
    "log_filename": "server-%w.log",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_truncate_on_rotation": "on",
    "log_line_prefix": "%m [%p] %u@%d %a ",
    "log_checkpoints": "off",
    # A logged statement could show data; the error message is enough.
    "log_min_error_statement": "panic",
}


@dataclass(frozen=True)
class Status:
    running: bool
    pid: int | None
    version: str | None
    dsn: str | None
    data_directory: Path
    socket_directory: Path | None


@dataclass(frozen=True)
class _Postmaster:
    """The content of postmaster.pid."""

    data: Path
    pid: int
    socket_directory: Path
    ready: bool

    @property
    def dsn(self) -> str:
        return conninfo.make_conninfo(
            host=str(self.socket_directory),
            port=directories.PORT,
            user=SUPERUSER,
            dbname=DATABASE,
            passfile=str(self.data.parent / password.FILE),
        )


def ensure_running(data_dir: Path, tell: Callable[[str], None] | None = None) -> str:
    """The DSN of the server of this data directory. Makes and starts the server if necessary.

    `tell` is called before anything is done that root may not expect: it names the server's account, and says if it is
    created.
    """
    base = data_dir / "postgres"
    with _explained(base):
        running = _answering(base / "data")
        if running is not None and password.is_demanded(base):
            return running.dsn
        intention = account.intention(base / "data")
        if tell is not None and intention is not None:
            tell(intention)
        owner = account.choose(base / "data")
        directories.make_base(base, owner)
        with _lock(base, owner) as lock:
            running = _answering(base / "data") or _started(base, owner, lock)
            if not password.is_demanded(base):
                password.demand(base, owner, running.dsn)
            return running.dsn


def stop(data_dir: Path) -> bool:
    """Stops the server and disconnects its clients. Returns whether a server was running."""
    base = data_dir / "postgres"
    with _explained(base):
        if not (base / "data").is_dir():
            return False
        owner = account.choose(base / "data")
        with _lock(base, owner):
            postmaster = _read_postmaster(base / "data")
            if postmaster is None or not _serves(postmaster.pid, base / "data"):
                return False
            arguments = ["stop", "-D", f"{HERE}/data", "-w", "-m", "fast", "-t", str(STOP_TIMEOUT_SECONDS)]
            ended = _run([programs.server_binary("pg_ctl", base, owner), *arguments], base, owner)
            if ended.returncode != 0:
                raise EmbeddedError(
                    f"the embedded Postgres (pid {postmaster.pid}) does not stop: {_tail(ended.stderr)}",
                    f"look into {base / 'log'}",
                )
            sockets = postmaster.socket_directory
            if sockets != base / "run" and directories.is_ours(sockets, base, owner):
                with suppress(OSError):
                    sockets.rmdir()  # empty: the server has removed its socket
            return True


def status(data_dir: Path) -> Status:
    data = data_dir / "postgres" / "data"
    with _explained(data.parent):
        running, version = _answering(data), _version(data)
    if running is None:
        return Status(False, None, version, None, data, None)
    return Status(True, running.pid, version, running.dsn, data, running.socket_directory)


# --- is there a server? ---


def _answering(data: Path) -> _Postmaster | None:
    postmaster = _read_postmaster(data)
    if postmaster is None or not postmaster.ready:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(directories.socket_file(postmaster.socket_directory)))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    return postmaster


def _read_postmaster(data: Path) -> _Postmaster | None:
    """Lines of postmaster.pid: pid, data directory, start, port, socket directory, address, memory, state."""
    try:
        lines = account.read(data / "postmaster.pid").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        sockets = account.by_name(lines[4], data.parent)
        return _Postmaster(data, int(lines[0]), sockets, ready=lines[7].strip() == "ready")
    except (IndexError, ValueError):  # a server that is starting writes the file line by line
        pid = int(lines[0]) if lines and lines[0].isdigit() else 0
        return _Postmaster(data, pid, Path(), ready=False)


def _serves(pid: int, data: Path) -> bool:
    """Whether this process is the server of this data directory. Another process may have got the pid of a dead server."""
    try:
        return pid > 0 and Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return False


def _version(data: Path) -> str | None:
    try:
        return (data / "PG_VERSION").read_text(encoding="ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


# --- making and starting; all of it under the lock ---


def _started(base: Path, owner: Account, lock: int) -> _Postmaster:
    data = base / "data"
    version = _version(data)
    if version is None:
        _initialise(base, owner, lock)
    elif version != programs.MAJOR:
        raise EmbeddedError(
            f"{data} was made by Postgres {version}, and the package {programs.DISTRIBUTION} carries Postgres {programs.MAJOR}",
            f"dump it with Postgres {version} and restore it into a new one, or move {data} away and start afresh",
        )
    _await_transition(data)
    running = _answering(data)
    if running is not None:
        return running
    _forget_dead_server(data, owner)
    return _start(base, owner)


def _initialise(base: Path, owner: Account, lock: int) -> None:
    data, unfinished = base / "data", base / "data.new"
    if data.exists():
        raise EmbeddedError(f"{data} is no Postgres data directory", "move it away", can_move=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    options = [argument for name, value in SERVER_SETTINGS.items() for argument in ("-c", f"{name}={value}")]
    initdb: list[str | Path] = [
        programs.server_binary("initdb", base, owner),
        *(f"--pgdata={HERE}/data.new", f"--username={SUPERUSER}", "--auth=trust", "--encoding=UTF8"),
        *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
        *options,
    ]
    try:
        # initdb inherits the lock: if this process is killed, no other process starts while initdb still writes.
        _require_success(_run(initdb, base, owner, pass_fds=(lock,)), base)
        unfinished.rename(data)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _require_success(initdb: subprocess.CompletedProcess[str], base: Path) -> None:
    if initdb.returncode != 0:
        is_full = _means_no_space(initdb.stderr)
        raise EmbeddedError(
            f"initdb failed in {base}: {_tail(initdb.stderr)}",
            SPACE_REMEDY if is_full else "remove the cause",
            can_move=True,
            can_leave=not is_full,
        )


def _means_no_space(text: str) -> bool:
    return any(os.strerror(number) in text for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def _await_transition(data: Path) -> None:
    """Waits for a server that is starting up or shutting down."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        postmaster = _read_postmaster(data)
        if postmaster is None or postmaster.ready or not _serves(postmaster.pid, data):
            return
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the embedded Postgres (pid {postmaster.pid}) is neither ready nor gone after {START_TIMEOUT_SECONDS} s",
                f"look into {data.parent / 'log'}; it may be recovering from a crash: try again later",
            )
        time.sleep(POLL_SECONDS)


def _forget_dead_server(data: Path, owner: Account) -> None:
    """Removes the files of a dead server. Postgres does this itself, unless another process has got the pid."""
    postmaster = _read_postmaster(data)
    if postmaster is not None and not _serves(postmaster.pid, data):
        (data / "postmaster.pid").unlink(missing_ok=True)
        if directories.is_ours(postmaster.socket_directory, data.parent, owner):
            directories.socket_file(postmaster.socket_directory).with_suffix(
                f".{directories.PORT}.lock"
            ).unlink(missing_ok=True)


def _start(base: Path, owner: Account) -> _Postmaster:
    sockets = directories.make_socket_directory(base, owner)
    logs = directories.make_directory(base / "log", owner)
    first_words = logs / "start.log"
    is_handed = sockets == base / "run" and not owner.reaches(base)
    quoted = '"' + (f"{HERE}/run" if is_handed else str(sockets).replace('"', '""')) + '"'
    options = f"-p {directories.PORT} -c listen_addresses='' -c unix_socket_permissions=0700 -k {shlex.quote(quoted)}"
    # Paths are relative to the working directory, because pg_ctl passes them to a shell.
    command: list[str | Path] = [
        *(
            programs.server_binary("pg_ctl", base, owner),
            "start",
            "-D",
            f"{HERE}/data",
            "-l",
            f"{HERE}/log/start.log",
        ),
        *("-o", options, "-w", "-t", str(START_TIMEOUT_SECONDS)),
    ]
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        first_words.unlink(missing_ok=True)
        ended = _run(command, base, owner)
        running = _answering(base / "data")
        if running is not None:
            return running
        said = _last_words(logs) or _tail(ended.stderr)
        # The children of a killed server need a moment to end.
        if "pre-existing shared memory block" not in said or time.monotonic() > deadline:
            raise EmbeddedError(
                f"the embedded Postgres in {base} does not start: {said}",
                f"remove the cause; its logs are in {logs}",
            )
        time.sleep(POLL_SECONDS)


def _last_words(logs: Path) -> str:
    """The last lines of the server's log. After its log collector has started, they stand in another file."""
    said = _read_text(logs / "start.log")
    if "log output to logging collector" in said:
        daily = sorted(logs.glob("server-*.log"), key=lambda path: path.stat().st_mtime)
        said += "".join(_read_text(path) for path in daily[-1:])
    return _tail(said) if said else ""


def _read_text(path: Path) -> str:
    return account.read(path) if path.is_file() and not path.is_symlink() else ""


def _tail(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n    ".join(["", *lines[-LOG_LINES_SHOWN:]]) if lines else "it said nothing"


# --- programs ---


def _run(
    command: list[str | Path], base: Path, owner: Account, pass_fds: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[str]:
    # PG* variables of the caller's environment are for other databases, not for this server.
    environment = {name: os.environ[name] for name in ("PATH", "TZ") if name in os.environ} | {"LC_ALL": "C"}
    handed = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    here = "." if owner.reaches(base) else f"{account.HANDED}{handed}"
    try:
        return subprocess.run(  # noqa: S603 - our programs, our arguments, no shell
            [str(part).replace(HERE, here) for part in command],
            cwd=base,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=INITDB_TIMEOUT_SECONDS,
            pass_fds=pass_fds if here == "." else (*pass_fds, handed),
            **owner.popen_arguments(),
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedError(
            f"{Path(command[0]).name} did not finish within {INITDB_TIMEOUT_SECONDS} s in {base}",
            "look for a slow or hanging disk",
            can_move=True,
        ) from error
    finally:
        os.close(handed)


@contextmanager
def _lock(base: Path, owner: Account) -> Iterator[int]:
    path = base / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        owner.own(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _explained(base: Path) -> Iterator[None]:
    """Turns an OSError into an EmbeddedError with a remedy."""
    try:
        yield
    except OSError as error:
        what = str(error.strerror or error)
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            remedy = f"make {base.parent} writable for this user"
        else:
            remedy = SPACE_REMEDY if _means_no_space(what) else ""
        raise EmbeddedError(
            f"the embedded Postgres cannot use {error.filename or base}: {what}",
            remedy,
            can_move=True,
            can_leave=remedy != SPACE_REMEDY,
        ) from error
