"""The directory of a demo: it holds everything, so that `--clean` can remove everything.

The demo uses a directory only if it is empty or new, or has the mark of an earlier demo. So `--clean` and a second run remove
only files that a demo has made. A lock keeps two demos apart. The person's own settings, above all a database, are hidden from
this process and its children: they use the demo's settings file alone.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.host import private, withheld
from dataflowd.host.embedded import postgres
from dataflowd.host.settings import CONFIG_VARIABLE, ENV_PREFIX
from dataflowd.model.errors import DataflowError, LockedError, NotAllowedError

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = ".dataflowd-demo"
KEPT_VARIABLES = frozenset({"DATAFLOW_DEBUG"})
LIBPQ_PREFIX = (
    "PG"  # PGHOSTADDR and PGSERVICE would lead to another server even if the connection names its host
)
SHELL_PREFIXES = (ENV_PREFIX, "PGHOSTADDR", "PGSERVICE")
SETTINGS = """\
# Made by `dataflowd demo`, and removed by `dataflowd demo --clean`.
data_dir = "."
flows = ["quickstart/flow.toml"]
daemon_name = "demo"
runners = 1
slots = 4
"""

_PACKAGE = Path(__file__).resolve().parents[2]


def quickstart() -> Path:
    """The directory of the quickstart: beside the package in a checkout, inside the package in a wheel."""
    inside, beside = (parent / "examples" / "quickstart" for parent in (_PACKAGE, _PACKAGE.parent))
    return inside if inside.is_dir() else beside


def default_directory(data_dir: Path) -> Path:
    """Where a demo goes by default. In a shell that has the demo's settings, its data directory is the demo's directory."""
    return data_dir if (data_dir / MARK).is_file() else data_dir / "demo"


@dataclass(frozen=True)
class Place:
    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "config.toml"

    @property
    def daemon_log(self) -> Path:
        return self.directory / "daemon.log"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Makes, marks and locks the directory until the end. If no Postgres could be made there, the directory is removed."""
        is_new = not os.path.lexists(self.directory)
        with _explained(self.directory):
            self._refuse_others()
            _make(self.directory)
            mark = (self.directory / MARK).open("a", encoding="utf-8")
        with mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError(
                    f"a demo runs in {self.directory} already",
                    "wait for it, or name another place with --dir",
                ) from None
            try:
                yield
            except DataflowError:
                if is_new and not (self.directory / "postgres" / "data").exists():
                    shutil.rmtree(self.directory, ignore_errors=True)
                raise

    def furnish(self) -> None:
        """Removes what an earlier demo left, and writes the flow and the settings. The caller has taken the directory."""
        self._empty()
        with _explained(self.directory):
            shutil.copytree(
                quickstart(),
                self.directory / "quickstart",
                ignore=shutil.ignore_patterns("__pycache__"),
                copy_function=shutil.copyfile,  # what is installed may be read-only
            )
            self.config.write_text(SETTINGS, encoding="utf-8")

    def remove(self) -> bool:
        """Stops the server and removes the directory with everything in it. Says whether there was one."""
        self._refuse_others()
        if not (self.directory / MARK).is_file():
            return False
        with self.taken():
            self._empty()
            with _explained(self.directory):
                shutil.rmtree(self.directory)
        return True

    def _refuse_others(self) -> None:
        if not os.path.lexists(self.directory):
            return
        if not self.directory.is_dir():
            raise NotAllowedError(f"{self.directory} is not a directory", "name another place with --dir")
        if any(self.directory.iterdir()) and not (self.directory / MARK).is_file():
            raise NotAllowedError(
                f"{self.directory} is not empty, and no demo has made what is in it",
                "name an empty or new directory with --dir",
            )

    def _empty(self) -> None:
        postgres.stop(self.directory)
        with _explained(self.directory):
            for path in self.directory.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != MARK:
                    path.unlink()


def leave_settings_behind(place: Place) -> list[str]:
    """Makes the demo's settings file the only one for this process and its children; returns what was set before."""
    hidden = sorted(
        name
        for name in os.environ | withheld.variables()
        if name.startswith((ENV_PREFIX, LIBPQ_PREFIX)) and name not in KEPT_VARIABLES
    )
    for name in hidden:
        os.environ.pop(name, None)
    withheld.forget()
    os.environ[CONFIG_VARIABLE] = str(place.config)
    return hidden


def shell_lines(place: Place, hidden: list[str]) -> list[str]:
    """The lines to type in the shell that started the demo, so that dataflowctl uses the demo's database."""
    programs, found = Path(sys.executable).parent, shutil.which("dataflowctl")
    is_elsewhere = found is None or Path(found).parent != programs
    unset = [name for name in hidden if name != CONFIG_VARIABLE and name.startswith(SHELL_PREFIXES)]
    lines = [f"export {CONFIG_VARIABLE}={shlex.quote(str(place.config))}"]
    if is_elsewhere and (programs / "dataflowctl").exists():
        lines.append(f"export PATH={shlex.quote(str(programs))}:$PATH")
    return ([f"unset {' '.join(unset)}"] if unset else []) + lines


def _make(directory: Path) -> None:
    """Makes the directory. If root makes it, the account that runs Postgres must be able to enter it."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(private.PASSAGE if os.geteuid() == 0 else private.CLOSED)


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotAllowedError(
            f"the demo cannot use {directory}: {error.strerror or error}",
            "name a directory that this user may write with --dir",
        ) from None
