"""The directories of the embedded Postgres: its base, and the one of its socket, which only its account can enter."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.host import private
from dataflowd.model.errors import EmbeddedError

if TYPE_CHECKING:
    from dataflowd.host.embedded.account import Account

PORT = 5432  # names the socket file; nothing listens on TCP
SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path, less its closing zero


def make_base(base: Path, owner: Account) -> None:
    existing = next(path for path in base.parents if path.exists())
    made = [path for path in base.parents if path.is_relative_to(existing) and path != existing]
    for path in reversed(made):
        path.mkdir(exist_ok=True)
        path.chmod(private.PASSAGE if owner.is_other else private.CLOSED)
    make_directory(base, owner)


def make_directory(path: Path, owner: Account) -> Path:
    if not path.is_dir():
        path.mkdir(mode=0o700, exist_ok=True)
        owner.own(path)
    return path


def make_socket_directory(base: Path, owner: Account) -> Path:
    """Makes the directory of the socket: beside the data or, if that path is too long, in the temporary directory."""
    near, short = base / "run", Path(tempfile.gettempdir()) / _short_name(base, owner)
    chosen = next((path for path in (near, short) if _fits_socket(path)), None)
    if chosen is None:
        raise EmbeddedError(
            f"no place for the socket: {socket_file(near)} and {socket_file(short)} "
            f"are longer than {SOCKET_PATH_BYTES} bytes or contain a comma",
            "set TMPDIR to a short path",
            can_move=True,
        )
    make_directory(chosen, owner)
    found = chosen.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner.uid or stat.S_IMODE(found.st_mode) & 0o077:
        raise EmbeddedError(
            f"{chosen} is not a private directory of the account {owner.name}",
            "remove it",
            can_move=True,
        )
    return chosen


def _short_name(base: Path, owner: Account) -> str:
    return f"dataflowd-{owner.uid}-{hashlib.sha256(os.fsencode(base)).hexdigest()[:12]}"


def is_ours(directory: Path, base: Path, owner: Account) -> bool:
    """Whether postmaster.pid names a socket directory of ours. The server's account could write any path there."""
    if directory != base / "run" and directory.name != _short_name(base, owner):
        return False
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == owner.uid


def _fits_socket(directory: Path) -> bool:
    """Clients read a comma in a host as the beginning of the next host."""
    return len(os.fsencode(socket_file(directory))) <= SOCKET_PATH_BYTES and "," not in str(directory)


def socket_file(directory: Path) -> Path:
    return directory / f".s.PGSQL.{PORT}"
