"""How to start the process that becomes a script (`python -m dataflowd.runner.script`), and how to read what it reports.

The order goes to the process in a file in memory. A pipe brings back what the process found, and its fault, if there is one.
The command engine starts the process for attempts, `dataflowctl exec` for a person.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dataflowd.host.keyfile import KeySource
    from dataflowd.model.work_order import Order

INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "HOME")
FAULT_BYTES = 65536


def inherited(names: Iterable[str] = INHERITED) -> dict[str, str]:
    """What a process gets of this one's environment: these variables, and nothing else."""
    return {name: os.environ[name] for name in names if name in os.environ}


@dataclass(frozen=True)
class Program:
    """The command of a script: `before`, then `words` (of the flow, with their placeholders filled in), then `after` (added by a
    person, unchanged). `env` is added to the order's variables.
    """

    before: tuple[str, ...]
    words: tuple[str, ...]
    env: Mapping[str, str]
    after: tuple[str, ...] = ()

    def document(self, order: Order, key: KeySource, lent: Sequence[str] = ()) -> dict[str, Any]:
        """`lent`: copies of the key file, which the process removes before it becomes the script."""
        return {
            "order": order.document(),
            "before": self.before,
            "words": self.words,
            "after": self.after,
            "env": dict(self.env),
            "key": key.document(),
            "lent": tuple(lent),
        }


class Said:
    """What the process reports before it becomes a script: a line with what it found, and one with its fault, if there is one.

    `begun`: the process has become the script. `on_start` is called at that moment.
    """

    def __init__(self, on_start: Callable[[], None], on_found: Callable[[dict[str, Any]], None]) -> None:
        self._rest = b""
        self._on_start = on_start
        self._on_found = on_found
        self.fault: dict[str, Any] | None = None
        self.begun = False

    def begin(self) -> None:
        if not self.begun:
            self.begun = True
            self._on_start()

    def hear(self, more: bytes) -> None:
        """Takes the bytes that came through the pipe. Half a line, which a killed process may leave, is ignored."""
        *lines, self._rest = (self._rest + more).split(b"\n")
        for line in map(json.loads, lines):
            if "found" in line:
                self._on_found(line["found"])
            else:
                self.fault = line

    def require_none(self) -> None:
        """Raises the fault that the process reported instead of becoming the script."""
        if self.fault is not None:
            raise AttemptError(**self.fault)


@dataclass(frozen=True)
class Start:
    argv: list[str]
    env: dict[str, str]
    pass_fds: tuple[int, int]
    receive: int  # the reading end of the pipe
    # Closes our copy of the writing end. Call it once the process has its own: exec closes that one, and so ends the pipe.
    close_send: Callable[[], None]


@contextmanager
def starting(document: dict[str, Any]) -> Iterator[Start]:
    """Yields how to start the process. The order is in a file in memory, which has no limit of size and no name that others know."""
    receive, send = os.pipe()
    with (
        os.fdopen(receive, "rb", buffering=0),
        os.fdopen(send, "wb", buffering=0) as sending,
        os.fdopen(os.memfd_create("order", 0), "wb") as file,
    ):
        file.write(json.dumps(document).encode())
        file.flush()
        file.seek(0)
        fds = (file.fileno(), send)
        words = [sys.executable, "-I", "-m", "dataflowd.runner.script", *map(str, fds)]
        yield Start(words, {"PATH": os.environ.get("PATH", os.defpath)}, fds, receive, sending.close)


def rest(receive: int) -> bytes:
    """Reads until the process has closed the other end, because it has ended or has become the script."""
    found = b""
    while more := os.read(receive, FAULT_BYTES):
        found += more
    return found
