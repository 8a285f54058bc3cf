"""The Unix user that runs the jobs, where it is not the daemon's own."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from dataflowd.errors import InvalidSettingsError

if TYPE_CHECKING:
    from pathlib import Path


def uid_of(user: str) -> int:
    return _entry(user).pw_uid if user else os.geteuid()


def environment(user: str) -> dict[str, str]:
    """What a login would set; nothing for the daemon's own user."""
    if not user:
        return {}
    return {"HOME": _entry(user).pw_dir, "USER": user, "LOGNAME": user}


def give(path: Path, user: str) -> None:
    if user:
        os.chown(path, _entry(user).pw_uid, _entry(user).pw_gid)


def require(user: str) -> None:
    """Said when a daemon starts, and not by each of its jobs."""
    if user and os.geteuid() not in {0, _entry(user).pw_uid}:
        raise InvalidSettingsError(
            f"runner_user is {user}, and only root can run jobs as another user",
            "run the daemon as root, or as that user without the setting",
        )


def _entry(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise InvalidSettingsError(
            f"runner_user is {user}, and there is no such user on this host",
            "create it, or correct the setting",
        ) from None
