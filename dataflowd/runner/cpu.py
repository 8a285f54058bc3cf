"""CPU time of attempts: that of the runner's processes (driver, JVM, Python workers), shared by those that run meanwhile.

The kernel counts for each process, and attempts side by side share all of them: whenever one begins or ends, what was
used since the last look is divided among those that ran. So the sum over attempts is exact, and each one's part is fair.
Which processes there are is asked once a second, because a JVM has many threads to ask: a new one counts from then on.
Executors of a cluster, and a Connect server, are not among the processes of this host and do not count.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

_TICKS = os.sysconf("SC_CLK_TCK")
# In /proc/<pid>/stat, behind the name in brackets: user and system time, its own and that of the children it waited for.
_TIMES = slice(11, 15)


FIND_SECONDS = 1.0


class Shares:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: set[int] = set()
        self._found = -FIND_SECONDS
        self._used: dict[int, float] = {}
        self._seen = 0.0

    def begin(self, attempt: int) -> None:
        with self._lock:
            self._look()
            self._used[attempt] = 0.0

    def end(self, attempt: int) -> float:
        """Seconds."""
        with self._lock:
            self._look()
            return self._used.pop(attempt)

    def _look(self) -> None:
        if time.monotonic() - self._found >= FIND_SECONDS:
            self._pids, self._found = of_session(), time.monotonic()
        now = sum(map(_seconds, self._pids))
        # A process that was killed takes what it had used along.
        passed, self._seen = max(0.0, now - self._seen), now
        for attempt in self._used:
            self._used[attempt] += passed / len(self._used)


def of_session() -> set[int]:
    """The processes of this session."""
    waiting, seen = [os.getsid(0), os.getpid()], set[int]()
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            with suppress(OSError):
                waiting += _children(pid)
    return seen


def _seconds(pid: int) -> float:
    """What a process has used, and those that it has waited for; 0 of one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - a Path costs as much as the look
            text = file.read()
    except OSError:
        return 0.0
    return sum(map(int, text.rpartition(b")")[2].split()[_TIMES])) / _TICKS


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a Path for each thread of a JVM costs more than the look
        with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:  # noqa: PTH123
            found += map(int, file.read().split())
    return found
