"""CPU time of attempts: the time of the runner's processes (driver, JVM, Python workers), divided among the attempts.

The kernel counts CPU time for each process, and attempts that run side by side share all of the processes. Whenever an
attempt begins or ends, the time used since the last measurement is divided equally among the attempts that were running.
So the sum over all attempts is exact. The list of processes is read at most once in FIND_SECONDS, because reading it costs a
look at every thread of the JVM; a new process counts from the next reading on. The executors of a cluster and a Connect
server are not processes of the runner and do not count.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

_TICKS = os.sysconf("SC_CLK_TCK")
# In /proc/<pid>/stat, behind the name in brackets: user and system time of the process and of the children it waited for.
_TIMES = slice(11, 15)

FIND_SECONDS = 1.0


class Shares:
    """The CPU seconds of each running attempt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: set[int] = set()
        self._pids_read_at = -FIND_SECONDS
        self._used: dict[int, float] = {}
        self._total = 0.0

    def begin(self, attempt: int) -> None:
        with self._lock:
            self._divide()
            self._used[attempt] = 0.0

    def end(self, attempt: int) -> float:
        """Returns the seconds that the attempt has used."""
        with self._lock:
            self._divide()
            return self._used.pop(attempt)

    def _divide(self) -> None:
        """Divides the time used since the last call among the running attempts."""
        if time.monotonic() - self._pids_read_at >= FIND_SECONDS:
            self._pids, self._pids_read_at = of_session(), time.monotonic()
        total = sum(map(_seconds, self._pids))
        # The time of a killed process disappears with it, so that the total can shrink.
        used, self._total = max(0.0, total - self._total), total
        for attempt in self._used:
            self._used[attempt] += used / len(self._used)


def of_session() -> set[int]:
    """Returns the processes of this session."""
    waiting, seen = [os.getsid(0), os.getpid()], set[int]()
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            with suppress(OSError):
                waiting += _children(pid)
    return seen


def _seconds(pid: int) -> float:
    """Returns the seconds of a process and of the children that it has waited for; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - a Path costs as much as the reading
            text = file.read()
    except OSError:
        return 0.0
    return sum(map(int, text.rpartition(b")")[2].split()[_TIMES])) / _TICKS


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a Path for each thread of a JVM costs more than the reading
        with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:  # noqa: PTH123
            found += map(int, file.read().split())
    return found
