"""Every example runs as its README says, in a small form. Each example checks its own result, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import conninfo

from dataflowd.host.embedded import postgres
from tests import fix_classes
from tests.fix_daemon import eventually
from tests.fix_postgres import reachable_directory
from tests.processes import working_in

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_SECONDS = 1800
INHERITED = ("PATH", "LANG", "TMPDIR", "JAVA_HOME")


def start(example: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / example / "run.py"), *words],
        env={name: os.environ[name] for name in INHERITED if name in os.environ} | fix_classes.variables(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(example: str, *words: str, status: int = 0) -> tuple[str, str]:
    """The standard output and standard error of an example."""
    with start(example, *words) as process:
        try:
            said, complained = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.terminate()
    assert process.returncode == status, said + complained
    return said, complained


@pytest.fixture
def place() -> Iterator[Path]:
    with reachable_directory() as directory:
        yield directory / "example"


def test_a_weekend_of_failures_is_seen_explained_and_recovered_in_order() -> None:
    said, complained = told("weekend", "--jobs", "20")
    assert "EXIT_69 (20): 20 runs of 20 jobs FAILED: exit status 69: cannot reach the warehouse" in said
    assert "resubmit: 20 runs" in said
    assert "the report has the 60 rows of 20 tables" in said
    assert not complained


def test_a_migration_heals_its_failures_and_its_proof_finds_differences(place: Path) -> None:
    said, _ = told("migration", "--shards", "10", "--rows", "25", "--directory", str(place))
    assert "old_customers: 10 batches, 250 records" in said
    assert "Equal: 250 rows in 10 shards, 1 failures healed" in said
    assert not working_in(place)  # every process of an example, Postgres too, works in its directory
    migration = loaded("migration")
    try:
        server = postgres.ensure_running(place)
        old, new = (conninfo.make_conninfo(server, dbname=name) for name in ("old", "new"))
        assert migration.fingerprint(old) == migration.fingerprint(new)
        with psycopg.connect(new) as connection:
            connection.execute("DELETE FROM customers WHERE id = 3")
            connection.execute("UPDATE customers SET note = NULL WHERE id = 15 AND note = ''")
        assert migration.differences(old, new) == (2, 1)
        assert migration.fingerprint(old) != migration.fingerprint(new)
    finally:
        postgres.stop(place)


def loaded(example: str) -> Any:
    found = importlib.util.spec_from_file_location(f"example_{example}", EXAMPLES / example / "run.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setitem(sys.modules, found.name, module)
        found.loader.exec_module(module)
        sys.modules.pop("stage", None)
    return module


def test_scripts_run_unchanged_with_a_password_that_is_stored_nowhere_in_clear_text() -> None:
    said, complained = told("shell", "--days", "1")
    assert "fe_sendauth: no password supplied" in said
    assert "password authentication failed for user" in said
    assert "shop_password=***" in said
    assert "exported 300 orders of 2026-01-01 as report" in said
    assert "The totals are right. The password is in none of" in said
    assert not complained


def test_a_cluster_survives_the_death_of_one_daemon() -> None:
    said, complained = told("cluster", "--days", "6")
    assert "north died while it ran" in said
    assert "daemon north stopped answering; its lease has ended" in said
    assert "nothing was published twice" in said
    assert not complained


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_example_leaves_no_process(place: Path, number: signal.Signals) -> None:
    with start("weekend", "--jobs", "10", "--directory", str(place)) as process:
        eventually(lambda: (place / "weekend.log").exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        process.send_signal(number)
        _, complained = process.communicate(timeout=PATIENCE_SECONDS)
    if number == signal.SIGKILL:
        # Its daemon dies with it. The server goes on, so that the test stops it as the example says.
        eventually(lambda: not [pid for pid in working_in(place) if not serves(pid)])
        postgres.stop(place)
    else:
        assert process.returncode == 130
        assert "interrupted" in complained
    eventually(lambda: not working_in(place))


def serves(pid: int) -> bool:
    try:
        return "postgres" in Path(f"/proc/{pid}/comm").read_text(encoding="ascii")
    except OSError:
        return True


@pytest.mark.parametrize(
    ("example", "words", "says"),
    [
        ("weekend", ["--jobs", "7"], "give a whole number from 10 to 1,000"),
        ("migration", ["--shards", "many"], "give a whole number from 10 to 10,000"),
        ("shell", ["--day"], "--day"),
        ("cluster", ["--days", "-6"], "--days"),
        ("weekend", ["here"], "unrecognized arguments: here"),
    ],
)
def test_a_wrong_command_line_is_reported_and_does_nothing(example: str, words: list[str], says: str) -> None:
    said, complained = told(example, *words, status=2)
    assert says in complained
    assert not said


def test_a_directory_that_is_not_empty_is_left_alone(place: Path) -> None:
    place.mkdir()
    (place / "precious").touch()
    said, complained = told("weekend", "--directory", str(place), status=1)
    assert complained == f"error: {place}: it is not empty; name another directory, or remove it\n"
    assert not said
    assert [path.name for path in place.iterdir()] == ["precious"]
