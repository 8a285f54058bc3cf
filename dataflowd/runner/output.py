"""Assigns what job code prints, and the threads that it leaves running, to the attempt that caused them.

Several attempts run side by side in one process, each in a thread. A new thread belongs to the attempt of the thread that
starts it. So a `print` reaches the log of its own attempt, and the threads that still run when the job's function has
returned can be named.
"""

from __future__ import annotations

import io
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_OWNER = "_dataflow_owner"
_LIBRARIES = ("py4j", "pyspark", "grpc", "dataflowd")
_STARTERS = ("threading", "concurrent.futures", "multiprocessing")


def install() -> None:
    """Replaces stdout, stderr and Thread.start. Call it once, before any attempt runs."""
    sys.stdout = _Router(sys.stdout)
    sys.stderr = _Router(sys.stderr)
    begin = threading.Thread.start

    def start(self: threading.Thread) -> None:
        setattr(self, _OWNER, None if _is_library(sys._getframe(1)) else owner())  # noqa: SLF001 - no public way
        begin(self)

    threading.Thread.start = start  # type: ignore[method-assign]


class Owner:
    """An attempt, as the owner of threads and printed lines."""

    def __init__(self, sink: Callable[[str], None]) -> None:
        self.sink = sink
        self.unfinished: dict[int, str] = {}

    def write(self, stream: int, text: str) -> None:
        *lines, rest = (self.unfinished.get(stream, "") + text).split("\n")
        self.unfinished[stream] = rest
        for line in lines:
            self.sink(line)

    def close(self) -> None:
        for rest in self.unfinished.values():
            if rest:
                self.sink(rest)
        self.unfinished.clear()

    def left_threads(self) -> list[str]:
        """Names of the threads that job code has started and that still run."""
        return sorted(
            thread.name
            for thread in threading.enumerate()
            if getattr(thread, _OWNER, None) is self and thread is not threading.current_thread()
        )


def owner() -> Owner | None:
    found: Owner | None = getattr(threading.current_thread(), _OWNER, None)
    return found


@contextmanager
def owned(sink: Callable[[str], None]) -> Iterator[Owner]:
    """Makes the current thread work for one attempt, which prints to `sink`."""
    thread = threading.current_thread()
    mine = Owner(sink)
    setattr(thread, _OWNER, mine)
    try:
        yield mine
    finally:
        mine.close()
        setattr(thread, _OWNER, None)


def _is_library(starter: FrameType | None) -> bool:
    """Whether Spark's code or ours starts the thread, directly or through a pool of the standard library."""
    while starter is not None and _module(starter).startswith(_STARTERS):
        starter = starter.f_back
    return starter is not None and _module(starter).startswith(_LIBRARIES)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


class _Router(io.TextIOBase):
    def __init__(self, real: Any) -> None:
        self._real = real

    def write(self, text: str) -> int:
        found = owner()
        if found is None:
            self._real.write(text)
        else:
            found.write(id(self), text)
        return len(text)

    def flush(self) -> None:
        self._real.flush()

    def fileno(self) -> int:
        return int(self._real.fileno())

    def isatty(self) -> bool:
        return False
