"""Another user of the host cannot read or replace the daemon's files, whatever the umask."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from dataflowd.engine import command, runner
from dataflowd.host.embedded import java, postgres
from dataflowd.host.settings import Settings
from tests.fix_daemon import eventually
from tests.fix_postgres import reachable_directory
from tests.processes import IS_ROOT, needs_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_daemon import Shop, StartDaemon
    from tests.fix_postgres import RunCtl

UMASKS = [0o000, 0o022, 0o077]
OTHERS, GROUP_WRITES = 0o007, 0o020
OTHER_USER = "nobody"


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(directory: Path) -> list[str]:
    """The paths, with their modes, that others could read, list, enter or change, or that the group could change."""
    found = [directory, *directory.rglob("*")]
    return [f"{mode(path):04o} {path}" for path in found if mode(path) & (OTHERS | GROUP_WRITES)]


def assert_passage(directory: Path) -> None:
    """Every user can pass through to published data, and only the owner can list the directory."""
    assert mode(directory) & OTHERS == 0o001, f"{mode(directory):04o} {directory}"
    assert not mode(directory) & GROUP_WRITES


@pytest.mark.parametrize("mask", UMASKS, ids=oct)
def test_logs_and_spool_are_closed_to_others(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path, mask: int
) -> None:
    told = tmp_path / "told"
    words = [sys.executable, "-c", "import os, sys; print(os.stat(os.path.dirname(sys.argv[1])).st_mode)"]
    shop.job(f"{' '.join(map(json.dumps, words))} $DATAFLOW_REPORT > {told}; echo a secret word")
    with umask(mask):
        daemon = start_daemon()
    shop.ready("d1")
    eventually(lambda: shop.count("READY") == 1)
    assert daemon.stop() == 0
    data = tmp_path / "dataflowd"
    [log] = (data / "log" / "work" / "d1").iterdir()
    assert "a secret word" in log.read_text(encoding="utf-8")
    assert open_to_others(data / "log") == []
    assert open_to_others(data / "run") == []
    assert stat.S_IMODE(int(told.read_text(encoding="ascii"))) == 0o700
    assert_passage(data)


@pytest.mark.parametrize("mask", UMASKS, ids=oct)
def test_a_run_in_the_foreground_keeps_its_log_as_closed(shop: Shop, run_ctl: RunCtl, mask: int) -> None:
    shop.job("echo a secret word")
    shop.ready("d1")
    data = shop.settings.data_dir / "new"
    variables = {"DATAFLOW_FLOWS": str(shop.flow), "DATAFLOW_DATA_DIR": str(data)}
    with umask(mask):
        ran = run_ctl("run", "work", env=variables)
    assert ran.returncode == 0, ran.stderr
    assert list(data.rglob("*.log")) != []
    assert open_to_others(data / "log") == []
    assert_passage(data)


@needs_root
@pytest.mark.parametrize("mask", UMASKS, ids=oct)
def test_the_user_of_the_jobs_still_reaches_what_is_its_own(mask: int) -> None:
    # That user cannot enter pytest's own directories.
    with reachable_directory() as directory, umask(mask):
        settings = Settings(data_dir=directory / "data", runner_user=OTHER_USER)
        with command._scratch(settings) as script, runner._place(settings) as (place, listener):
            theirs = f"cd {script} && touch mine && cd {place} && touch mine && test -S socket && ! ls {place.parent}"
            account = pwd.getpwnam(OTHER_USER)
            subprocess.run(
                ["/bin/sh", "-c", theirs],
                user=account.pw_uid,
                group=account.pw_gid,
                extra_groups=[],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            assert {mode(script), mode(place)} == {0o700}
            listener.close()
        assert mode(settings.data_dir / "run") & 0o026 == 0
        assert_passage(settings.data_dir)


@pytest.mark.parametrize("mask", UMASKS, ids=oct)
def test_nobody_else_puts_a_program_or_a_server_into_a_new_data_directory(mask: int) -> None:
    """A Java or an archive of classes of another user would run as the daemon or its jobs."""
    with reachable_directory() as directory, umask(mask):
        settings = Settings(data_dir=directory / "data")
        try:
            psycopg.connect(postgres.ensure_running(settings.data_dir)).close()
        finally:
            postgres.stop(settings.data_dir)
        assert mode(settings.data_dir) == (0o711 if IS_ROOT else 0o700)
        java._write_program(settings.data_dir / "java" / "bin" / "java", "#!/bin/sh\n")
        found = [settings.data_dir / "java", *(settings.data_dir / "java").rglob("*")]
        assert [path for path in found if mode(path) & 0o022] == []
        assert all(mode(path) & 0o001 for path in found)
