"""runner_user: the Unix user that runs the jobs, if it is not the daemon's own user.

The daemon then runs as root, and a job can read neither the daemon's memory nor its files. This holds only while
runner_user owns nothing that the daemon relies on, so `require` refuses a user that does. Root works in directories of
runner_user by descriptor: the user can replace any name there by a link.
"""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from dataflowd.model.errors import InvalidSettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataflowd.host.settings import Settings

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def uid_of(user: str) -> int:
    return _entry(user).pw_uid if user else os.geteuid()


def environment(user: str) -> dict[str, str]:
    """The variables that a login would set. Empty for the daemon's own user."""
    if not user:
        return {}
    return {"HOME": _entry(user).pw_dir, "USER": user, "LOGNAME": user}


def give(path: Path, user: str) -> None:
    """Makes runner_user the owner of a path. Inside a directory that the user owns already, use `write` instead."""
    if user:
        os.chown(path, _entry(user).pw_uid, _entry(user).pw_gid, follow_symlinks=False)


def write(path: Path, text: str, user: str) -> None:
    """Makes a new file (0600) that runner_user owns. Fails if the name exists, so root never writes through a link."""
    handle = os.open(path, NEW_FILE, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        if user:
            os.fchown(handle, _entry(user).pw_uid, _entry(user).pw_gid)
        file.write(text)


def require(settings: Settings) -> None:
    """Raises InvalidSettingsError when the daemon starts, so that not every job fails for the same reason."""
    user = settings.runner_user
    if not user:
        return
    uid = _entry(user).pw_uid
    if os.geteuid() != 0:
        raise InvalidSettingsError(
            f"runner_user is {user}, and only root can run jobs as another user",
            "run the daemon as root, or leave runner_user out",
        )
    if uid == 0:
        raise InvalidSettingsError(
            f"runner_user is {user}, which is root: its jobs would read everything that the daemon has",
            "name a user that has no rights of its own, and owns nothing of the daemon's",
        )
    for what, path, owner in owned(settings):
        if owner == uid:
            raise InvalidSettingsError(
                f"runner_user is {user}, which owns {what} ({path}): its jobs could read and replace it",
                "name a user that owns nothing of the daemon's, or give it to root",
            )


def owned(settings: Settings) -> Iterator[tuple[str, Path, int]]:
    """What the daemon relies on and jobs must not change: a description, its path and the uid of its owner."""
    from dataflowd.host import keyfile  # noqa: PLC0415 - cryptography is needed only here
    from dataflowd.host.embedded import account as embedded  # noqa: PLC0415

    source = keyfile.KeySource.of(settings)
    files = [("the data directory", settings.data_dir), ("the private key", source.file)]
    files += [("the passphrase of the private key", settings.passphrase_file)]
    for what, path in files:
        if path is not None and path.exists():
            yield what, path, path.stat().st_uid
    if settings.dsn is None:
        data = settings.data_dir / "postgres" / "data"
        yield "the embedded database", data, embedded.choose(data).uid


def _entry(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise InvalidSettingsError(
            f"runner_user is {user}, and there is no such user on this host",
            "create it, or correct the setting",
        ) from None
