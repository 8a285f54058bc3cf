"""Directories that killed programs left behind. Whoever comes next removes them: their names tell whose they were.

A runner, a command, a trial and a split of files work in a directory of their own (supervise.own_directory), which goes
when they end, also by a signal. Only kill -9 and a lost host leave it. A daemon looks when it starts and each time that it
collects; so do `dataflowctl try`, `partition create` and `gc`.
"""

from __future__ import annotations

import shutil
import tempfile
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


def found(settings: Settings) -> list[Path]:
    places = (settings.data_dir / "run", Path(tempfile.gettempdir()))
    return [path for place in places for prefix in PREFIXES for path in supervise.leftovers(place, prefix)]


def remove(settings: Settings) -> list[Path]:
    """Those that are gone now."""
    paths = found(settings)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    return [path for path in paths if not path.exists()]
