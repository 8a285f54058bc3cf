"""The account that runs the embedded Postgres.

An ordinary user runs it under the own account. Postgres refuses root, so for root it runs under an unprivileged account:
the owner of an existing data directory, else `dataflowd` (created where that is possible), else `nobody`. No mode of a
user's file is changed for that account. Programs that the account cannot reach are copied. A data directory that it
cannot reach is passed to it as an open descriptor, which opens that directory and nothing else.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "dataflowd"
FALLBACK = "nobody"
HANDED = "/proc/self/fd/"  # begins the path of a directory that was passed as a descriptor


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int

    @property
    def is_other(self) -> bool:
        """Whether processes must change user to run as this account."""
        return os.geteuid() != self.uid

    @property
    def ids(self) -> tuple[int, int] | None:
        """The uid and the gid that files for this account get; None if this process has them anyway."""
        return (self.uid, self.gid) if self.is_other else None

    def popen_arguments(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.is_other else {}

    def own(self, path: Path) -> None:
        if self.is_other:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def reaches(self, directory: Path) -> bool:
        if not self.is_other:
            return os.access(directory, os.X_OK)
        entered = subprocess.run(  # noqa: S603 - the path is an argument, never shell text
            ["/bin/sh", "-c", 'cd "$1"', "sh", str(directory)],
            cwd="/",
            capture_output=True,
            check=False,
            **self.popen_arguments(),
        )
        return entered.returncode == 0


def intention(data: Path) -> str | None:
    """A sentence that tells root what `choose` will do; None if there is nothing to tell."""
    if os.geteuid() != 0 or data.exists():
        return None
    name, made = NAME, ""
    if _lookup(NAME) is None:
        name, made = (NAME, ", which is created now") if _useradd() else (FALLBACK, "")
    return f"Postgres does not run as root: it runs as the account {name}{made}"


def by_name(path: str, base: Path) -> Path:
    """Translates a path of the server: a path below the passed descriptor becomes a path below `base`."""
    if not path.startswith(HANDED):
        return Path(path)
    return base.joinpath(*Path(path.removeprefix(HANDED)).parts[1:])


def read(path: Path) -> str:
    """Reads a file in a directory that the account owns. Refuses a link: it could lead root to another file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, encoding="utf-8", errors="replace") as file:
        return file.read()


def choose(data: Path) -> Account:
    """The account for this data directory, which need not exist yet."""
    uid = os.geteuid()
    if uid != 0:
        return Account(str(uid), uid, os.getegid())
    owner = data.stat() if data.exists() else None
    if owner is not None and owner.st_uid != 0:
        return Account(str(owner.st_uid), owner.st_uid, owner.st_gid)
    entry = _lookup(NAME) or _create() or pwd.getpwnam(FALLBACK)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _lookup(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _useradd() -> str | None:
    return shutil.which("useradd", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def _create() -> pwd.struct_passwd | None:
    useradd = _useradd()
    if useradd is None:
        return None
    # Two processes may do this at once: useradd fails in one of them, and the lookup finds the other's account.
    subprocess.run(  # noqa: S603 - no part comes from outside
        [useradd, "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent", NAME],
        capture_output=True,
        check=False,
    )
    return _lookup(NAME)
