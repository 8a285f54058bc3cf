"""Directories and files of dataflowd's own that others must not read or change, whatever the umask.

Logs and the spool are for the daemon's user and group. The data directory leads to published data, and to what Postgres
and the user of the jobs need: everybody may pass through it, and nobody else may list it. What is there already keeps the
mode that somebody gave it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

    from dataflowd.host.settings import Settings

CLOSED = 0o700
DIRECTORY = 0o750
PASSAGE = 0o711
FILE = 0o640
PASS_THROUGH = 0o011
WRITABLE_BY_OTHERS = 0o002


def limit_umask() -> None:
    """For a whole program, at its start: nothing that it makes can be changed by everybody."""
    before = os.umask(0o077)
    os.umask(before | WRITABLE_BY_OTHERS)


def directory(path: Path) -> None:
    _make(path, DIRECTORY)


def passage(path: Path) -> None:
    _make(path, PASSAGE)


def spool(settings: Settings) -> Path:
    """Where runners and scripts have their own directories; their user has to get there."""
    passage(settings.data_dir)
    path = settings.data_dir / "run"
    directory(path)
    mode = path.stat().st_mode
    if settings.runner_user and mode & PASS_THROUGH != PASS_THROUGH:
        path.chmod(mode | PASS_THROUGH)
    return path


def append(path: Path) -> BinaryIO:
    """The file opened at its end, made if it is not there; never through a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, FILE), "ab", buffering=0)


def _make(path: Path, mode: int) -> None:
    """With those above it. It is closed until it has its mode, which a umask would narrow."""
    if not path.parent.exists():
        _make(path.parent, mode)
    try:
        path.mkdir(CLOSED)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(mode)
