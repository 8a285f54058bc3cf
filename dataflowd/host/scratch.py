"""Directories that killed programs left behind. Whoever comes next removes them: their names tell whose they were.

A runner, a command, a trial and a split of files work in a directory of their own (supervise.own_directory), which goes
when they end, also by a signal. Only kill -9 and a lost host leave it. A daemon looks when it starts and each time that it
collects; so do `dataflowctl try`, `partition create` and `gc`.

A runner dies with whoever started it, and its JVM ends when it finds that the runner is gone. But one that is just
starting needs the directory to get that far: without it, it would stay for ever. So what still works in such a directory
is killed before the directory goes.

The temporary directory is everybody's, and root looks into it too. So a name there proves nothing. It is resolved once,
without following a link, and from then on the open directory is meant, whatever takes its name meanwhile. Only a directory
of our own user or of runner_user counts. Only a process of the directory's user, whose working directory is that very
directory (device and inode) or lies below it, is killed, through a descriptor that no other process can take over.
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
PREFIXES = (RUNNER, COMMAND, TRIAL, SPLIT)
END_SECONDS = 5.0
POLL_SECONDS = 0.02
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CLIMB = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Leftover:
    """An open directory of a process that has ended."""

    path: Path  # for people: nothing is done by it
    place: int
    directory: int

    @property
    def owner(self) -> int:
        return os.fstat(self.directory).st_uid

    @property
    def identity(self) -> tuple[int, int]:
        return _identity(self.directory)


def found(settings: Settings) -> list[Path]:
    return [left.path for place in places(settings) for left in leftovers(place, owners(settings))]


def remove(settings: Settings) -> list[Path]:
    """Those that are gone now."""
    return [
        left.path
        for place in places(settings)
        for left in leftovers(place, owners(settings))
        if _removed(left)
    ]


def places(settings: Settings) -> list[Path]:
    return [settings.data_dir / "run", Path(tempfile.gettempdir())]


def owners(settings: Settings) -> set[int]:
    return {os.geteuid(), runner_user.uid_of(settings.runner_user)}


def leftovers(place: Path, users: set[int]) -> Iterator[Leftover]:
    """Each is open while the caller looks at it."""
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
    """Descriptors of those that belong to the directory's user and work in it: nobody else has a reason to be there."""
    with ExitStack() as stack:
        inside = []
        for entry in os.listdir("/proc"):  # noqa: PTH208 - their names are what is wanted
            if not entry.isdecimal() or int(entry) == os.getpid():
                continue
            with suppress(OSError), ExitStack() as open_:
                # Opened first: what is then read in /proc is about this process, or the signal reaches nobody.
                process = os.pidfd_open(int(entry))
                open_.callback(os.close, process)
                if _is_user(int(entry), left.owner) and _works_in(int(entry), left.identity):
                    inside.append(process)
                    stack.push(open_.pop_all())
        yield inside


def _is_of_the_dead(name: str) -> bool:
    """A number alone proves nothing: it may be another's by now."""
    for prefix in PREFIXES:
        words = name.removeprefix(f"{prefix}-").split("-", 2)
        if name.startswith(f"{prefix}-") and len(words) == 3 and words[0].isdecimal():  # noqa: PLR2004
            pid, tick, _ = words
            return supervise.tick(int(pid)) != tick
    return False


def _removed(left: Leftover) -> bool:
    _end(left)
    for name in os.listdir(left.directory):  # noqa: PTH208 - by descriptor
        # By its descriptor rmtree meets a link with a refusal at every level.
        shutil.rmtree(name, ignore_errors=True, dir_fd=left.directory)
        with suppress(OSError):
            os.unlink(name, dir_fd=left.directory)
    try:
        # Only an empty directory goes by this, and no link: whatever has the name now, nothing is lost.
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


def _is_user(pid: int, uid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    words = next(line for line in status.splitlines() if line.startswith("Uid:")).split()
    return {int(word) for word in words[1:]} == {uid}


def _works_in(pid: int, identity: tuple[int, int]) -> bool:
    """From its working directory upwards, without a name: a path that /proc shows may have been made to look so."""
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
