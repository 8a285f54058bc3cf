"""Checks after each test that no advisory lock, child process or temporary file is left."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

T = TypeVar("T")

# The backend of a closed connection, and the children of a killed process, need a moment to end.
GRACE_SECONDS = 5
POLL_SECONDS = 0.005
GUARD = Path(__file__).with_name("guard.py")  # removes the directory when the session ends

ADVISORY_LOCKS = """
    SELECT l.pid, a.application_name, l.classid, l.objid, l.granted
    FROM pg_locks l
    JOIN pg_database d ON d.oid = l.database
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND d.datname = %s
"""


@pytest.fixture(scope="session", autouse=True)
def temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The temporary directory of this session and its programs, so that it sees no files of another session."""
    kept = (
        tmp_path_factory.getbasetemp()
    )  # pytest's own directory is kept after a failure, so it is made outside
    path = Path(tempfile.mkdtemp(prefix="dataflowd-"))
    guard = [sys.executable, "-I", str(GUARD), str(path), str(kept)]
    with subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True):
        path.chmod(0o1777)  # as /tmp: if root runs the tests, Postgres runs under another account
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(path))
            patch.setattr(tempfile, "tempdir", None)
            yield path


@pytest.fixture(autouse=True)
def no_leaks(temporary_directory: Path) -> Iterator[None]:
    """Checks processes and files. Advisory locks are checked before a test's database is dropped."""
    processes, directories = children_of("self"), set(temporary_directory.iterdir())
    yield
    left = remaining(lambda: children_of("self") - processes)
    assert not left, f"child processes are left: {[_command(pid) for pid in left]}"
    made = remaining(lambda: set(temporary_directory.iterdir()) - directories)
    assert not made, f"temporary files are left: {made}"


def assert_no_advisory_locks(admin: psycopg.Connection, database: str) -> None:
    held = remaining(lambda: set(admin.execute(ADVISORY_LOCKS, [database]).fetchall()))
    assert not held, f"advisory locks are left: {held}"


def remaining(look: Callable[[], set[T]], *, seconds: float = GRACE_SECONDS) -> set[T]:
    """What the look still finds after that time; the empty set, as soon as it finds nothing."""
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found


def _command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
            or f"{pid} (not waited for)"
        )
    except FileNotFoundError:
        return f"{pid} (gone)"
