"""Runners that stop answering, and runners whose daemon is gone: real processes, stopped and killed by signals."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from dataflowd import flow
from dataflowd.host import scratch
from tests.fix_daemon import PROMPT_SECONDS, Daemon, Shop, StartDaemon, eventually
from tests.processes import in_session

if TYPE_CHECKING:
    from pathlib import Path

    from dataflowd.host.settings import Settings

FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.clean]
format = "none"
[job.work]
python = "shop:work"
inputs = ["raw"]
outputs = ["clean"]
max_attempts = 2
retry_delay = "0s"
[job.work.spark]
"spark.driver.memory" = "512m"
"""

WORK = """
import time
from dataflowd import job

@job
def work(ctx):
    time.sleep(600)
"""


def started(daemon: Daemon, times: int) -> dict[str, Any]:
    """Waits until so many attempts have begun, and returns the runner that was started last."""
    daemon.said("attempt.started", times=times)
    return daemon.events("runner.started")[-1]


def test_a_silent_runner_is_killed_and_retried_and_a_killed_daemon_takes_its_runners_along(
    shop: Shop, start_daemon: StartDaemon, settings: Settings, tmp_path: Path
) -> None:
    shop.flow.write_text(FLOW, encoding="utf-8")
    (tmp_path / "shop.py").write_text(WORK, encoding="utf-8")
    flow.apply(shop.connection, flow.load(shop.flow, settings), prune=False)
    options = {"DATAFLOW_RUNNER_SILENCE": "5", "DATAFLOW_MASTER": "local[1]", "DATAFLOW_RUNNERS": "1"}
    daemon = start_daemon(engine="spark", env=options)
    shop.ready(1)

    silent = started(daemon, 1)["pid"]
    assert len(in_session(silent)) > 1
    os.kill(silent, signal.SIGSTOP)
    [said] = daemon.said("runner.silent")
    assert (said["pid"], said["attempts"]) == (silent, 1)
    eventually(lambda: not in_session(silent))

    second = started(daemon, 2)["pid"]
    code, error = shop.connection.execute(
        "SELECT code, error FROM dataflow.attempt WHERE number = 1"
    ).fetchone() or ("", "")
    assert code == "RUNNER_DIED"
    assert error.startswith(
        "the runner died while it executed this attempt: killed because it had not answered for 5 s"
    )
    daemon.kill()
    eventually(lambda: not in_session(second), seconds=PROMPT_SECONDS)
    # The next daemon with this engine does the same when it starts.
    scratch.remove(settings)

    # Another test checks that a retry succeeds on Spark.
    assert start_daemon("--once", engine="noop", wait=False).ended() == 0
    assert shop.outcomes() == ["FAILED", "LOST", "DONE"]
    assert shop.count("READY") == 1
