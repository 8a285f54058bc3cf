"""Makes directories and files that other users must not read or change, whatever the umask.

Logs and the spool are for the daemon's user and group. The data directory holds published data, the files of Postgres
and the files of runner_user: every user may pass through it, and only its owner may list it. A directory that already
exists keeps its mode.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

    from dataflowd.host.settings import Settings

CLOSED = 0o700
DIRECTORY = 0o750
PASSAGE = 0o711
FILE = 0o640
SECRET_FILE = 0o600
PROGRAM = 0o755
PASS_THROUGH = 0o011
WRITABLE_BY_OTHERS = 0o002


def limit_umask() -> None:
    """Called once, when a program starts: no file that the program makes is writable by everybody."""
    before = os.umask(0o077)
    os.umask(before | WRITABLE_BY_OTHERS)


def make_directory(path: Path) -> None:
    _make(path, DIRECTORY)


def make_passage(path: Path) -> None:
    _make(path, PASSAGE)


def make_spool(settings: Settings) -> Path:
    """The directory in which runners and scripts have their own directories. runner_user can pass through it."""
    make_passage(settings.data_dir)
    path = settings.data_dir / "run"
    make_directory(path)
    mode = path.stat().st_mode
    if settings.runner_user and mode & PASS_THROUGH != PASS_THROUGH:
        path.chmod(mode | PASS_THROUGH)
    return path


def open_append(path: Path) -> BinaryIO:
    """Opens a file to append, and makes it if it is missing. Refuses a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, FILE), "ab", buffering=0)


def replace_file(
    path: Path, text: str, *, mode: int = SECRET_FILE, owner: tuple[int, int] | None = None
) -> None:
    """Writes a new file and renames it to `path`: a reader, or a crash, finds the old file or the new one, whole.

    Follows no link: if `path` is one, the link is replaced. `owner` is a uid and a gid; None: this process's own.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(unfinished, flags, SECRET_FILE)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            if owner is not None:
                os.fchown(handle, *owner)
            os.fchmod(handle, mode)
            file.write(text)
            file.flush()
            os.fsync(handle)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _make(path: Path, mode: int) -> None:
    """Makes a directory and its parents. It is made closed and gets its mode afterwards: mkdir applies the umask."""
    if not path.parent.exists():
        _make(path.parent, mode)
    try:
        path.mkdir(CLOSED)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(mode)
