"""Reads a systemd unit from its file and its drop-ins, as systemd does, but without systemd.

Only the section [Service] counts. A key may be given several times: a list takes every value, any other key the last
value. An empty value discards the earlier ones.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.model.errors import InvalidValueError, NotAllowedError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

# systemd reads the same variable, for units in other directories.
PATH_VARIABLE = "SYSTEMD_UNIT_PATH"
PATHS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,200}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Unit:
    name: str
    files: tuple[Path, ...]
    given: dict[str, list[str]]

    def value(self, key: str) -> str:
        return (self.given.get(key) or [""])[-1]

    def words(self, key: str) -> list[str]:
        return [word for value in self.given.get(key, []) for word in shlex.split(value)]

    def environment(self) -> dict[str, str]:
        """The environment of the service, as far as the unit says it. Raises NotAllowedError."""
        found = dict(word.partition("=")[::2] for word in self.words("Environment"))
        for name in self.given.get("EnvironmentFile", []):
            path = Path(name.removeprefix("-"))
            if path.exists() or not name.startswith("-"):
                found |= dict(_variables(path))
        return found


def read(name: str) -> Unit:
    """`dataflowd` means dataflowd.service, `dataflowd@blue` an instance of its template. Raises NotFoundError."""
    if not _NAME.fullmatch(name):
        raise InvalidValueError(f"{name!r} is no unit", "name one such as dataflowd or dataflowd@blue")
    name = name if name.endswith(".service") else f"{name}.service"
    stem, at, instance = name.removesuffix(".service").partition("@")
    names = [name, f"{stem}@.service"] if at else [name]
    directories = [Path(path) for path in os.environ.get(PATH_VARIABLE, "").split(":") if path]
    directories = directories or [Path(path) for path in PATHS]
    main = next(
        (found for each in names for directory in directories if (found := directory / each).is_file()),
        None,
    )
    if main is None:
        raise NotFoundError(
            f"there is no unit {name} in {', '.join(map(str, directories))}",
            'install it: "From zero to `systemctl status`" in docs/deploy.md says how',
        )
    # Of drop-ins with the same name the first directory's counts. They are read in the order of their names.
    drop_ins: dict[str, Path] = {}
    for each in (*names, "service"):
        for directory in directories:
            for path in sorted((directory / f"{each}.d").glob("*.conf")):
                drop_ins.setdefault(path.name, path)
    files = (main, *(drop_ins[drop_in] for drop_in in sorted(drop_ins)))
    given: dict[str, list[str]] = {}
    for path in files:
        for key, value in _assignments(_text(path)):
            filled = value.replace("%i", instance).replace("%%", "%")
            given[key] = [*given.get(key, []), filled] if filled else []
    return Unit(name, files, given)


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = line.strip()
        if words.startswith("["):
            section = words
        elif section == "[Service]" and "=" in words and not words.startswith(("#", ";")):
            key, _, value = words.partition("=")
            yield key.strip(), value.strip()


def _variables(path: Path) -> Iterator[tuple[str, str]]:
    for line in _text(path).splitlines():
        name, is_set, value = line.strip().partition("=")
        if is_set and _VARIABLE.fullmatch(name):
            yield name, value.strip().strip("\"'")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise NotAllowedError(
            f"{path} cannot be read: {error.strerror}",
            "run the command as root, who can read the unit's files",
        ) from None
