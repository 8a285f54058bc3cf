"""Ends what a test session has started, however the session ends.

`python guard.py DIRECTORY KEPT` waits until its standard input closes. The kernel closes it also for a session that is killed, so
no server of a test outlives the session by more than seconds. Then the guard ends every process that works in one of the two
directories or has DIRECTORY as its TMPDIR, and removes DIRECTORY.

It runs in a session of its own, because Ctrl-C reaches every process of the terminal's.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

# A Postgres server takes the first as "when the last client has gone", the second as "now", the third as "at once".
STEPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
STEP_SECONDS = 3.0
POLL_SECONDS = 0.05


def processes_of(temporary: Path, kept: Path) -> list[int]:
    variable = f"TMPDIR={temporary}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            place = (path / "cwd").readlink()
            variables = (path / "environ").read_bytes().split(b"\0")
            if place.is_relative_to(temporary) or place.is_relative_to(kept) or variable in variables:
                found.append(int(path.name))
    return [pid for pid in found if pid != os.getpid()]


def end_all(temporary: Path, kept: Path) -> None:
    for number in STEPS:
        for pid in processes_of(temporary, kept):
            with suppress(OSError):
                os.kill(pid, number)
        deadline = time.monotonic() + STEP_SECONDS
        while processes_of(temporary, kept) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def main() -> None:
    temporary, kept = map(Path, sys.argv[1:])
    sys.stdin.read()
    end_all(temporary, kept)
    shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    main()
