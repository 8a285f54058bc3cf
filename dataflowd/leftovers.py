"""Directories that killed programs left behind. Whoever comes next removes them: their names tell whose they were.

A runner, a command, a trial and a split of files work in a directory of their own (supervise.own_directory), which goes
when they end, also by a signal. Only kill -9 and a lost host leave it. A daemon looks when it starts and each time that it
collects; so do `dataflowctl try`, `partition create` and `gc`.

A runner dies with whoever started it, and its JVM ends when it finds that the runner is gone. But one that is just
starting needs the directory to get that far: without it, it would stay for ever. So what still works in such a directory
is killed before the directory goes.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd import supervise

if TYPE_CHECKING:
    from dataflowd.settings import Settings

RUNNER = "runner"
COMMAND = "command"
TRIAL = "dataflowd-try"
SPLIT = "dataflowd-split"
PREFIXES = (RUNNER, COMMAND, TRIAL, SPLIT)
END_SECONDS = 5.0
POLL_SECONDS = 0.02


def found(settings: Settings) -> list[Path]:
    places = (settings.data_dir / "run", Path(tempfile.gettempdir()))
    return [path for place in places for prefix in PREFIXES for path in supervise.leftovers(place, prefix)]


def remove(settings: Settings) -> list[Path]:
    """Those that are gone now."""
    paths = found(settings)
    for path in paths:
        _end(path)
        shutil.rmtree(path, ignore_errors=True)
    return [path for path in paths if not path.exists()]


def processes(directory: Path) -> list[int]:
    """Those that work in it: nobody else gets into a directory that is one program's own."""
    inside = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "cwd").readlink().is_relative_to(directory.resolve()):
                    inside.append(int(entry.name))
    return inside


def _end(directory: Path) -> None:
    deadline = time.monotonic() + END_SECONDS
    while (left := processes(directory)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
