"""Lends the private key to a process of runner_user: a copy in the process's own directory, removed with the directory.

The key file itself stays root's: a job cannot replace it or change its mode. The kernel copies the file (sendfile), so
the key is never in the memory of the daemon.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from typing import TYPE_CHECKING

from dataflowd.host import runner_user
from dataflowd.host.keyfile import KEY_FILE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from dataflowd.host.keyfile import KeySource

KEY = "key"
PASSPHRASE = "passphrase"  # noqa: S105 - the name of a file


def lend(source: KeySource, directory: Path, user: str) -> KeySource:
    """The source that a process of this user reads. Without a runner_user it is the same source, and nothing is copied."""
    if not user:
        return source
    key, passphrase = source.file, source.passphrase_path
    if key is not None and _may_be_lent(key, source):
        source = replace(source, key_file=_copied(key, directory / KEY, user))
    if passphrase is not None and _may_be_lent(passphrase, source):
        source = replace(source, passphrase_file=_copied(passphrase, directory / PASSPHRASE, user))
    return source


def copies_in(directory: Path) -> list[str]:
    """The paths of the copies; the process removes them after it has read them."""
    return [str(path) for path in (directory / KEY, directory / PASSPHRASE) if path.exists()]


def _may_be_lent(path: Path, source: KeySource) -> bool:
    """Whether the file exists and is private. If not, it is not copied: the process that reads it reports the error."""
    return path.is_file() and not path.stat().st_mode & source.forbidden_mode(path)


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
