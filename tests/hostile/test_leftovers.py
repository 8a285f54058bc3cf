"""A local user plants directories and links where killed programs leave theirs."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from dataflowd.engine import submit
from dataflowd.host import runner_user, scratch
from dataflowd.host.settings import Settings
from tests.processes import needs_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


STRANGER = "nobody"
DEAD = "runner-4194305-1-x"  # no process has that pid
ROUNDS = 200
WAIT_SECONDS = 30.0
# Prints a line when it is in its directory, and ends when its reader ends.
SLEEPER = "pwd -P; exec cat"
# Swaps a directory and a link as fast as possible, and makes a removed one again.
SWAP = """
import contextlib, os, sys
planted, precious = sys.argv[1:]
link, away = planted + "-link", planted + "-away"
print(flush=True)
while True:
    for step in (
        lambda: os.mkdir(planted),
        lambda: os.symlink(precious, link),
        lambda: os.rename(planted, away),
        lambda: os.rename(link, planted),
        lambda: os.rename(planted, link),
        lambda: os.rename(away, planted),
    ):
        with contextlib.suppress(OSError):
            step()
"""


@pytest.fixture
def shared(temporary_directory: Path) -> Iterator[Path]:
    """A temporary directory that every user can write to."""
    yield temporary_directory
    for path in temporary_directory.glob("runner-*"):
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)


@pytest.fixture
def host(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "dataflowd")


@contextmanager
def working_in(directory: Path, user: int | None = None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        ["sh", "-c", SLEEPER],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=user,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == str(directory.resolve())
            yield process
        finally:
            process.kill()


def stranger() -> pwd.struct_passwd:
    return pwd.getpwnam(STRANGER)


def test_a_directory_swapped_for_a_link_leads_to_no_other_process(
    shared: Path, host: Settings, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    words = [sys.executable, "-I", "-S", "-c", SWAP, str(shared / DEAD), str(precious)]
    with (
        working_in(precious) as victim,
        subprocess.Popen(words, stdout=subprocess.PIPE) as attacker,
    ):
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.readline()
            for _ in range(ROUNDS):
                scratch.remove(host)
        finally:
            attacker.kill()
        assert victim.poll() is None
    assert (precious / "kept").exists()


def test_a_link_inside_a_leftover_is_removed_and_not_followed(
    shared: Path, host: Settings, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    (shared / DEAD).mkdir()
    (shared / DEAD / "link").symlink_to(precious)
    with working_in(precious) as victim:
        assert scratch.remove(host) == [shared / DEAD]
        assert victim.poll() is None
    assert (precious / "kept").exists()


@needs_root
def test_what_another_user_has_planted_is_left_alone_with_all_who_work_there(
    shared: Path, host: Settings
) -> None:
    planted = shared / DEAD
    planted.mkdir(mode=0o755)
    os.chown(planted, stranger().pw_uid, stranger().pw_gid)
    with working_in(planted) as victim:
        assert scratch.find(host) == []
        assert scratch.remove(host) == []
        assert victim.poll() is None
    assert planted.exists()


@needs_root
def test_in_a_directory_of_runner_user_only_its_own_processes_are_killed(
    shared: Path, host: Settings
) -> None:
    planted = shared / DEAD
    (planted / "below").mkdir(mode=0o755, parents=True)
    os.chown(planted, stranger().pw_uid, stranger().pw_gid)
    host = host.model_copy(update={"runner_user": STRANGER})
    with (
        working_in(planted) as of_root,
        working_in(planted / "below", user=stranger().pw_uid) as of_the_job,
    ):
        assert scratch.remove(host) == [planted]
        of_the_job.wait(WAIT_SECONDS)
        assert of_root.poll() is None


def test_a_link_in_the_place_of_sparks_properties_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept", encoding="utf-8")
    (tmp_path / "spark.properties").symlink_to(precious)
    with pytest.raises(FileExistsError):
        submit.words({"spark.app.name": "x"}, tmp_path, "")
    assert precious.read_text(encoding="utf-8") == "kept"


@needs_root
def test_a_link_is_given_to_runner_user_and_not_what_it_names(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "socket"
    precious.touch()
    link.symlink_to(precious)
    runner_user.give(link, STRANGER)
    assert precious.stat().st_uid == 0
    assert link.lstat().st_uid == stranger().pw_uid
