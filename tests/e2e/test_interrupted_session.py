"""A test session that is interrupted or killed leaves no server, no daemon and no directory behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.session_to_interrupt import STARTED
from tests.fix_daemon import eventually
from tests.guard import processes_of

SESSION = Path(__file__).with_name("session_to_interrupt.py")
START_SECONDS = END_SECONDS = 120.0
FEWEST = 4  # two servers, each with several processes, and the daemon


@pytest.mark.parametrize(
    ("workers", "numbers"),
    [
        pytest.param(0, [signal.SIGTERM, signal.SIGINT], id="interrupted twice"),
        pytest.param(1, [signal.SIGKILL], id="controller killed"),
    ],
)
def test_an_interrupted_session_leaves_nothing(
    workers: int, numbers: list[signal.Signals], tmp_path: Path
) -> None:
    started, kept = tmp_path / "started", tmp_path / "kept"
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"--numprocesses={workers}",
            f"--basetemp={kept}",
            str(SESSION),
        ],
        cwd=SESSION.parents[2],
        env=os.environ | {STARTED: str(started)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as session:
        eventually(lambda: started.exists() or session.poll() is not None, seconds=START_SECONDS)
        assert session.poll() is None
        temporary = Path(started.read_text(encoding="utf-8"))
        assert len(processes_of(temporary, kept)) > FEWEST
        for number in numbers:
            session.send_signal(number)
        session.wait(END_SECONDS)
    eventually(lambda: not processes_of(temporary, kept) and not temporary.exists(), seconds=END_SECONDS)
