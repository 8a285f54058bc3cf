"""Keys that this user has sealed passwords with, one for each database: `known_keys` beside the user's configuration.

The database offers the public key to seal with. The owner of the database could offer a key of their own. So the first
use of a key stores its id, and another key is refused until a person confirms it by its id, as ssh does with hosts. The
id is a hash of the key: no other key has it. If the setting `trusted_keys` is given, it decides alone.

A line is `dataflowd-known-key-v1 <database> <keyid>`, with the database as host:port/name, percent-encoded. The file is
replaced as a whole, under a lock on its directory, so that two commands at the same time lose no key.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from dataflowd.host import private, settings
from dataflowd.host.allowed_hosts import DEFAULT_PORT
from dataflowd.model.errors import InvalidCredentialError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

FORMAT = "dataflowd-known-key-v1"
NOTE = "# dataflowd: the key that passwords are sealed with, for each database. Remove a line to forget its key.\n"
FILE_BYTES = 1024 * 1024
WORDS = 3  # of a line


@dataclass(frozen=True)
class KnownKeys:
    path: Path
    database: str

    @property
    def keyid(self) -> str | None:
        """The remembered key; None: this database is new to this user."""
        return self._all().get(self.database)

    def remember(self, keyid: str) -> None:
        """Stores the key of this database. Raises InvalidCredentialError if the file cannot be written."""
        try:
            _require_own(self.path.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _locked(self.path.parent):
                known = self._all() | {self.database: keyid}
                lines = [f"{FORMAT} {database} {key}\n" for database, key in sorted(known.items())]
                private.replace_file(self.path, NOTE + "".join(lines))
        except OSError as error:
            raise InvalidCredentialError(
                f"the key {keyid} cannot be remembered in {self.path}: {error.strerror}",
                "let XDG_CONFIG_HOME name a directory that this user can write, or name the key in the setting trusted_keys",
            ) from None

    def _all(self) -> dict[str, str]:
        known = {}
        for number, line in enumerate(_read(self.path).splitlines(), 1):
            words = line.split()
            if not words or line.startswith("#"):
                continue
            if len(words) != WORDS or words[0] != FORMAT:
                raise InvalidCredentialError(
                    f"{self.path} is damaged in line {number}",
                    "remove the line; the next command that seals says which key it uses",
                )
            known[words[1]] = words[2]
        return known


def of(connection: psycopg.Connection) -> KnownKeys:
    """For the database of this connection. Raises InvalidCredentialError for a user without a configuration."""
    beside = settings.user_config()
    if beside is None:
        raise InvalidCredentialError(
            "this user has no home directory in which the database's key could be remembered",
            "let XDG_CONFIG_HOME name a directory of this user, or name the key in the setting trusted_keys",
        )
    return KnownKeys(beside.with_name("known_keys"), _name(connection))


def _name(connection: psycopg.Connection) -> str:
    """The database as the DSN names it, with all its hosts: after a failover another host serves the same database."""
    given = connection.info.get_parameters()
    host = given.get("host") or given.get("hostaddr") or connection.info.host
    return quote(f"{host}:{given.get('port') or DEFAULT_PORT}/{connection.info.dbname}", safe=":/,")


def _read(path: Path) -> str:
    """Refuses a link, and a file that other users can write: they could choose the key."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise _unusable(path, "is no file")
        if found.st_uid not in {0, os.geteuid()}:
            raise _unusable(path, "belongs to another user")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _unusable(path, f"can be changed by others (mode {stat.S_IMODE(found.st_mode):04o})")
        try:
            return file.read(FILE_BYTES).decode("ascii")
        except UnicodeDecodeError:
            raise _unusable(path, "is no text") from None


def _unusable(path: Path, why: str) -> InvalidCredentialError:
    return InvalidCredentialError(
        f"{path} {why}",
        "make it a file of this user with mode 0600; if you remove it, the next key counts as new",
    )


def _require_own(directory: Path) -> None:
    """Checks the nearest directory that exists. sudo may leave HOME at another user's directory."""
    found = next(path for path in (directory, *directory.parents) if path.exists())
    there = found.stat()
    is_shared = there.st_mode & stat.S_IWOTH and not there.st_mode & stat.S_ISVTX
    if there.st_uid not in {0, os.geteuid()} or is_shared:
        raise InvalidCredentialError(
            f"{found} belongs to another user, or can be changed by everybody: keys cannot be remembered there",
            "let XDG_CONFIG_HOME name a directory of this user, or use sudo with -H",
        )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
