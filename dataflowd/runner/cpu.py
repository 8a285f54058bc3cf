"""CPU time of attempts: that of the runner's processes (driver, JVM, Python workers), shared by those that run meanwhile.

The kernel counts for each process, and attempts side by side share all of them: whenever one begins or ends, what was
used since the last look is divided among those that ran. So the sum over attempts is exact, and each one's part is fair.
Executors of a cluster, and a Connect server, are not among the processes of this host and do not count.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# In /proc/<pid>/stat, behind the name in brackets: user and system time, its own and that of the children it waited for.
_TIMES = slice(11, 15)


class Shares:
    def __init__(self) -> None:
        self._lock = threading.Lock()
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
        now = of_session()
        # A process that was killed takes what it had used along.
        passed, self._seen = max(0.0, now - self._seen), now
        for attempt in self._used:
            self._used[attempt] += passed / len(self._used)


def of_session() -> float:
    """Seconds that the processes of this session have used, and those that they have waited for."""
    leader, total = os.getsid(0), 0.0
    waiting, seen = [leader, os.getpid()], set()
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            with suppress(OSError):
                total += _seconds(pid)
                waiting += _children(pid)
    return total


def _seconds(pid: int) -> float:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return sum(map(int, text.rpartition(")")[2].split()[_TIMES])) / _TICKS


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a Path for each thread of a JVM costs more than the look
        with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:  # noqa: PTH123
            found += map(int, file.read().split())
    return found
