"""Child processes that cannot outlive us, cannot fill the disk, and whose end is known in every detail.

A child leads a session of its own, so that one signal reaches all it started, and asks the kernel to be killed when the
thread that started it ends (see launch.py): call `spawn` from the thread that runs the event loop, which lives as
long as the daemon. Its stdout and stderr are one pipe, read here: lines are masked and written to a log that is
rotated once, so that it takes at most twice its bound. When the child has ended, whatever is left of its session is
killed, and what the kernel counted (exit status, signal, CPU time, memory) is returned with the last lines. Nothing that
goes wrong with a log or a pipe ends the supervision: `wait` returns when nothing of the child is left, and not before.
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
EOF_SECONDS = 3.0  # only what has left the session can hold the pipe for longer
POLL_SECONDS = 0.02
KIB = 1024

_log = log.logger(__name__)


@dataclass(frozen=True)
class Exit:
    code: int | None  # None: it was ended by a signal
    signal: str | None
    max_rss: int  # bytes, of the largest process among it and those that it waited for
    cpu_seconds: float
    seconds: float
    tail: str

    @property
    def usage(self) -> dict[str, Any]:
        """As the attempt row keeps it."""
        measured = {
            "max_rss": self.max_rss,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "seconds": round(self.seconds, 3),
        }
        return measured | ({"signal": self.signal} if self.signal else {"exit_code": self.code})

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.signal else f"exit status {self.code}"


class Echo(Protocol):
    """Where a person reads along."""

    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> object: ...


class Log:
    """A file of at most twice `limit` bytes: when it is full it becomes `<name>.1`, and a new one is begun."""

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
            private.directory(self.path.parent)
            self._file = private.append(self.path)
            self._size = os.fstat(self._file.fileno()).st_size

    def _shut(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _write(self, lines: list[bytes]) -> None:
        # A line that is longer than any person reads is broken.
        pieces = [
            line[start : start + LINE_BYTES]
            for line in lines
            for start in range(0, len(line) or 1, LINE_BYTES)
        ]
        masked = [mask(piece.decode("utf-8", "backslashreplace")) for piece in pieces]
        self.tail.extend(line[:TAIL_LINE_BYTES] for line in masked[-TAIL_LINES:] if line.strip())
        text = ("\n".join(masked) + "\n").encode("utf-8", "backslashreplace")
        # A terminal that is closed, a full disk or a directory that was removed must not end the attempt: the last lines are
        # kept in memory, and the next write tries again.
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
    """A running child. Whoever leaves `wait` early calls `terminate`: only the end frees what a child holds."""

    def __init__(self, process: subprocess.Popen[bytes], log_: Log) -> None:
        self.pid = process.pid
        self.log = log_
        self._process = process
        self._began = time.monotonic()
        self._pidfd = os.pidfd_open(process.pid)
        self._ended = anyio.Event()
        self._exit: Exit | None = None

    async def wait(self) -> Exit:
        """The end of the child, after all that it started was killed too."""
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
        """SIGTERM to all of it, SIGKILL after `grace` seconds, and its end. Safe to call in a cancelled scope."""
        if self._exit is not None:
            return self._exit  # its number may be another process's by now
        with anyio.CancelScope(shield=True):
            signal_session(self.pid, signal.SIGTERM)
            with anyio.move_on_after(grace):
                await self.wait()
            if self._exit is None:
                signal_session(self.pid, signal.SIGKILL)
            ended = await self.wait()
        return ended  # noqa: RET504 - inside the scope mypy takes it for one that swallows exceptions

    async def _kill_rest(self) -> None:
        """A process in the middle of a system call that hangs cannot be killed: its attempt lasts as long as it does."""
        while True:
            try:
                await kill_session(self.pid)
            except TimeoutError as error:
                _log.error("child.undead", pid=self.pid, error=str(error))
            else:
                return

    async def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for in spawn
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


def spawn(  # noqa: PLR0913 - a process has that many sides
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
    """Starts a child with exactly this environment. Await `wait` or `terminate` afterwards, whatever happens."""
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
        assert process.stdout is not None  # noqa: S101 - it was asked for
        os.set_blocking(process.stdout.fileno(), False)
        return Child(process, kept)
    except BaseException:
        # There may be no descriptor left to watch it by. It has just begun, and has started nothing yet.
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
    """Kills what an ended leader left in its session, its process group or another, and sees that it is gone."""
    deadline = time.monotonic() + within
    while left := alive_in_session(leader):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} do not die")
        await anyio.sleep(POLL_SECONDS)


def alive_in_session(leader: int) -> list[int]:
    """The processes of a session but for its leader; ended ones that nobody has waited for do not count."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == leader:
            continue
        fields = _stat(int(path.name))
        # After the name in brackets: state, parent, process group, session.
        if fields and fields[0] not in "ZX" and int(fields[3]) == leader:
            found.append(int(path.name))
    return found


def started_at(pid: int) -> float | None:
    """When a process of this host started, in seconds since the epoch; None: there is none, or it has ended."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    ticks = int(fields[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")


def own_directory(parent: Path, prefix: str) -> Path:
    """A temporary directory (0700) whose name tells which process it belongs to: its pid and the tick of its start."""
    private.directory(parent)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}-{os.getpid()}-{tick(os.getpid())}-", dir=parent))


def tick(pid: int) -> str | None:
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
