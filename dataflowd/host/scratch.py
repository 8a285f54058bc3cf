"""Removes directories that killed programs left behind. The name of a directory tells which process made it.

A runner, a command, a trial, a split of files and the Spark of a job's tests each work in a directory of their own (supervise.own_directory), and
remove it when they end, also when a signal ends them. After kill -9 or the loss of the host it stays. A daemon removes
such leftovers when it starts and at each collection; so do `dataflowctl try`, `partition create` and `gc`.

A runner dies with the process that started it, and its JVM ends when it notices. But a JVM that is just starting needs
the directory in order to notice: without the directory the JVM would stay for ever. So processes that still work in a
leftover are killed before the directory is removed.

Every user can write to the temporary directory, and root cleans it too. So a name there proves nothing. Each name is
opened once, without following a link; after that only the open descriptor is used. Only directories of our own user or
of runner_user count. A process is killed only if it belongs to the directory's owner and works in that directory (same
device and inode) or below it. The kill goes through a pidfd, which no other process can take over.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.host import runner_user, supervise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.host.settings import Settings

RUNNER = "runner"
COMMAND = "command"
TRIAL = "dataflowd-try"
SPLIT = "dataflowd-split"
REHEARSAL = "dataflowd-spark"
PREFIXES = (RUNNER, COMMAND, TRIAL, SPLIT, REHEARSAL)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_SECONDS = 5.0
POLL_SECONDS = 0.02
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CLIMB = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Leftover:
    """An open directory of a process that has ended."""

    path: Path  # only to show: all work uses the descriptors
    place: int
    directory: int

    @property
    def owner(self) -> int:
        return os.fstat(self.directory).st_uid

    @property
    def identity(self) -> tuple[int, int]:
        return _identity(self.directory)


def find(settings: Settings) -> list[Path]:
    return [left.path for place in places(settings) for left in leftovers(place, owners(settings))]


def remove(settings: Settings) -> list[Path]:
    """Removes the leftovers, and returns those that are gone."""
    return [
        left.path
        for place in places(settings)
        for left in leftovers(place, owners(settings))
        if _removed(left)
    ]


@contextmanager
def own_temporary(settings: Settings, prefix: str) -> Iterator[Path]:
    """A temporary directory of this program, which is gone at the end, also when a signal ends the program.

    Removes the leftovers of other programs first. `prefix`: one of PREFIXES.
    """
    remove(settings)
    # Signals wait while the directory is made, so that each of them arrives where the directory is removed.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        directory = supervise.own_directory(Path(tempfile.gettempdir()), prefix)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def places(settings: Settings) -> list[Path]:
    return [settings.data_dir / "run", Path(tempfile.gettempdir())]


def owners(settings: Settings) -> set[int]:
    return {os.geteuid(), runner_user.uid_of(settings.runner_user)}


def leftovers(place: Path, users: set[int]) -> Iterator[Leftover]:
    """Yields each leftover of these users. Its descriptors are open until the caller asks for the next one."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError), _opened(place) as parent:
        for name in os.listdir(parent):  # noqa: PTH208 - by descriptor
            if not _is_of_the_dead(name):
                continue
            with suppress(OSError), _opened(name, OPEN_DIRECTORY, parent) as directory:
                left = Leftover(place / name, parent, directory)
                if left.owner in users:
                    yield left


@contextmanager
def processes(left: Leftover) -> Iterator[list[int]]:
    """The pidfds of the processes that belong to the directory's owner and work in the directory."""
    with ExitStack() as stack:
        inside = []
        for entry in os.listdir("/proc"):  # noqa: PTH208 - only the names are needed
            if not entry.isdecimal() or int(entry) == os.getpid():
                continue
            with suppress(OSError), ExitStack() as open_:
                # Open the pidfd before reading /proc: if the pid passes to another process, the signal does not reach it.
                process = os.pidfd_open(int(entry))
                open_.callback(os.close, process)
                if _is_of_user(int(entry), left.owner) and _works_in(int(entry), left.identity):
                    inside.append(process)
                    stack.push(open_.pop_all())
        yield inside


def _is_of_the_dead(name: str) -> bool:
    """Whether the process that made the directory has ended. Its start tick counts too: a pid is used again."""
    for prefix in PREFIXES:
        words = name.removeprefix(f"{prefix}-").split("-", 2)
        if name.startswith(f"{prefix}-") and len(words) == 3 and words[0].isdecimal():  # noqa: PLR2004
            pid, tick, _ = words
            return supervise.start_tick(int(pid)) != tick
    return False


def _removed(left: Leftover) -> bool:
    _end(left)
    for name in os.listdir(left.directory):  # noqa: PTH208 - by descriptor
        # With dir_fd, rmtree refuses links at every level.
        shutil.rmtree(name, ignore_errors=True, dir_fd=left.directory)
        with suppress(OSError):
            os.unlink(name, dir_fd=left.directory)
    try:
        # rmdir removes only an empty directory and no link: if something else has the name now, it stays.
        os.rmdir(left.path.name, dir_fd=left.place)
    except OSError:
        return False
    return True


def _end(left: Leftover) -> None:
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        with processes(left) as inside:
            for process in inside:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
        if not inside:
            return
        time.sleep(POLL_SECONDS)


def _is_of_user(pid: int, uid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    words = next(line for line in status.splitlines() if line.startswith("Uid:")).split()
    return {int(word) for word in words[1:]} == {uid}


def _works_in(pid: int, identity: tuple[int, int]) -> bool:
    """Climbs from the process's working directory by descriptor, because a path that /proc shows can be forged."""
    here = os.open(f"/proc/{pid}/cwd", CLIMB)
    try:
        while (at := _identity(here)) != identity:
            above = os.open("..", CLIMB, dir_fd=here)
            os.close(here)
            here = above
            if _identity(here) == at:
                return False
        return True
    finally:
        os.close(here)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


@contextmanager
def _opened(
    path: Path | str, flags: int = os.O_RDONLY | os.O_DIRECTORY, parent: int | None = None
) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
