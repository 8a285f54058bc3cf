"""The daemon as its operator sees it: it starts ready runs, obeys limits and signals, and reports its health."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psycopg
import pytest

from dataflowd import flow
from dataflowd.daemon import control, service
from dataflowd.daemon.state import Assignment
from dataflowd.engine.command import CommandEngine
from dataflowd.engine.orders import Orders
from dataflowd.flow.loaded import Declared
from dataflowd.host.settings import Current
from dataflowd.model.errors import EXIT
from tests.fix_daemon import (
    PATIENCE_SECONDS,
    POLL_SECONDS,
    PROMPT_SECONDS,
    Shop,
    StartDaemon,
    eventually,
    free_port,
)
from tests.fix_postgres import run_program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt, Result
    from tests.fix_postgres import RunCtl

# So long that a run which starts soon was not found by the poll.
NO_POLL = {"DATAFLOW_POLL": "600"}
SLOW = "sleep 600"
FOREVER_SECONDS = 30.0
MANY = 12
STARTED_AFTER_LIMIT = """
    SELECT extract(epoch FROM max(a.claimed) - max(e.at))::double precision
    FROM dataflow.attempt a, dataflow.event e WHERE e.kind = 'control'
"""


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def pids(directory: Path) -> list[int]:
    """The processes of jobs that wrote their pid to a file."""
    return [
        int(path.read_text(encoding="ascii"))
        for path in sorted(directory.glob("*.pid"))
        if path.stat().st_size
    ]


def test_a_chunk_that_becomes_ready_is_processed_without_waiting_for_the_poll(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("echo $jobid $dataid password=hunter2")
    daemon = start_daemon(env=NO_POLL)
    shop.ready("2026-01-01")
    eventually(lambda: shop.count("READY") == 1, seconds=PROMPT_SECONDS)
    row = shop.connection.execute(
        "SELECT outcome, usage, started IS NOT NULL, error FROM dataflow.attempt"
    ).fetchone()
    assert row is not None
    outcome, usage, was_started, error = row
    assert (outcome, was_started, error) == ("DONE", True, None)
    assert usage["exit_code"] == 0
    assert usage["max_rss"] > 1_000_000
    assert daemon.stop() == 0
    [log] = daemon.log_path.parent.glob("dataflowd/log/work/2026-01-01/*.log")
    assert log.read_text(encoding="utf-8") == "work 2026-01-01 password=***\n"


def test_a_failing_command_is_recorded_with_its_status_and_last_lines(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("echo starting; echo token=abc >&2; exit 3")
    start_daemon()
    shop.ready(1)
    eventually(lambda: shop.count("FAILED") == 1)
    row = shop.connection.execute("SELECT code, error, usage FROM dataflow.attempt").fetchone()
    assert row is not None
    assert row[:2] == ("EXIT_3", "exit status 3: token=***\nstarting\ntoken=***")
    assert row[2]["exit_code"] == 3


def test_an_attempt_that_takes_too_long_is_stopped_with_all_its_processes(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(f"sleep 600 & echo $! > {tmp_path}/1.pid; echo $$ > {tmp_path}/2.pid; wait", 'timeout = "1s"')
    start_daemon()
    shop.ready(1)
    eventually(lambda: shop.count("FAILED") == 1)
    assert shop.value("SELECT code FROM dataflow.attempt") == "TIMEOUT"
    assert len(pids(tmp_path)) == 2
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_the_timeout_of_an_attempt_does_not_include_its_wait_for_a_start(
    shop: Shop, settings: Settings
) -> None:
    class LateEngine(CommandEngine):
        async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:
            await anyio.sleep(1.5)  # as if it waited for a slot, or for Spark
            return await super().run(attempt, on_start)

    shop.job("true", 'timeout = "1s"')
    shop.ready(1)
    current = settings.model_copy(update={"flows": [shop.flow], "daemon_name": "d1"})
    engine = LateEngine(Current(current), Declared(current), Orders(Current(current)))
    assert anyio.run(partial(service.run, Current(current), engine, Assignment(once=True))) == 0
    assert shop.outcomes() == ["DONE"]


def test_an_attempt_that_is_cancelled_before_its_order_is_there_keeps_no_other_back(
    shop: Shop, settings: Settings, tmp_path: Path
) -> None:
    class LateOrders(CommandEngine):
        async def take_orders(self, attempts: Sequence[Attempt]) -> AsyncIterator[Attempt]:
            asked.append([attempt.dataid for attempt in attempts])
            if len(asked) == 1:
                shop.connection.execute("SELECT dataflow.cancel('work', '1')")
                with anyio.fail_after(PATIENCE_SECONDS):
                    await anyio.sleep_forever()  # the server does not answer
            async for attempt in super().take_orders(attempts):
                yield attempt

    asked: list[list[str]] = []
    shop.job(f"touch {tmp_path}/ran-$dataid")
    shop.ready(1, 2, 3)
    current = settings.model_copy(update={"flows": [shop.flow], "daemon_name": "d1"})
    engine = LateOrders(Current(current), Declared(current), Orders(Current(current)))
    assert anyio.run(partial(service.run, Current(current), engine, Assignment(once=True))) == 0
    assert [sorted(dataids) for dataids in asked] == [["1", "2", "3"], ["2", "3"]]
    assert sorted(shop.outcomes()) == ["CANCELLED", "DONE", "DONE"]
    assert sorted(path.name for path in tmp_path.glob("ran-*")) == ["ran-2", "ran-3"]


def test_an_attempt_that_waits_for_a_spark_application_is_reported_as_such(
    shop: Shop, settings: Settings
) -> None:
    class FullEngine(CommandEngine):
        on_runner: Callable[[str], None]
        on_wait: Callable[[int, int | None], None]

        async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:
            self.on_wait(attempt.attempt, 2)
            await self.told(2)
            self.on_wait(attempt.attempt, None)
            await self.told(None)
            return await super().run(attempt, on_start)

        async def told(self, applications: int | None) -> None:
            with anyio.fail_after(PATIENCE_SECONDS):
                while shop.value("SELECT waits FROM dataflow.attempt") != applications:  # noqa: ASYNC110 - another session writes it
                    await anyio.sleep(POLL_SECONDS)
            seen.append(shop.value("SELECT status FROM dataflow.runs()"))

    seen: list[str] = []
    shop.job("true")
    shop.ready(1)
    current = settings.model_copy(update={"flows": [shop.flow], "daemon_name": "d1"})
    engine = FullEngine(Current(current), Declared(current), Orders(Current(current)))
    engine.on_runner, engine.on_wait = lambda _kind: None, lambda _attempt, _applications: None
    assert anyio.run(partial(service.run, Current(current), engine, Assignment(once=True))) == 0
    assert seen == ["WAITS_FOR_SPARK", "RUNNING"]
    assert shop.outcomes() == ["DONE"]


def test_once_waits_for_a_retry_that_is_due_soon(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    again = f"[ -e {tmp_path}/tried ] || {{ touch {tmp_path}/tried; exit 1; }}"
    shop.job(again, 'max_attempts = 2\nretry_delay = "1s"')
    shop.ready(1)
    daemon = start_daemon("--once", wait=False)
    assert daemon.ended() == 0
    assert shop.outcomes() == ["FAILED", "DONE"]
    assert daemon.events("once.left") == []


@pytest.mark.parametrize(("delay", "options"), [("1h", []), ("300s", ["--wait", "1s"])])
def test_once_says_which_retries_it_leaves(
    shop: Shop, start_daemon: StartDaemon, delay: str, options: list[str]
) -> None:
    shop.job("exit 1", f'max_attempts = 2\nretry_delay = "{delay}"')
    shop.ready(1, 2)
    daemon = start_daemon("--once", *options, wait=False)
    assert daemon.ended() == 1
    [left] = daemon.events("once.left")
    assert (left["runs"], left["retries"], left["next_retry_seconds"] > 5) == (2, 2, True)
    assert "--wait" in left["remedy"]


def test_once_does_not_wait_without_end_for_a_run_that_asks_to_run_later(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("exit 75", 'retry_delay = "1s"')
    shop.ready(1)
    daemon = start_daemon("--once", "--wait", "3s", wait=False)
    assert daemon.ended() == 1
    assert 2 <= len(shop.outcomes()) <= 5
    assert daemon.events("once.left")


def test_wait_goes_with_once_and_is_a_length_of_time(settings: Settings) -> None:
    env = {"DATAFLOW_DATA_DIR": str(settings.data_dir), "HOME": str(settings.data_dir)}
    for options in (["--wait", "1m"], ["--once", "--wait", "soon"]):
        refused = run_program("dataflowd", "run", *options, env=env)
        assert (refused.returncode, "--wait" in refused.stderr or "soon" in refused.stderr) == (2, True)


def test_a_lost_notification_delays_a_run_by_at_most_the_poll(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.job("true")
    daemon = start_daemon(env={"DATAFLOW_POLL": "1"})
    # Registers the chunk and queues its run without triggers, so that no NOTIFY is sent.
    with shop.connection.transaction():
        shop.connection.execute("SET LOCAL session_replication_role = replica")
        shop.ready(1)
        shop.connection.execute(
            "INSERT INTO dataflow.work (jobid, dataid, sortkey) VALUES ('work', '1', '1')"
        )
    eventually(lambda: shop.count("READY") == 1, seconds=PROMPT_SECONDS)
    assert daemon.get("/health/ready")[0] == 200


def test_raising_the_limit_starts_more_at_once_and_lowering_it_starts_none(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(f"until [ -e {tmp_path}/go-$dataid ]; do sleep 0.05; done")
    shop.limit(2)
    daemon = start_daemon(env=NO_POLL)
    shop.ready(*range(1, 11))
    eventually(lambda: shop.live() == 2)
    changes = len(daemon.events("limit.changed"))
    shop.limit(3)
    daemon.said("limit.changed", times=changes + 1)
    shop.limit(5)
    eventually(lambda: shop.live() == 5)
    # Without a NOTIFY the daemon would read the limit only EVERY_SECONDS after its last look.
    assert shop.value(STARTED_AFTER_LIMIT) < control.EVERY_SECONDS / 2
    shop.limit(1)
    for number in (1, 2, 3):
        (tmp_path / f"go-{number}").touch()
    eventually(lambda: shop.count("READY") == 3)
    assert shop.live() == 2
    shop.limit(8)
    eventually(lambda: shop.live() == 7)


def test_a_limit_that_is_lowered_now_stops_the_youngest_and_they_run_again_without_spending_a_try(
    shop: Shop, start_daemon: StartDaemon, run_ctl: RunCtl, tmp_path: Path
) -> None:
    shop.job(f"echo $$ > {tmp_path}/$dataid.pid; until [ -e {tmp_path}/go ]; do sleep 0.05; done")
    start_daemon(env=NO_POLL)
    for number in (1, 2, 3):
        shop.ready(number)
        eventually(lambda: len(pids(tmp_path)) == number)  # noqa: B023 - it is called before the next turn
    oldest, *younger = pids(tmp_path)
    assert run_ctl("concurrency", "1", "--now", "--yes").returncode == 0
    eventually(lambda: not any(alive(child) for child in younger), seconds=PROMPT_SECONDS)
    assert alive(oldest)
    assert shop.count("RESUBMIT") == 2
    (tmp_path / "go").touch()
    eventually(lambda: shop.count("READY") == 3)
    assert sorted(shop.outcomes()) == ["CANCELLED"] * 2 + ["DONE"] * 3
    assert shop.value("SELECT max(tries) FROM dataflow.attempt") == 1


def test_a_pause_stops_claims_and_a_resume_continues_them(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.job("true")
    daemon = start_daemon(env=NO_POLL)
    shop.connection.execute("SELECT dataflow.pause()")
    daemon.said("limit.changed", times=2)
    shop.ready(1)
    assert json.loads(daemon.get("/health/ready")[1])["paused"] is True
    assert shop.live() == 0
    shop.connection.execute("SELECT dataflow.pause(paused => false)")
    eventually(lambda: shop.count("READY") == 1)


def test_while_all_waiting_runs_are_paused_the_daemon_does_not_claim(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("[ $dataid != later ]", 'max_attempts = 2\nretry_delay = "1s"')
    daemon = start_daemon(env=NO_POLL)
    shop.ready("later")
    eventually(lambda: shop.value("SELECT count(*) FROM dataflow.work WHERE not_before IS NOT NULL"))
    shop.connection.execute("SELECT dataflow.pause('job:work')")
    shop.ready(1)
    shop.connection.execute("UPDATE dataflow.work SET not_before = now() WHERE not_before IS NOT NULL")

    def claims() -> float:
        lines = dict(line.rpartition(" ")[::2] for line in daemon.get("/metrics")[1].splitlines())
        return float(lines["dataflow_claim_seconds_count"])

    def rest() -> bool:
        """Whether three seconds pass without a claim. No event reports that nothing happens, so this sleeps."""
        before = claims()
        time.sleep(3)
        return claims() == before

    eventually(rest)
    assert shop.live() == 0
    shop.connection.execute("SELECT dataflow.pause('job:work', false)")
    eventually(lambda: shop.count("READY") == 1, seconds=PROMPT_SECONDS)


@pytest.mark.parametrize("how", ["cancel", "resubmit"])
def test_cancelling_or_resubmitting_a_running_chunk_stops_its_process(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path, how: str
) -> None:
    shop.job(f"echo $$ > {tmp_path}/$$.pid; [ -e {tmp_path}/second ] || exec sleep 600")
    start_daemon(env=NO_POLL)
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    (tmp_path / "second").touch()
    if how == "cancel":
        shop.connection.execute("SELECT dataflow.cancel('work', '1')")
    else:
        shop.connection.execute(
            "UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE datasetid = 'clean'"
        )
    eventually(lambda: not alive(child), seconds=PROMPT_SECONDS)
    if how == "cancel":
        eventually(lambda: shop.value("SELECT bool_and(let_go) FROM dataflow.attempt"))
        assert shop.outcomes() == ["CANCELLED"]
    else:
        eventually(lambda: shop.outcomes() == ["CANCELLED", "DONE"], seconds=PROMPT_SECONDS)


def test_a_resubmission_with_a_parameter_reaches_the_script_and_the_next_one_goes_back(
    shop: Shop, start_daemon: StartDaemon, run_ctl: RunCtl, tmp_path: Path
) -> None:
    """A retry of a failed try gets the same parameter."""
    seen = tmp_path / "seen"
    script = (
        f'echo "$param_least $param_shop" >> {seen}; [ "$param_least" != 0 ] || [ "$(wc -l < {seen})" -gt 2 ]'
    )
    shop.job(script, 'max_attempts = 2\nretry_delay = "0s"\nparams = { least = 5, shop = "north" }')
    start_daemon(env=NO_POLL)
    shop.ready(1)
    eventually(lambda: shop.count("READY") == 1)
    again = ("resubmit", "work", "--status", "any", "--yes")
    wrong = run_ctl(*again, "--param", "leest=0")
    assert wrong.returncode == EXIT["USAGE"]
    assert "job work has no parameter 'leest'" in wrong.stderr
    assert "its parameters are least (a whole number), shop (text)" in wrong.stderr
    for bad in (["--param", "least"], ["--param", "least=1", "--param", "least=2"]):
        assert run_ctl(*again, *bad).returncode == EXIT["USAGE"]
    assert shop.outcomes() == ["DONE"]
    assert run_ctl(*again, "--param", "least=0", "--param", "shop=the south").returncode == 0
    eventually(lambda: shop.outcomes() == ["DONE", "FAILED", "DONE"])
    [run] = json.loads(run_ctl("runs", "work", "--json").stdout)
    assert run["params"] == {"least": 0, "shop": "the south"}
    assert 'with least = 0, shop = "the south"' in run_ctl("why", "work", "1").stdout
    assert 'DONE least=0 shop="the south"' in run_ctl("attempts", "work", "1").stdout
    assert json.loads(run_ctl("chunks", "clean", "--json").stdout)[0]["stale"] is None
    assert run_ctl(*again).returncode == 0
    eventually(lambda: len(shop.outcomes()) == 4 and shop.count("READY") == 1)
    assert seen.read_text().splitlines() == ["5 north", "0 the south", "0 the south", "5 north"]


def test_holding_an_input_stops_its_reader_which_runs_again_after_the_release(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(f"echo $$ > {tmp_path}/$$.pid; [ -e {tmp_path}/second ] || exec sleep 600")
    start_daemon(env=NO_POLL)
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    (tmp_path / "second").touch()
    shop.connection.execute("SELECT dataflow.hold('raw', '1', 'a bad feed')")
    eventually(lambda: not alive(child), seconds=PROMPT_SECONDS)
    eventually(lambda: shop.value("SELECT bool_and(let_go) FROM dataflow.attempt"))
    assert (shop.outcomes(), shop.count("RESUBMIT")) == (["CANCELLED"], 1)
    locked = shop.value("SELECT detail FROM dataflow.why('work', '1') WHERE code = 'LOCKED'")
    assert locked == "raw/1 is HOLD: a bad feed"
    shop.connection.execute("SELECT dataflow.release('raw', '1')")
    eventually(lambda: shop.outcomes() == ["CANCELLED", "DONE"], seconds=PROMPT_SECONDS)
    assert shop.value("SELECT array_agg(tries ORDER BY attempt) FROM dataflow.attempt") == [1, 1]


def test_sigterm_lets_attempts_end_and_claims_no_more(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done")
    shop.limit(1)
    daemon = start_daemon()
    shop.ready(1, 2)
    daemon.said("attempt.started")
    daemon.signal(signal.SIGTERM)
    [left] = daemon.said("drain.attempt")
    attempt, claimed = (
        shop.connection.execute("SELECT attempt, claimed FROM dataflow.attempt").fetchone() or ()
    )
    assert (left["job"], left["dataid"], left["attempt"]) == ("work", "1", attempt)
    assert datetime.fromisoformat(left["since"]) >= claimed
    assert daemon.events("drain.waiting")[0]["running"] == 1
    assert daemon.get("/health/ready")[0] == 503
    eventually(lambda: shop.value("SELECT state = 'IDLE' AND running = 1 FROM dataflow.daemons"))
    (tmp_path / "go").touch()
    assert daemon.ended() == 0
    assert shop.outcomes() == ["DONE"]
    assert shop.value("SELECT stopped IS NOT NULL FROM dataflow.daemon")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_gives_attempts_back_without_spending_a_try(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path, number: signal.Signals
) -> None:
    shop.job(f"echo $$ > {tmp_path}/1.pid; {SLOW}")
    daemon = start_daemon()
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    daemon.signal(number)
    daemon.said("drain.waiting")
    daemon.signal(number)
    assert daemon.ended() == 0
    assert daemon.events("drain.hurried")
    assert not alive(child)
    assert shop.outcomes() == ["RETURNED"]
    assert shop.count("RESUBMIT") == 1
    shop.job("true")
    start_daemon(name="d2")
    eventually(lambda: shop.count("READY") == 1)
    assert shop.value("SELECT max(tries) FROM dataflow.attempt") == 1


def test_after_the_drain_timeout_attempts_are_given_back(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.job(SLOW)
    daemon = start_daemon(env={"DATAFLOW_DRAIN_TIMEOUT": "0.5"})
    shop.ready(1)
    eventually(lambda: shop.live() == 1)
    assert daemon.stop() == 0
    assert shop.outcomes() == ["RETURNED"]


def test_reload_picks_up_new_code_and_keeps_the_old_one_when_the_file_is_wrong(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("exit 1")
    daemon = start_daemon()
    shop.flow.write_text("[flow]\nname = 'f'\n[job.x]\n", encoding="utf-8")
    daemon.signal(signal.SIGHUP)
    failed = daemon.said("daemon.reload_failed")[0]
    assert failed["error"].startswith(f"{shop.flow}:3: ")
    assert failed["remedy"]
    shop.ready(1)
    eventually(lambda: shop.count("FAILED") == 1)
    shop.job("true")
    daemon.signal(signal.SIGHUP)
    daemon.said("daemon.reloaded")
    shop.ready(2)
    eventually(lambda: shop.count("READY") == 1)


def test_reload_takes_new_settings_and_says_which_ones_need_a_restart(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job("echo hello")
    config = tmp_path / "config.toml"
    config.write_text("poll = 600\nlease = 30\n", encoding="utf-8")
    daemon = start_daemon(env={"DATAFLOW_CONFIG": str(config)})
    config.write_text(
        f'poll = 500\nlease = 40\ndrain_timeout = 0.1\nlog_dir = "{tmp_path}/elsewhere"\n', encoding="utf-8"
    )
    daemon.signal(signal.SIGHUP)
    daemon.said("daemon.reloaded")
    [warned] = daemon.events("daemon.needs_restart")
    assert warned["settings"] == ["lease"]
    shop.ready(1)
    eventually(lambda: shop.count("READY") == 1)
    [log] = (tmp_path / "elsewhere").glob("work/1/*.log")
    assert log.read_text(encoding="utf-8") == "hello\n"


def test_once_processes_all_that_is_ready_and_says_whether_it_went_well(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job('[ "$dataid" != bad ]')
    assert start_daemon("--once", wait=False).ended() == 0
    shop.ready(*range(20))
    assert start_daemon("--once", wait=False).ended() == 0
    assert shop.count("READY") == 20
    shop.ready("bad", "good")
    assert start_daemon("--once", wait=False).ended() == 1
    assert (shop.count("READY"), shop.count("FAILED")) == (21, 1)


def test_a_second_daemon_of_the_same_name_is_refused(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.job("true")
    start_daemon()
    second = start_daemon(wait=False)
    assert second.ended() == 8
    assert "a daemon named d1 runs already" in second.log_path.read_text(encoding="utf-8")
    assert second.events("daemon.stopped") == []  # it has not started


def test_health_and_metrics_describe_the_daemon(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.job("true")
    daemon = start_daemon(env=NO_POLL)
    shop.ready(1)
    eventually(lambda: shop.count("READY") == 1)
    status, text = daemon.get("/health/ready")
    assert status == 200
    assert json.loads(text) | {"ready": True, "database": "up", "listener": "listening"} == json.loads(text)
    assert daemon.get("/health/live")[0] == 200
    assert daemon.get("/elsewhere")[0] == 404
    expected = {
        'dataflow_attempts_total{job="work",outcome="DONE"} 1.0',
        'dataflow_runs{job="work",state="ready"} 1.0',
        'dataflow_queue_depth{job="work"} 0.0',
        'dataflow_listener{state="listening"} 1.0',
        "dataflow_limit 4.0",
        "dataflow_start_seconds_count 1.0",
        "dataflow_wait_seconds_count 1.0",
        "dataflow_paused 0.0",
        "dataflow_database_up 1.0",
    }
    # The database has the end of the attempt before the daemon counts it.
    eventually(lambda: expected <= set(daemon.get("/metrics")[1].splitlines()))


def test_every_start_is_measured_and_a_retry_waits_only_from_when_it_is_due(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(
        f"[ $dataid != again ] || [ -e {tmp_path}/second ] || {{ touch {tmp_path}/second; exit 1; }}",
        'max_attempts = 2\nretry_delay = "3s"',
    )
    daemon = start_daemon(env=NO_POLL)
    shop.ready(*range(20), "again")
    eventually(lambda: shop.count("READY") == 21)

    def metric(name: str) -> float:
        lines = dict(line.rpartition(" ")[::2] for line in daemon.get("/metrics")[1].splitlines())
        return float(lines[name])

    eventually(lambda: metric("dataflow_wait_seconds_count") == 22)
    assert metric("dataflow_start_seconds_count") == 22
    [waited] = shop.connection.execute(
        "SELECT extract(epoch FROM claimed - retry_at)::double precision FROM ("
        " SELECT claimed, lag(retry_at) OVER (ORDER BY number) AS retry_at FROM dataflow.attempt WHERE dataid = 'again'"
        ") AS a WHERE retry_at IS NOT NULL"
    ).fetchone() or (0.0,)
    total = shop.value(
        "SELECT extract(epoch FROM sum(a.started - e.at))::double precision FROM dataflow.attempt a"
        " JOIN dataflow.event e ON e.jobid = a.jobid AND e.dataid = a.dataid AND e.kind = 'queued'"
        " WHERE a.number = 1 AND e.reason IS NULL"
    )
    assert metric("dataflow_wait_seconds_sum") == pytest.approx(total + waited, abs=2)


def test_http_refuses_malformed_requests_at_once(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.job("true")
    daemon = start_daemon()
    for request, answer in (
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (b"hello\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /health/live HT", b""),
    ):
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=10) as client:
            client.sendall(request)
            got = b""
            with suppress(ConnectionResetError):
                while data := client.recv(4096):
                    got += data
        assert got.startswith(answer)
        assert bool(got) == bool(answer)
        assert daemon.get("/health/live")[0] == 200


def test_a_port_that_is_taken_stops_the_daemon_with_a_remedy(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.job("true")
    with socket.create_server(("127.0.0.1", 0)) as other:
        daemon = start_daemon(env={"DATAFLOW_HTTP_PORT": str(other.getsockname()[1])}, wait=False)
        assert daemon.ended() == 3
    [died] = daemon.events("service.died")
    assert died["service"] == "http"


def test_a_service_that_dies_stops_the_daemon_which_gives_its_attempts_back_and_says_why(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(f"echo $$ > {tmp_path}/1.pid; {SLOW}")
    daemon = start_daemon(env=NO_POLL)
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    # Removes a row that every service relies on, which ends the service.
    shop.connection.execute("DELETE FROM dataflow.control")
    shop.connection.execute("NOTIFY dataflow, 'control'")
    assert daemon.ended() == 9
    assert not alive(child)
    assert shop.outcomes() == ["RETURNED"]
    [died], [stopped] = daemon.events("service.died"), daemon.events("daemon.stopped")
    assert (died["service"], died["error"]) == ("control", "the table dataflow.control has no row 'global'")
    assert stopped["reason"] == f"the service control died: {died['error']}"
    assert stopped["untold"] == 0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(os.fspath(tmp_path / "notify"))
        listening.settimeout(FOREVER_SECONDS)
        yield listening


def heard(manager: socket.socket, wanted: str) -> str:
    while True:
        message = manager.recv(4096).decode()
        if wanted in message:
            return message


def silent(manager: socket.socket, unwanted: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    try:
        while (left := deadline - time.monotonic()) > 0:
            manager.settimeout(left)
            if unwanted in manager.recv(4096).decode():
                return False
    except TimeoutError:
        return True
    finally:
        manager.settimeout(FOREVER_SECONDS)
    return True


def test_systemd_hears_ready_status_reload_and_stop(
    shop: Shop, start_daemon: StartDaemon, manager: socket.socket
) -> None:
    shop.job("true")
    daemon = start_daemon(env={"NOTIFY_SOCKET": manager.getsockname()})
    assert "STATUS=running 0 of 4, queued 0" in heard(manager, "READY=1")
    daemon.signal(signal.SIGHUP)
    stamp = heard(manager, "RELOADING=1").partition("MONOTONIC_USEC=")[2]
    assert 0 <= time.monotonic() - int(stamp) / 1e6 < 10
    heard(manager, "READY=1")
    daemon.signal(signal.SIGTERM)
    heard(manager, "STOPPING=1")


def test_only_turns_of_the_scheduler_feed_the_watchdog(
    shop: Shop, start_daemon: StartDaemon, manager: socket.socket, dsn: str
) -> None:
    shop.job("true")
    start_daemon(env={"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "600000"})
    heard(manager, "WATCHDOG=1")
    with psycopg.connect(dsn) as blocker:
        # The scheduler hangs in its claim, while the rest of the loop goes on.
        blocker.execute("SELECT pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0))")
        eventually(lambda: silent(manager, "WATCHDOG=1", 1.5))
    heard(manager, "WATCHDOG=1")


def test_a_hanging_loop_does_not_feed_the_watchdog_and_its_abort_shows_where_it_hung(
    shop: Shop, start_daemon: StartDaemon, manager: socket.socket, tmp_path: Path
) -> None:
    shop.job(f"echo $$ > {tmp_path}/1.pid; {SLOW}")
    reading, writing = os.pipe()
    with open(reading, "rb") as stderr, open(writing, "wb", buffering=0) as pipe:  # noqa: PTH123 - no path
        watched = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "600000"}
        daemon = start_daemon(env=NO_POLL | watched, wait=False, stderr=pipe)
        heard(manager, "WATCHDOG=1")
        shop.ready(1)
        [child] = eventually(lambda: pids(tmp_path))
        eventually(lambda: shop.value("SELECT started FROM dataflow.attempt"))
        # Fills the pipe of its stderr, so that its next log line blocks.
        os.set_blocking(pipe.fileno(), False)
        with suppress(BlockingIOError):
            while pipe.write(b"x" * 4096):
                pass
        os.set_blocking(pipe.fileno(), True)
        shop.limit(3)
        eventually(lambda: silent(manager, "WATCHDOG=1", 1.5))
        daemon.signal(signal.SIGABRT)
        pipe.close()
        said = stderr.read()
    assert daemon.ended() == -signal.SIGABRT
    assert b"Fatal Python error: Aborted" in said
    assert b"dataflowd/daemon/control.py" in said
    eventually(lambda: not alive(child), seconds=PROMPT_SECONDS)
    shop.job("true")
    start_daemon(env=NO_POLL)
    eventually(lambda: shop.count("READY") == 1)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the names are all that is wanted


def test_daemons_started_and_stopped_many_times_in_a_row_leave_nothing_behind(
    shop: Shop, settings: Settings
) -> None:
    """All daemons run in this process, so that the test can count files and threads. Other tests start a process for each daemon."""
    shop.job("true")
    current = settings.model_copy(
        update={"flows": [shop.flow], "daemon_name": "d1", "http_port": free_port()}
    )
    declared = Declared(current)

    async def live(number: int) -> int:
        async def stop() -> None:
            while shop.count("READY") <= number:  # noqa: ASYNC110 - another process has no event for us
                await anyio.sleep(0.005)
            os.kill(os.getpid(), signal.SIGTERM)

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            engine = CommandEngine(Current(current), declared, Orders(Current(current)))
            status = await service.run(Current(current), engine)
        return status  # noqa: RET504 - inside the group mypy takes it for one that swallows exceptions

    for number in range(MANY):
        shop.ready(number)
        assert anyio.run(live, number) == 0
        if number == 0:  # the first daemon creates what stays for the process
            before = open_files(), threading.active_count()
    # There may be fewer: files and threads of earlier tests may have ended meanwhile.
    assert open_files() <= before[0]
    assert threading.active_count() <= before[1]
    assert shop.outcomes() == ["DONE"] * MANY
    assert (
        shop.value("SELECT count(*) FROM dataflow.event WHERE kind = 'daemon' AND to_status = 'STOPPED'")
        == MANY
    )
    eventually(
        lambda: shop.value(
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name LIKE 'dataflowd %%'"
        )
    )


def test_a_dataset_outside_the_roots_blocks_only_the_jobs_that_use_it(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path, run_ctl: RunCtl
) -> None:
    """These jobs wait for a host that allows the location; `why` and doctor say why this host does not run them."""
    shop.job("true")
    away = tmp_path / "away"
    other = f"""[dataset.more]
