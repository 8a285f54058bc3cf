"""The private key, for a process of runner_user: a copy in that process's own directory, gone with it.

The key itself stays root's, so that jobs can neither replace nor keep it by owning it. The kernel makes the copy: the
key is never in the memory of the daemon.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.host import runner_user
from dataflowd.host.keyfile import KEY_FILE_BYTES, PASSPHRASE_CREDENTIAL

if TYPE_CHECKING:
    from dataflowd.host.keyfile import KeySource

KEY = "key"
PASSPHRASE = "passphrase"  # noqa: S105 - the name of a file


def lend(source: KeySource, directory: Path, user: str) -> KeySource:
    """Where a process of this user finds the keys; the same place where there is no such user."""
    if not user:
        return source
    key, passphrase = source.file, _passphrase(source)
    if key is not None and _may_be_lent(key, source):
        source = replace(source, key_file=_copied(key, directory / KEY, user))
    if passphrase is not None and _may_be_lent(passphrase, source):
        source = replace(source, passphrase_file=_copied(passphrase, directory / PASSPHRASE, user))
    return source


def lent(directory: Path) -> list[str]:
    """The copies, for a process that removes them when it has read them."""
    return [str(path) for path in (directory / KEY, directory / PASSPHRASE) if path.exists()]


def _passphrase(source: KeySource) -> Path | None:
    if source.passphrase_file:
        return Path(source.passphrase_file)
    return Path(source.credentials) / PASSPHRASE_CREDENTIAL if source.credentials else None


def _may_be_lent(path: Path, source: KeySource) -> bool:
    """One that is missing or open to others is left where it is: the process that needs it says what is wrong with it."""
    is_credential = source.credentials is not None and path.parent == Path(source.credentials)
    forbidden = stat.S_IRWXO if is_credential else stat.S_IRWXG | stat.S_IRWXO
    return path.is_file() and not path.stat().st_mode & forbidden


def _copied(path: Path, to: Path, user: str) -> str:
    found = pwd.getpwnam(user)
    with path.open("rb", buffering=0) as there:
        here = os.open(to, runner_user.NEW_FILE, 0o600)
        try:
            os.fchown(here, found.pw_uid, found.pw_gid)
            offset = 0
            while offset < KEY_FILE_BYTES and (
                sent := os.sendfile(here, there.fileno(), offset, KEY_FILE_BYTES - offset)
            ):
                offset += sent
        finally:
            os.close(here)
    return str(to)
