"""The doctor's checks of a systemd unit: whether the unit's protections leave the daemon what its settings need.

The settings are those that the service would find. Nothing is started, and systemd need not run.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.cli.doctor.finding import Finding
from dataflowd.host import settings as all_settings
from dataflowd.host import unit
from dataflowd.model.errors import DataflowError
from dataflowd.model.location import BadLocationError, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.host.settings import Settings
    from dataflowd.host.unit import Unit

CHECK = "unit"
NOTIFY_RELOAD_SINCE = 253
VERSION_SECONDS = 10
# Directories that the unit owns are writable in any case.
OWN = {
    "StateDirectory": "/var/lib",
    "LogsDirectory": "/var/log",
    "CacheDirectory": "/var/cache",
    "RuntimeDirectory": "/run",
}
PROTECTED = {
    "strict": ("/",),
    "full": ("/usr", "/boot", "/efi", "/etc"),
    "yes": ("/usr", "/boot", "/efi"),
    "true": ("/usr", "/boot", "/efi"),
}
WRITE_AND_ENTER = 0o3
HOMES = ("/home", "/root", "/run/user")


def examine(name: str, config: Path | None) -> Iterator[Finding]:
    try:
        found = unit.read(name)
        os.environ.update(_environment(found))
        loaded = all_settings.load(config).settings
    except DataflowError as error:
        yield Finding(CHECK, "failed", error.message, error.remedy)
        return
    drop_ins = ", ".join(path.name for path in found.files[1:]) or "none"
    yield Finding(CHECK, "ok", f"{found.name} is {found.files[0]}, with drop-ins: {drop_ins}")
    yield _program(found)
    yield _type(found)
    yield from _roots(found, loaded)
    yield from _flows(found, loaded)


def _environment(found: Unit) -> dict[str, str]:
    """The service's environment. systemd adds HOME of the unit's user, below which a settings file may be."""
    user = found.value("User") or "root"
    try:
        home = pwd.getpwnam(user).pw_dir
    except KeyError:
        home = "/"
    return {"HOME": home} | found.environment()


def _program(found: Unit) -> Finding:
    words = found.words("ExecStart")
    program = words[0].lstrip("@-:+!") if words else ""
    if os.access(program, os.X_OK) and Path(program).is_file():
        return Finding(CHECK, "ok", f"it starts {' '.join(words)}")
    return Finding(
        CHECK,
        "failed",
        f"it starts {program or 'nothing'}, which is not a program",
        "install dataflowd there, or name its place: a drop-in with an empty ExecStart= and a second one",
    )


def _type(found: Unit) -> Finding:
    kind = found.value("Type")
    version = _systemd()
    if kind != "notify-reload" or (version or NOTIFY_RELOAD_SINCE) >= NOTIFY_RELOAD_SINCE:
        return Finding(
            CHECK, "ok", f"it is of Type={kind or 'simple'}, and systemd {version or 'is not here'}"
        )
    return Finding(
        CHECK,
        "failed",
        f"systemd {version} does not know the Type=notify-reload of the unit: it would not wait until the daemon has started, and could not reload it",
        _drop_in(found, "before-253.conf"),
    )


def _systemd() -> int | None:
    program = shutil.which("systemctl")
    if program is None:
        return None
    said = subprocess.run(  # noqa: S603 - systemd's own program, no part comes from outside
        [program, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
    )
    number = re.match(r"systemd (\d+)", said.stdout)
    return int(number[1]) if number else None


def _roots(found: Unit, loaded: Settings) -> Iterator[Finding]:
    """Checks the roots on this host's disk, below which jobs write. A unit cannot protect other roots."""
    for root in loaded.effective_allowed_roots:
        try:
            where = place(root)
        except BadLocationError:
            continue
        if where.scheme == "file":
            yield _root(found, Path(where.path), loaded)
    for path in _read_write(found, is_optional=False):
        if not path.exists():
            yield Finding(
                CHECK,
                "failed",
                f"{path} of ReadWritePaths does not exist, so that systemd does not start the unit (status 226)",
                f"make it, or write ReadWritePaths=-{path}",
            )


def _root(found: Unit, root: Path, loaded: Settings) -> Finding:
    if _is_hidden(found, root):
        return Finding(
            CHECK,
            "failed",
            f"{root} is hidden from the unit by ProtectHome={found.value('ProtectHome')}",
            "move the data out of people's homes",
        )
    if not _is_writable(found, root):
        return Finding(
            CHECK,
            "failed",
            f"{root} is read-only for the unit by ProtectSystem={found.value('ProtectSystem')}",
            f"{_drop_in(found, 'data.conf')}, with ReadWritePaths={root}",
        )
    user = loaded.runner_user or found.value("User") or "root"
    if root.is_dir() and not _may_write(user, root):
        return Finding(CHECK, "failed", f"{user} may not write in {root}", f"chown {user}: {root}")
    return Finding(CHECK, "ok", f"{root} is writable for the unit")


def _flows(found: Unit, loaded: Settings) -> Iterator[Finding]:
    for flow in loaded.flows:
        if _is_hidden(found, flow):
            yield Finding(
                CHECK,
                "failed",
                f"the flow file {flow} is hidden from the unit by ProtectHome={found.value('ProtectHome')}",
                "move it, as to /srv/flows",
            )


def _is_hidden(found: Unit, path: Path) -> bool:
    # A flow file may be read-only, and roots have a check of their own.
    return found.value("ProtectHome") in {"yes", "true", "tmpfs"} and _is_below(path, HOMES)


def _is_writable(found: Unit, path: Path) -> bool:
    if found.value("ProtectHome") == "read-only" and _is_below(path, HOMES):
        protected = True
    else:
        protected = _is_below(path, PROTECTED.get(found.value("ProtectSystem"), ()))
    own = [f"{parent}/{name.partition(':')[0]}" for key, parent in OWN.items() for name in found.words(key)]
    own += ["/tmp", "/var/tmp"] if found.value("PrivateTmp") in {"yes", "true"} else []  # noqa: S108 - names of directories
    return not protected or _is_below(path, (*own, *map(str, _read_write(found, is_optional=True))))


def _read_write(found: Unit, *, is_optional: bool) -> list[Path]:
    given = found.words("ReadWritePaths")
    return [Path(word.lstrip("-+")) for word in given if is_optional or not word.startswith("-")]


def _is_below(path: Path, directories: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)


def _may_write(user: str, path: Path) -> bool:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return True  # systemd-sysusers has not made it yet
    if entry.pw_uid == 0:
        return True
    status = path.stat()
    if status.st_uid == entry.pw_uid:
        bits = status.st_mode >> 6
    elif status.st_gid in os.getgrouplist(user, entry.pw_gid):
        bits = status.st_mode >> 3
    else:
        bits = status.st_mode
    return bits & WRITE_AND_ENTER == WRITE_AND_ENTER


def _drop_in(found: Unit, name: str) -> str:
    stem, at, _ = found.name.removesuffix(".service").partition("@")
    return f"install -m 644 -D systemd/{name} /etc/systemd/system/{stem}{at}.service.d/{name}"