location = "{away}"
[job.more]
command = ["true"]
inputs = ["raw"]
outputs = ["more"]
"""
    shop.flow.write_text(f"{shop.flow.read_text(encoding='utf-8')}\n{other}", encoding="utf-8")
    roots = {"allowed_roots": [str(away)]}
    applied = flow.load(shop.flow, shop.settings.model_copy(update=roots))
    flow.apply(shop.connection, applied, prune=False)
    daemon = start_daemon()
    [told] = daemon.said("job.left_out")
    assert (told["job"], "is outside the allowed roots" in told["error"]) == ("more", True)
    shop.ready(1)
    eventually(lambda: shop.count("READY") == 1)
    said = " ".join(run_ctl("why", "more", "1").stdout.split())
    assert "NOT_SERVED" in said
    assert f"dataset.more.location is outside the allowed roots ({away})" in said
    here = {"DATAFLOW_FLOWS": str(shop.flow)}
    [found] = [
        line for line in run_ctl("doctor", "--no-spark", env=here).stdout.splitlines() if " more " in line
    ]
    assert "the job more does not run here: dataset.more.location is outside the allowed roots" in found
    refused = run_ctl("run", "more", "--dataid", "1", env=here)
    assert (refused.returncode, "outside the allowed roots" in refused.stderr) == (EXIT["INVALID_PATH"], True)
    assert run_ctl("apply", str(shop.flow), "--check").returncode == EXIT["INVALID_FLOW"]
    away.mkdir()
    elsewhere = start_daemon(name="d2", env={"DATAFLOW_ALLOWED_ROOTS": str(away)})
    eventually(
        lambda: (
            shop.value("SELECT count(*) FROM dataflow.attempt WHERE jobid = 'more' AND ended IS NOT NULL")
            == 1
        )
    )
    assert elsewhere.events("job.left_out") == []


def test_a_job_whose_script_is_gone_keeps_no_other_from_running(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path, run_ctl: RunCtl
) -> None:
    """The job waits until the script is back and the daemon is reloaded; `why` says so."""
    script = tmp_path / "gone.sh"
    script.write_text("#!/bin/sh\n", encoding="utf-8")
    script.chmod(0o755)
    shop.job("true")
    other = '[dataset.more]\nformat = "none"\n[job.more]\ncommand = ["./gone.sh"]\ninputs = ["raw"]\noutputs = ["more"]\n'
    shop.flow.write_text(f"{shop.flow.read_text(encoding='utf-8')}\n{other}", encoding="utf-8")
    flow.apply(shop.connection, flow.load(shop.flow, shop.settings), prune=False)
    script.rename(tmp_path / "away.sh")
    daemon = start_daemon()
    [told] = daemon.said("job.left_out")
    assert (told["job"], "the file './gone.sh' does not exist" in told["error"]) == ("more", True)
    shop.ready(1)
    eventually(lambda: shop.count("READY") == 1)
    said = run_ctl("why", "more", "1").stdout
    assert "NOT_SERVED" in said
    assert "the file './gone.sh' does not exist" in " ".join(said.split())
    (tmp_path / "away.sh").rename(script)
    daemon.signal(signal.SIGHUP)
    eventually(lambda: shop.value("SELECT count(*) FROM dataflow.attempt WHERE outcome = 'DONE'") == 2)
