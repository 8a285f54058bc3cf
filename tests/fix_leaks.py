"""Checks after each test that no advisory lock, child process or temporary file is left."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psycopg
import pytest

from tests.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

# The backend of a closed connection, and the children of a killed process, need a moment to end.
GRACE_SECONDS = 5
POLL_SECONDS = 0.02

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
    tmp_path_factory.getbasetemp()  # pytest's own directory is kept after a failure, so it is made outside
    path = Path(tempfile.mkdtemp(prefix="dataflowd-"))
    try:
        path.chmod(0o1777)  # as /tmp: if root runs the tests, Postgres runs under another account
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(path))
            patch.setattr(tempfile, "tempdir", None)
            yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(autouse=True)
def no_leaks(temporary_directory: Path) -> Iterator[None]:
    """Checks processes and files. Advisory locks are checked before a test's database is dropped."""
    processes, directories = children_of("self"), set(temporary_directory.iterdir())
    yield
    left = _remaining(lambda: children_of("self") - processes)
    assert not left, f"child processes are left: {[_command(pid) for pid in left]}"
    made = _remaining(lambda: set(temporary_directory.iterdir()) - directories)
    assert not made, f"temporary files are left: {made}"


def assert_no_advisory_locks(admin_dsn: str, database: str) -> None:
    with psycopg.connect(admin_dsn, autocommit=True) as connection:
        held = _remaining(lambda: set(connection.execute(ADVISORY_LOCKS, [database]).fetchall()))
    assert not held, f"advisory locks are left: {held}"


def _remaining(look: Callable[[], set[T]]) -> set[T]:
    deadline = time.monotonic() + GRACE_SECONDS
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
