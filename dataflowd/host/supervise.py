"""Child processes that cannot outlive this process and cannot fill the disk.

A child leads a session of its own, so that one signal reaches all processes that it started. It asks the kernel for
SIGKILL when the thread that started it ends (see exec_child.py). So call `spawn` from the thread of the event loop,
which lives as long as the daemon. One pipe carries the child's stdout and stderr: the lines are masked and written to a
log, which is rotated once and so takes at most twice its limit. When the child ends, all other processes of its session
are killed; `wait` returns the exit status, signal, CPU time and memory, with the last lines. An error of the log or of
the pipe does not end the supervision: `wait` returns when no process of the session is left, and not before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import anyio

from dataflowd.host import exec_child, log, private
from dataflowd.model.masking import mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PIPE_BYTES = 65536
LINE_BYTES = 8192
LOG_BYTES = 10 * 1024 * 1024
TAIL_LINES = 30
TAIL_LINE_BYTES = 2000
KILL_SECONDS = 10.0
EOF_SECONDS = 3.0  # only a process that has left the session can hold the pipe open for longer
POLL_SECONDS = 0.02
KIB = 1024

_log = log.logger(__name__)


@dataclass(frozen=True)
class Exit:
    code: int | None  # None: a signal ended the child
    signal: str | None
    max_rss: int  # bytes, of the largest process among the child and those that it waited for
    cpu_seconds: float
    seconds: float
    tail: str

    @property
    def usage(self) -> dict[str, Any]:
        """In the form that the attempt row stores."""
        measured = {
            "max_rss": self.max_rss,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "seconds": round(self.seconds, 3),
        }
        return measured | ({"signal": self.signal} if self.signal else {"exit_code": self.code})

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.signal else f"exit status {self.code}"


class Echo(Protocol):
    """A stream that gets a copy of the output, as a terminal."""

    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> object: ...


class Log:
    """A log of at most twice `limit` bytes: a full file is renamed to `<name>.1`, and a new file begins."""

    def __init__(self, path: Path | None, limit: int = LOG_BYTES, echo: Echo | None = None) -> None:
        self.echo = echo
        self.path = path
        self.limit = limit
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._unfinished = b""
        self._size = 0
        self._file: BinaryIO | None = None
        self._open()

    def feed(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) >= LINE_BYTES:
            lines.append(self._unfinished)
            self._unfinished = b""
        if lines:
            self._write(lines)

    def close(self) -> None:
        if self._unfinished:
            self._write([self._unfinished])
            self._unfinished = b""
        self.path = self.echo = None
        self._shut()

    def _open(self) -> None:
        if self.path is not None:
            private.make_directory(self.path.parent)
            self._file = private.open_append(self.path)
            self._size = os.fstat(self._file.fileno()).st_size

    def _shut(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _write(self, lines: list[bytes]) -> None:
        # Long lines are cut into pieces.
        pieces = [
            line[start : start + LINE_BYTES]
            for line in lines
            for start in range(0, len(line) or 1, LINE_BYTES)
        ]
        masked = [mask(piece.decode("utf-8", "backslashreplace")) for piece in pieces]
        self.tail.extend(line[:TAIL_LINE_BYTES] for line in masked[-TAIL_LINES:] if line.strip())
        text = ("\n".join(masked) + "\n").encode("utf-8", "backslashreplace")
        # A closed terminal, a full disk or a removed directory must not end the attempt. The last lines stay in memory, and
        # the next write tries again.
        with suppress(OSError, ValueError):
            if self.echo is not None:
                self.echo.write(text)
                self.echo.flush()
        with suppress(OSError):
            self._keep(text)

    def _keep(self, text: bytes) -> None:
        if self.path is None:
            return
        if self._file is None:
            self._open()
        if self._size and self._size + len(text) > self.limit:
            self._shut()
            with suppress(FileNotFoundError):
                self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._open()
        if self._file is not None:
            self._size += self._file.write(text)


class Child:
    """A running child. A caller that leaves `wait` early must call `terminate`: only the end frees the descriptors."""

    def __init__(self, process: subprocess.Popen[bytes], log_: Log) -> None:
        self.pid = process.pid
        self.log = log_
        self._process = process
        self._began = time.monotonic()
        self._pidfd = os.pidfd_open(process.pid)
        self._ended = anyio.Event()
        self._exit: Exit | None = None

    async def wait(self) -> Exit:
        """Waits for the end of the child, and kills the processes that it left behind."""
        if self._exit is not None:
            return self._exit
        async with anyio.create_task_group() as group:
            group.start_soon(self._read)
            await anyio.wait_readable(self._pidfd)
            await self._kill_rest()
            with anyio.move_on_after(EOF_SECONDS):
                await self._ended.wait()
            group.cancel_scope.cancel()
        return self._reap()

    async def terminate(self, grace: float) -> Exit:
        """Sends SIGTERM to the session, SIGKILL after `grace` seconds, and waits. Safe in a cancelled scope."""
        if self._exit is not None:
            return self._exit  # send no signal: another process may have the pid now
        with anyio.CancelScope(shield=True):
            signal_session(self.pid, signal.SIGTERM)
            with anyio.move_on_after(grace):
                await self.wait()
            if self._exit is None:
                signal_session(self.pid, signal.SIGKILL)
            ended = await self.wait()
        return ended  # noqa: RET504 - mypy thinks that the scope swallows exceptions, so the return stands outside

    async def _kill_rest(self) -> None:
        """Tries until all are dead. A process in a hanging system call cannot be killed: the attempt lasts as long."""
        while True:
            try:
                await kill_session(self.pid)
            except TimeoutError as error:
                _log.error("child.undead", pid=self.pid, error=str(error))
            else:
                return

    async def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - spawn asks for the pipe
        pipe = self._process.stdout.fileno()
        try:
            while True:
                await anyio.wait_readable(pipe)
                try:
                    data = os.read(pipe, PIPE_BYTES)
                except BlockingIOError:
                    continue
                if not data:
                    break
                self.log.feed(data)
        except OSError as error:
            _log.error("child.unread", pid=self.pid, error=str(error))
        self._ended.set()
        await anyio.sleep_forever()

    def _reap(self) -> Exit:
        _, status, usage = os.wait4(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        self.log.close()
        os.close(self._pidfd)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._exit = Exit(
            code=code if code >= 0 else None,
            signal=_signal_name(-code) if code < 0 else None,
            max_rss=usage.ru_maxrss * KIB,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            seconds=time.monotonic() - self._began,
            tail="\n".join(self.log.tail),
        )
        return self._exit


def spawn(  # noqa: PLR0913 - a process has that many attributes
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    log_path: Path | None = None,
    log_bytes: int = LOG_BYTES,
    pass_fds: Sequence[int] = (),
    echo: Echo | None = None,
    user: str = "",
) -> Child:
    """Starts a child with exactly this environment. The caller must await `wait` or `terminate` in any case."""
    kept = Log(log_path, log_bytes, echo)
    try:
        process = subprocess.Popen(  # noqa: S603 - the flow file of this host says what runs; there is no shell
            [sys.executable, "-I", "-S", exec_child.__file__, str(os.getpid()), user, *argv],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except BaseException:
        kept.close()
        raise
    try:
        assert process.stdout is not None  # noqa: S101 - stdout=PIPE
        os.set_blocking(process.stdout.fileno(), False)
        return Child(process, kept)
    except BaseException:
        # Perhaps no descriptor is left for the pidfd. The child has just begun and has started no process yet.
        signal_session(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        kept.close()
        raise


def signal_session(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, number)


async def kill_session(leader: int, within: float = KILL_SECONDS) -> None:
    """Kills the processes that an ended leader left in its session, in any process group, and waits for their end."""
    deadline = time.monotonic() + within
    while left := alive_in_session(leader):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} do not die")
        await anyio.sleep(POLL_SECONDS)


def alive_in_session(leader: int) -> list[int]:
    """The living processes of a session without its leader. Zombies do not count."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == leader:
            continue
        fields = _stat(int(path.name))
        # The fields after the name in brackets: state, parent, process group, session.
        if fields and fields[0] not in "ZX" and int(fields[3]) == leader:
            found.append(int(path.name))
    return found


def started_at(pid: int) -> float | None:
    """When a process of this host started, in seconds since the epoch; None if it has ended or never existed."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    ticks = int(fields[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")


def own_directory(parent: Path, prefix: str) -> Path:
    """Makes a temporary directory (0700). Its name holds the pid of this process and the tick at which it started."""
    private.make_directory(parent)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}-{os.getpid()}-{start_tick(os.getpid())}-", dir=parent))


def start_tick(pid: int) -> str | None:
    """When a process started, in the kernel's ticks since the boot."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else fields[19]


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
