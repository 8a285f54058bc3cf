"""The commands that only look: their text, their layout, and that their JSON has the keys that the help lists."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg import conninfo
from psycopg.types.json import Jsonb

from dataflowd.cli import status
from dataflowd.cli.app import COMMANDS
from dataflowd.cli.json_keys import KEYS
from dataflowd.model.errors import EXIT
from tests.e2e.ctl_flow import asked, limit, ok, ready, retail, running_daemon
from tests.terminals import open_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.e2e.ctl_flow import Daemon
    from tests.fix_postgres import RunCtl

CTL = str(Path(sys.executable).parent / "dataflowctl")
JANUARY = [f"2026-01-{day:02}" for day in range(1, 9)]
CTRL_C = "\x03"
DONE, FAILED, RUNNING, QUEUED, HELD = JANUARY[:5]
ERROR = "cannot reach db7: password=hunter2\nTraceback: na\u00efve"


@pytest.fixture
def daemon(dsn: str, connection: psycopg.Connection) -> Iterator[Daemon]:
    """One run of clean_orders in every state: done, failed, running, queued, held."""
    retail(connection)
    limit(connection, 3)
    with running_daemon(dsn) as started:
        ready(connection, "raw_orders", *JANUARY[:4])
        done, failed, _ = started.claim(3)
        started.finish(
            [done],
            outputs={"orders": {"rows": 1000, "bytes": 2048, "location": "/data/orders/1"}},
            checks=[{"dataset": "orders", "name": "min_rows", "passed": True, "observed": "1000"}],
            nodes=[
                {"node": "parse", "items": 10, "successes": 9, "failures": 1, "seconds": 0.5},
                {"node": "no amount", "parent": "parse", "items": 10, "successes": 9, "failures": 1},
                {"node": "write orders", "sources": ["parse"], "items": 9, "successes": 9, "seconds": 1},
            ],
            quarantine=[{"item": "4711", "reason": "no amount", "details": {"line": "a;b"}}],
        )
        started.finish([failed], "FAILED", code="NETWORK", error=ERROR)
        connection.execute("SELECT dataflow.hold('orders', %s, 'wrong file')", [HELD])
        yield started


def test_the_command_table_and_the_modules_agree(run_ctl: RunCtl) -> None:
    for names in COMMANDS.values():
        for name in names:
            assert "Usage: dataflowctl" in ok(run_ctl(name, "--help"))
    shown = ok(run_ctl("chunks", "--help"))
    assert "dataflowctl chunks orders --status FAILED\n" in shown
    assert all(key in shown for key in KEYS["chunks"].keys)


def test_every_command_stands_on_its_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    for names in COMMANDS.values():
        for name in names:
            assert re.search(rf"(`|dataflowctl ){name}\b", page), name


def test_no_arguments_say_what_to_do_first(run_ctl: RunCtl) -> None:
    result = run_ctl()
    assert result.returncode == EXIT["USAGE"]
    assert result.stderr.index("dataflowctl init") < result.stderr.index("dataflowctl status")


def test_status_puts_what_needs_a_hand_first(daemon: Daemon, run_ctl: RunCtl) -> None:
    picture = asked(run_ctl, "status")
    assert [(hand["code"], hand["count"]) for hand in picture["needs_hand"]] == [
        ("NETWORK", 1),
        ("HELD", 1),
        ("QUARANTINED", 1),
    ]
    assert (picture["running"], picture["limit"], picture["waiting"]) == (1, 3, 1)
    assert [(each["daemon"], each["state"]) for each in picture["daemons"]] == [(daemon.name, "ALIVE")]
    clean = next(job for job in picture["jobs"] if job["jobid"] == "clean_orders")
    assert (clean["done"], clean["running"], clean["failed"], clean["held"]) == (1, 1, 1, 1)
    shown = ok(run_ctl("status"))
    assert shown.index("NETWORK") < shown.index(daemon.name) < shown.index("clean_orders  ")
    assert "hunter2" not in shown
    assert asked(run_ctl, "status", "--job", "roll_up")["causes"] == []


@pytest.mark.usefixtures("daemon")
def test_the_exit_code_of_status_says_whether_something_needs_a_hand(
    connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    seen = run_ctl("status", "--exit-code")
    assert (seen.returncode, seen.stderr) == (EXIT["FAILED"], "")
    assert "NETWORK (1)" in seen.stdout
    assert "NETWORK (1)" in ok(run_ctl("status"))
    known = ["--ignore", "HELD", "--ignore", "quarantined"]
    assert run_ctl("status", "--exit-code", *known, "--json").returncode == EXIT["FAILED"]
    assert "nothing needs a hand" in ok(run_ctl("status", "--exit-code", *known, "--ignore", "NETWORK"))
    codes = "SELECT array_agg(code) FROM dataflow.needs_hand(ignored => '{HELD,QUARANTINED}')"
    assert connection.execute(codes).fetchone() == (["NETWORK"],)
    ok(run_ctl("resubmit", "clean_orders", "--yes"))
    assert ok(run_ctl("status", "--exit-code", *known))
    assert ok(run_ctl("status", "--exit-code", "--job", "roll_up"))


@pytest.mark.usefixtures("daemon")
def test_a_monitor_may_ignore_a_code_before_an_attempt_has_ended_with_it(run_ctl: RunCtl) -> None:
    ok(run_ctl("status", "--ignore", "EXIT_3", "--ignore", "OUR_OWN"))
    refused = run_ctl("status", "--ignore", "a code")
    assert refused.returncode == EXIT["USAGE"]
    assert "'a code' is no code" in refused.stderr


@pytest.mark.parametrize("wrong", [["--ignore", "a code"], ["--watch"], ["--job", "nope"]])
def test_an_exit_code_that_means_something_else_is_neither_0_nor_1(
    connection: psycopg.Connection, run_ctl: RunCtl, wrong: list[str]
) -> None:
    retail(connection)
    result = run_ctl("status", "--exit-code", *wrong)
    assert result.returncode in {EXIT["USAGE"], EXIT["NOT_FOUND"]}
    assert "remedy:" in result.stderr


@pytest.mark.usefixtures("daemon")
def test_failures_that_are_tried_again_need_no_hand(
    connection: psycopg.Connection, dsn: str, run_ctl: RunCtl
) -> None:
    connection.execute("UPDATE dataflow.job SET max_attempts = 3")
    limit(connection, 10)
    ready(connection, "prices", DONE)
    with running_daemon(dsn, "beta") as beta:
        beta.finish([a for a in beta.claim() if a["jobid"] == "roll_up"], "FAILED", code="OUT_OF_MEMORY")
        picture = asked(run_ctl, "status")
        assert {cause["code"]: cause["retrying"] for cause in picture["causes"]} == {
            "NETWORK": 0,
            "OUT_OF_MEMORY": 1,
        }
        assert "OUT_OF_MEMORY" not in {hand["code"] for hand in picture["needs_hand"]}
        why = ok(run_ctl("why", "roll_up", DONE))
        assert "RETRYING: try 1 of 3 failed, OUT_OF_MEMORY" in why
        assert "RETRY_LATER: it is tried again at" in why


def test_a_run_that_waits_for_spark_is_not_shown_as_running(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    limit(connection, 4)
    [waiting] = daemon.claim()
    assert waiting["dataid"] == QUEUED
    told = "SELECT dataflow.waits(%s, %s, 2)"
    connection.execute("UPDATE dataflow.attempt SET claimed = claimed - interval '1 minute'")
    assert connection.execute(told, [waiting["attempt"], waiting["token"]]).fetchone() == (True,)
    words = f"waits for a Spark application: 2 of 2 in use (clean_orders {RUNNING})"

    picture = asked(run_ctl, "status")
    assert picture["waits_for_spark"] == [{"daemon": daemon.name, "runs": 1, "detail": words}]
    clean = next(job for job in picture["jobs"] if job["jobid"] == "clean_orders")
    assert (clean["running"], clean["waits_for_spark"]) == (2, 1)
    shown = ok(run_ctl("status"))
    assert "1 of 4 running, 1 claimed, 0 waiting" in shown
    assert f"1 claimed run of daemon {daemon.name}: {words}" in shown

    why = ok(run_ctl("why", "clean_orders", QUEUED))
    assert f"clean_orders {QUEUED} is WAITS_FOR_SPARK: attempt 1 was claimed by alpha (host1) since" in why
    assert words in why
    for command in (["runs"], ["attempts", "clean_orders", QUEUED]):
        [row] = [each for each in asked(run_ctl, *command) if each["attempt"] == waiting["attempt"]]
        assert (row["status"], row["error"], row["code"]) == ("WAITS_FOR_SPARK", words, None)
    connection.execute("UPDATE dataflow.daemon SET hostname = %s", [socket.gethostname()])
    silent = run_ctl("logs", "clean_orders", QUEUED)
    assert silent.returncode == EXIT["NOT_FOUND"]
    assert f"attempt 1 of clean_orders {QUEUED} {words}; it has said nothing yet" in silent.stderr

    gone = connection.execute(told, [waiting["attempt"], "00000000-0000-0000-0000-000000000000"])
    assert gone.fetchone() == (False,)
    connection.execute("SELECT dataflow.waits(%s, %s, NULL)", [waiting["attempt"], waiting["token"]])
    assert asked(run_ctl, "status")["waits_for_spark"] == []
    assert " is RUNNING: attempt 1 runs on alpha" in ok(run_ctl("why", "clean_orders", QUEUED))


@pytest.mark.parametrize(
    ("dataid", "state", "code", "words"),
    [
        (DONE, "READY", "LOCKED", "attempt 1 on alpha made version 1"),
        (FAILED, "FAILED", "LOCKED", "NETWORK: cannot reach db7: password=***"),
        (RUNNING, "RUNNING", "LOCKED", "attempt 1 runs on alpha (host1)"),
        (QUEUED, "QUEUED", None, "Is it its turn?"),
        (HELD, "HELD", "LOCKED", "wrong file"),
        ("2031-01-01", "UNKNOWN", "DATA_NOT_READY", "dataflowctl ready raw_orders 2031-01-01"),
    ],
)
@pytest.mark.usefixtures("daemon")
def test_why_answers_for_a_run_in_any_state(
    run_ctl: RunCtl, dataid: str, state: str, code: str | None, words: str
) -> None:
    answer = asked(run_ctl, "why", "clean_orders", dataid)
    assert answer["state"] == state
    five = [question for question in answer["questions"] if question["number"] <= 5]
    assert [question["number"] for question in five] == [1, 2, 3, 4, 5]
    assert code in {question["code"] for question in five}
    assert all(question["remedy"] for question in five if not question["answer"])
    shown = ok(run_ctl("why", "clean_orders", dataid))
    assert f"is {state}" in shown
    assert words in shown


def test_status_tells_that_a_cause_has_several_messages(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    ready(connection, "raw_orders", "2032-01-01")
    daemon.finish(daemon.claim(1), "FAILED", code="NETWORK", error="cannot reach db8")
    said = "2 runs of 1 job FAILED: cannot reach db7: password=*** (and 1 other message: dataflowctl runs --failed)"
    assert said in ok(run_ctl("status"))


def test_why_shows_what_only_the_host_of_the_last_attempt_could_see(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    ready(connection, "raw_orders", "2032-01-01")
    error = "raw_orders/2032-01-01 is READY, but there is nothing at /x"
    daemon.finish(
        [one for one in daemon.claim() if one["dataid"] == "2032-01-01"],
        "FAILED",
        code="WRONG_DATA",
        error=error,
        remedy="restore it",
    )
    second = asked(run_ctl, "why", "clean_orders", "2032-01-01")["questions"][1]
    assert (second["answer"], second["code"], second["remedy"]) == (False, "WRONG_DATA", "restore it")
    assert second["detail"].endswith("found: raw_orders/2032-01-01 is READY, but there is nothing at /x")
    again = "dataflowctl resubmit clean_orders --dataid 2032-01-01"
    assert f"  restore it, then {again}" in ok(run_ctl("why", "clean_orders", "2032-01-01"))
    connection.execute("UPDATE dataflow.daemon SET hostname = %s", [socket.gethostname()])
    silent = run_ctl("logs", "clean_orders", "2032-01-01")
    assert (silent.returncode, "ended before the job's code began, WRONG_DATA: raw_" in silent.stderr) == (
        9,
        True,
    )


@pytest.mark.usefixtures("daemon")
def test_why_of_a_job_that_no_flow_declares_any_more_says_so(
    connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    connection.execute("UPDATE dataflow.job SET retired = now() WHERE jobid = 'clean_orders'")
    connection.execute("DELETE FROM dataflow.job_input WHERE jobid = 'clean_orders'")
    noes = [q for q in asked(run_ctl, "why", "clean_orders", QUEUED)["questions"] if q["answer"] is False]
    assert [(q["code"], q["remedy"]) for q in noes] == [
        ("LOCKED", "dataflowctl apply a flow that declares it")
    ]


@pytest.mark.usefixtures("daemon")
def test_why_names_what_else_keeps_a_run(connection: psycopg.Connection, run_ctl: RunCtl) -> None:
    def codes() -> set[str]:
        return {q["code"] for q in asked(run_ctl, "why", "clean_orders", QUEUED)["questions"] if q["code"]}

    assert codes() == set()
    ok(run_ctl("pause", "clean_orders"))
    assert codes() == {"PAUSED"}
    ok(run_ctl("resume", "clean_orders"))
    ok(run_ctl("concurrency", "1", "--job", "clean_orders"))
    assert codes() == {"AT_LIMIT"}
    ok(run_ctl("concurrency", "none", "--job", "clean_orders"))
    ok(run_ctl("concurrency", "0"))
    [question] = [q for q in asked(run_ctl, "why", "clean_orders", QUEUED)["questions"] if q["code"]]
    assert (
        question["remedy"] == "dataflowctl concurrency 2"
    )  # one run is running, so that waiting would not help
    ok(run_ctl("concurrency", "3"))
    connection.execute("UPDATE dataflow.daemon SET jobs = ARRAY['roll_up']")
    assert codes() == {"NOT_SERVED"}
    assert "1 ready run of clean_orders: no live daemon has the job" in ok(run_ctl("status"))
    connection.execute("UPDATE dataflow.daemon SET jobs = '{}'")
    assert codes() == {"NOT_SERVED"}
    assert [found["state"] for found in asked(run_ctl, "status")["daemons"]] == ["IDLE"]
    connection.execute("UPDATE dataflow.daemon SET lease_until = now() - interval '1 second'")
    assert codes() == {"NO_DAEMON"}


@pytest.mark.usefixtures("daemon")
def test_why_and_status_tell_of_a_daemon_that_is_gone(
    connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    connection.execute("UPDATE dataflow.daemon SET lease_until = '2026-02-01 12:00Z', lease = '1 minute'")
    stand = asked(run_ctl, "why", "clean_orders", RUNNING)
    assert "; that daemon is LOST, and was last heard of 2026-02-01 11:59:00" in stand["detail"]
    assert stand["remedy"] == "start dataflowd: it takes it over"
    said = ok(run_ctl("status"))
    assert "was last heard of 2026-02-01 11:59:00+00; 1 attempt is its own" in said
    assert "start dataflowd, which takes them over" in said


def test_why_gives_the_advice_that_came_with_the_error(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    ready(connection, "raw_orders", "2032-01-01", "2032-01-02")
    silent, later = daemon.claim(2)
    connection.execute("UPDATE dataflow.attempt SET started = now()")
    daemon.finish([silent], "FAILED", code="NO_OUTPUT", error="it wrote nothing", remedy="write into X")
    daemon.finish([later], "FAILED", code="RETRY_LATER", error="exit status 75", retry=True)
    assert asked(run_ctl, "why", "clean_orders", silent["dataid"])["remedy"].startswith("write into X, then ")
    detail = asked(run_ctl, "why", "clean_orders", later["dataid"])["detail"]
    assert detail == "it asked to be tried later, RETRY_LATER: exit status 75"


@pytest.mark.usefixtures("daemon")
def test_why_leads_to_the_root_of_a_chain(connection: psycopg.Connection, run_ctl: RunCtl) -> None:
    ready(connection, "prices", "2031-01-01")
    answer = asked(run_ctl, "why", "roll_up", "2031-01-01")
    assert answer["questions"][0]["remedy"] == "dataflowctl why clean_orders 2031-01-01"
    assert answer["questions"][-1]["remedy"] == "when it has arrived: dataflowctl ready raw_orders 2031-01-01"


@pytest.mark.usefixtures("daemon")
def test_why_of_a_job_groups_what_blocks_most(connection: psycopg.Connection, run_ctl: RunCtl) -> None:
    ready(connection, "prices", *JANUARY[1:])
    blockers = asked(run_ctl, "why", "roll_up")["blockers"]
    assert [(each["code"], each["what"], each["runs"]) for each in blockers] == [
        ("DATA_NOT_READY", "orders (made by clean_orders)", 6),
        ("DATA_NOT_READY", "prices", 1),
        ("LOCKED", "orders (made by clean_orders)", 1),
    ]
    assert blockers[2]["remedy"] == f"dataflowctl release --dataset orders --dataid {HELD}"
    assert "6 runs, 2026-01-02 to 2026-01-08: orders" in ok(run_ctl("why", "roll_up"))


@pytest.mark.usefixtures("daemon")
def test_chunks_are_filtered_sorted_paged_and_mapped(run_ctl: RunCtl) -> None:
    def dataids(*arguments: str) -> list[str]:
        return [row["dataid"] for row in json.loads(run_ctl("chunks", "orders", *arguments, "--json").stdout)]

    assert dataids() == [DONE, FAILED, RUNNING, HELD]
    assert dataids("--status", "failed", "--status", "HOLD") == [FAILED, HELD]
    assert dataids("--from", FAILED, "--to", RUNNING) == [FAILED, RUNNING]
    assert dataids("--sort", "-dataid", "--limit", "2") == [HELD, RUNNING]
    assert dataids("--sort", "-rows", "--limit", "1") == [DONE]
    assert dataids("--dataid", "2026-01-0[") == []
    assert dataids("--dataid", f"{FAILED}..{RUNNING}") == [FAILED, RUNNING]
    assert f"go on with --from {FAILED}" in ok(run_ctl("chunks", "orders", "--limit", "1"))
    drawn = ok(run_ctl("chunks", "orders", "--map")).splitlines()
    assert drawn[:2] == ["month    1   5    10   15   20   25   30", "2026-01  .FR_H"]
    assert "~ stale" in drawn[2]
    done = asked(run_ctl, "chunks", "orders")[0]
    assert (done["rows"], done["bytes"], done["jobid"], done["version"]) == (1000, 2048, "clean_orders", 1)


@pytest.mark.usefixtures("daemon")
def test_stale_chunks_say_what_made_them_so(connection: psycopg.Connection, run_ctl: RunCtl) -> None:
    assert asked(run_ctl, "chunks", "orders", "--stale") == []
    ready(connection, "raw_orders", DONE)
    assert [(row["dataid"], row["stale"]) for row in asked(run_ctl, "chunks", "orders", "--stale")] == [
        (DONE, ["INPUT"])
    ]
    preview = asked(run_ctl, "resubmit", "--stale", "--dry-run")
    assert [(run["jobid"], run["dataid"]) for run in preview["runs"]] == [("clean_orders", DONE)]


@pytest.mark.usefixtures("daemon")
def test_runs_attempts_and_history_agree(run_ctl: RunCtl) -> None:
    assert [run["dataid"] for run in asked(run_ctl, "runs", "clean_orders")] == [RUNNING, FAILED, DONE]
    failed = asked(run_ctl, "runs", "--failed", "--since", "1h")
    assert [(run["dataid"], run["code"]) for run in failed] == [(FAILED, "NETWORK")]
    assert asked(run_ctl, "runs", "--failed", "--since", "2031-01-01") == []
    (attempt,) = asked(run_ctl, "attempts", "clean_orders", DONE)
    assert (attempt["status"], attempt["checks"][0]["name"], attempt["nodes"][0]["node"]) == (
        "DONE",
        "min_rows",
        "parse",
    )
    assert "token" not in attempt
    assert "was never tried" in ok(run_ctl("attempts", "clean_orders", QUEUED))
    story = [
        row["to_status"]
        for row in asked(run_ctl, "history", "clean_orders", FAILED)
        if row["kind"] == "status"
    ]
    assert story == ["RUNNING", "FAILED"]
    assert "RUNNING -> FAILED" in ok(run_ctl("history", "clean_orders", FAILED))


@pytest.mark.usefixtures("daemon")
def test_a_log_on_this_host_is_shown_and_one_on_another_host_is_named(
    run_ctl: RunCtl, settings: Settings, connection: psycopg.Connection
) -> None:
    away = run_ctl("logs", "clean_orders", FAILED)
    assert away.returncode == EXIT["NOT_FOUND"]
    assert "is on host host1: daemon alpha ran it there" in away.stderr
    (attempt,) = asked(run_ctl, "attempts", "clean_orders", FAILED)
    path = settings.effective_log_dir / "clean_orders" / FAILED / f"{attempt['attempt']}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"line 1\n\xff\xfe\n")
    result = subprocess.run(
        [CTL, "logs", "clean_orders", FAILED, "--attempt", "1"],
        env=os.environ | {"DATAFLOW_DSN": connection.info.dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir)},
        capture_output=True,
        check=True,
    )
    assert result.stdout == b"line 1\n\xff\xfe\n"
    assert run_ctl("logs", "clean_orders", FAILED, "--attempt", "9").returncode == EXIT["NOT_FOUND"]


def test_a_log_is_followed_until_its_attempt_ends(
    daemon: Daemon, dsn: str, settings: Settings, run_ctl: RunCtl
) -> None:
    (attempt,) = asked(run_ctl, "attempts", "clean_orders", RUNNING)
    path = settings.effective_log_dir / "clean_orders" / RUNNING / f"{attempt['attempt']}.log"
    path.parent.mkdir(parents=True)
    path.write_text("begun\n", encoding="utf-8")
    process = subprocess.Popen(
        [CTL, "logs", "clean_orders", RUNNING, "--follow"],
        env=os.environ | {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    with path.open("a", encoding="utf-8") as log:
        log.write("more\n")
    assert process.stdout.readline() == "more\n"
    token = daemon.connection.execute("SELECT token FROM dataflow.attempt WHERE ended IS NULL").fetchone()
    daemon.finish([{**attempt, **(token or {})}])
    rest, _ = process.communicate(timeout=60)
    assert "has ended" in rest
    assert process.returncode == 0


@pytest.mark.usefixtures("daemon")
def test_what_is_declared_is_listed_and_its_lineage_is_a_tree(run_ctl: RunCtl) -> None:
    jobs = asked(run_ctl, "jobs")
    assert [(job["jobid"], job["inputs"], job["outputs"]) for job in jobs] == [
        ("clean_orders", ["raw_orders"], ["orders"]),
        ("roll_up", ["orders", "prices"], ["totals"]),
    ]
    datasets = {dataset["datasetid"]: dataset for dataset in asked(run_ctl, "datasets")}
    assert (datasets["orders"]["producer"], datasets["orders"]["consumers"]) == ("clean_orders", ["roll_up"])
    assert (datasets["orders"]["ready"], datasets["orders"]["chunks"]) == (1, 4)
    rows = asked(run_ctl, "lineage", "orders")
    assert [(row["direction"], row["datasetid"]) for row in rows] == [
        ("up", "orders"),
        ("up", "raw_orders"),
        ("down", "totals"),
    ]
    tree = ok(run_ctl("lineage", "totals", FAILED, env={"LC_ALL": "C.UTF-8"}))
    assert tree.splitlines()[2:4] == [
        f"├─ orders/{FAILED}  FAILED (NETWORK)  read by roll_up",
        f"│  └─ raw_orders/{FAILED} v1  READY  read by clean_orders",
    ]


@pytest.mark.usefixtures("daemon")
def test_stats_show_all_numbers_of_a_job(run_ctl: RunCtl) -> None:
    stats = asked(run_ctl, "stats", "clean_orders")
    assert stats["chunks"] == {"READY": 1, "FAILED": 1, "RUNNING": 1, "HOLD": 1}
    assert (stats["execution"]["attempts"], stats["execution"]["done"]) == (3, 1)
    assert [(each["code"], each["attempts"]) for each in stats["exceptions"]] == [("NETWORK", 1)]
    assert stats["nodes"][:1] == [
        {
            "node": "parse",
            "parent": None,
            "sources": [],
            "attempts": 1,
            "items": 10,
            "successes": 9,
            "failures": 1,
            "seconds": 0.5,
        }
    ]
    shown = ok(run_ctl("stats", "clean_orders"))
    assert 'params {"currency": "EUR"}' in shown
    assert "1,000 rows, 2.0 KiB" in shown
    facts = {line.split("  ")[0]: line for line in shown.splitlines()}
    assert "raw_orders (parquet /data/raw_orders)" in facts["source"]
    assert "1 FAILED, 1 HOLD, 1 READY, 1 RUNNING" in facts["chunks"]
    assert "1,000 written, " in facts["items"]
    assert " 0 retries" in facts["attempts"]
    assert facts["wall time"].endswith("of attempts")
    assert {"CPU time", "times", "quarantine", "created"} <= set(facts)
    assert [word for word in facts["times"].split() if word.isalpha() or word.startswith("p")] == [
        *("times", "least", "median", "mean", "p90", "p95", "p99", "most")
    ]
    slowest = shown.splitlines().index(
        next(line for line in shown.splitlines() if line.startswith("slowest"))
    )
    assert {line.split()[2] for line in shown.splitlines()[slowest + 1 : slowest + 3]} == {"DONE", "FAILED"}
    drawn = ok(run_ctl("stats", "clean_orders", "--dag")).splitlines()
    assert drawn == [
        "clean_orders",
        "├─ parse         10 items  1 failed  0.5s in 1 attempt",
        "│  └─ no amount  10 items  1 failed  0.0s in 1 attempt",
        "└─ write orders  9 items   0 failed  1.0s in 1 attempt  from parse",
    ]
    dotted = ok(run_ctl("stats", "clean_orders", "--dag", "--dot"))
    assert dotted.startswith('digraph "clean_orders" {')
    assert '  "parse" -> "write orders" [label="9"];' in dotted.splitlines()
    assert '  "parse" -> "no amount" [style=dashed];' in dotted.splitlines()
    assert run_ctl("stats", "clean_orders", "--dot").returncode == EXIT["USAGE"]


@pytest.mark.usefixtures("daemon")
def test_set_aside_records_are_listed_shown_and_resolved(run_ctl: RunCtl) -> None:
    (group,) = asked(run_ctl, "quarantine", "list")
    assert (group["jobid"], group["reason"], group["open"], group["example_itemid"]) == (
        "clean_orders",
        "no amount",
        1,
        "4711",
    )
    (record,) = asked(run_ctl, "quarantine", "records")
    assert (record["jobid"], record["dataid"], record["itemid"]) == ("clean_orders", DONE, "4711")
    assert asked(run_ctl, "quarantine", "show", "clean_orders", DONE, "4711")["details"] == {"line": "a;b"}
    assert run_ctl("quarantine", "show", "clean_orders", DONE, "1").returncode == EXIT["NOT_FOUND"]
    assert run_ctl("quarantine", "resolve", "clean_orders", DONE).returncode == EXIT["USAGE"]
    done = asked(
        run_ctl, "quarantine", "resolve", "clean_orders", DONE, "4711", "--repaired", '{"amount": 1}'
    )
    assert done == {"resolved": 1}
    assert asked(run_ctl, "quarantine", "list", "clean_orders", "--dataid", "2026-*") == []
    assert asked(run_ctl, "quarantine", "records", "clean_orders") == []
    assert asked(run_ctl, "quarantine", "show", "clean_orders", DONE, "4711")["resolution"] == {
        "repaired": {"amount": 1}
    }


@pytest.mark.usefixtures("daemon")
def test_resolving_all_records_asks_unless_yes_is_given(run_ctl: RunCtl) -> None:
    every = ("clean_orders", DONE, "--all")
    unasked = run_ctl("quarantine", "resolve", *every, "--reason", "test orders")
    assert unasked.returncode == EXIT["NOT_ALLOWED"]
    assert f"mark 1 record of clean_orders {DONE} as dealt with needs a yes" in unasked.stderr
    assert asked(run_ctl, "quarantine", "resolve", *every, "--reason", "test orders", "--yes") == {
        "resolved": 1
    }
    assert run_ctl("quarantine", "unresolve", *every).returncode == EXIT["NOT_ALLOWED"]
    assert asked(run_ctl, "quarantine", "unresolve", *every, "--yes") == {"unresolved": 1}
    named = asked(run_ctl, "quarantine", "resolve", "clean_orders", DONE, "4711", "--yes")
    assert named == {"resolved": 1}


def test_records_go_out_as_a_file_and_come_back_edited(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl, tmp_path: Path
) -> None:
    file = tmp_path / "bad.csv"
    connection.execute(
        """UPDATE dataflow.quarantine SET details = '{"record": {"id": 4711, "amount": null}, "mark": "M"}'"""
    )
    assert "bad.csv: 1 record" in ok(run_ctl("quarantine", "export", "clean_orders", "--output", str(file)))
    assert file.read_text() == (
        "dataid,itemid,code,reason,action,note,record.id,record.amount\n"
        f"{DONE},4711,BAD_RECORD,no amount,,,4711,\n"
    )
    assert asked(run_ctl, "quarantine", "resolve", "clean_orders", "--from-file", str(file)) == {
        "resolved": 0
    }
    file.write_text(file.read_text().replace(",,,4711,", ",mend,,4711,12.50"))
    wrong = run_ctl("quarantine", "resolve", "clean_orders", "--from-file", str(file))
    missing = run_ctl("quarantine", "resolve", "clean_orders", "--from-file", "/nowhere.csv")
    assert (missing.returncode, "/nowhere.csv cannot be read" in missing.stderr) == (EXIT["NOT_FOUND"], True)
    assert (wrong.returncode, "line 2 has the action 'mend'" in wrong.stderr) == (EXIT["NOT_ALLOWED"], True)
    file.write_text(file.read_text().replace("mend", "repair"))
    assert asked(run_ctl, "quarantine", "resolve", "clean_orders", "--from-file", str(file)) == {
        "resolved": 1
    }
    planned = asked(run_ctl, "quarantine", "replay", "clean_orders", "--dry-run")
    assert [(run["dataid"], run["resolved"]) for run in planned["runs"]] == [(DONE, 1)]
    assert run_ctl("quarantine", "replay", "clean_orders").returncode == EXIT["NOT_ALLOWED"]
    assert "resubmitted 1 run" in ok(run_ctl("quarantine", "replay", "clean_orders", "--yes"))
    [again] = [attempt for attempt in daemon.claim() if attempt["dataid"] == DONE]
    [[order]] = connection.execute(
        "SELECT dataflow.work_order(%s, %s)", [again["attempt"], again["token"]]
    ).fetchall()
    assert order["resolved"] == [{"mark": "M", "repaired": {"amount": "12.50"}}]


@pytest.mark.parametrize(
    ("arguments", "sql"),
    [
        (["status"], "SELECT dataflow.overview(NULL, '{}'::text[]) AS overview;"),
        (["why", "clean_orders", "2026-01-01"], "SELECT * FROM dataflow.why('clean_orders', '2026-01-01');"),
        (
            ["resubmit", "--error", "O'Hara", "--dry-run"],
            'SELECT * FROM dataflow.resubmit_with(\'{"error": ["O\'\'Hara"], "status": ["FAILED"]}\'::jsonb, NULL::jsonb, false, true);',
        ),
    ],
)
@pytest.mark.usefixtures("daemon")
def test_explain_prints_sql_that_does_the_same(
    connection: psycopg.Connection, run_ctl: RunCtl, arguments: list[str], sql: str
) -> None:
    printed = ok(run_ctl(*arguments, "--explain")).strip()
    assert printed == sql
    assert connection.execute(printed.encode()).description


@pytest.mark.usefixtures("daemon")
def test_a_locale_without_the_characters_shows_them_escaped(
    connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    connection.execute("UPDATE dataflow.job SET description = 'na\u00efve \u2713'")
    plain = {"LC_ALL": "C", "LANG": None, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert r"na\xefve \u2713" in ok(run_ctl("jobs", env=plain))
    assert "[no] NETWORK" in ok(run_ctl("status", env=plain))
    assert f"|- orders/{FAILED}" in ok(run_ctl("lineage", "totals", FAILED, env=plain))


def test_a_reader_that_has_enough_ends_the_command_quietly(
    dsn: str, connection: psycopg.Connection, settings: Settings
) -> None:
    retail(connection)
    ready(connection, "raw_orders", *map(str, range(20_000)))
    result = subprocess.run(
        ["bash", "-c", f"{CTL} chunks raw_orders --limit 20000 | head -n 2; exit ${{PIPESTATUS[0]}}"],
        env=os.environ | {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr, len(result.stdout.splitlines())) == (0, "", 2)


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        (
            "> /dev/full",
            EXIT["OUTPUT_FAILED"],
            "error [OUTPUT_FAILED]: the output cannot be written: No space left on device",
        ),
        (">&-", 0, ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_one_clear_error(
    redirection: str, status: int, said: str, unbuffered: str
) -> None:
    """Python notices the error at the write or, with a buffer, at the end of the program."""
    result = subprocess.run(
        ["bash", "-c", f"{CTL} --help {redirection}"],
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr.partition("\n")[0]) == (status, said)
    assert len(result.stderr.splitlines()) <= 2


def on_a_terminal(
    arguments: list[str], env: dict[str, str], columns: int, answer: str = ""
) -> tuple[str, int]:
    """What the command draws on a terminal of this width, and its exit status."""
    leader, follower = open_terminal(columns)
    ours = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [CTL, *arguments],
        env=ours | {"TERM": "xterm-256color"} | env,
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    os.write(leader, answer.encode())
    drawn = b""
    while True:
        try:
            block = os.read(leader, 1 << 16)
        except OSError:
            break
        drawn += block
        if (
            answer == CTRL_C and b"[y/N]" in drawn
        ):  # it is no controlling terminal, so that Ctrl-C sends no signal
            process.send_signal(signal.SIGINT)
            answer = ""
    os.close(leader)
    return drawn.decode().replace("\r\n", "\n"), process.wait(60)


@pytest.mark.parametrize("columns", [60, 100, 200])
@pytest.mark.usefixtures("daemon")
def test_tables_fit_their_terminal_and_are_coloured_there_only(
    dsn: str, settings: Settings, run_ctl: RunCtl, columns: int
) -> None:
    env = {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir)}
    drawn, status = on_a_terminal(["chunks", "orders"], env, columns)
    assert status == 0
    assert "\x1b[31m" in drawn
    lines = re.sub(r"\x1b\[[0-9;]*m", "", drawn).splitlines()
    assert max(map(len, lines)) <= columns
    assert "FAILED" in drawn
    assert "\x1b" not in ok(run_ctl("chunks", "orders"))
    bare, _ = on_a_terminal(["chunks", "orders"], env | {"NO_COLOR": "1"}, columns)
    assert "\x1b[31m" not in bare


@pytest.mark.usefixtures("daemon")
def test_a_person_at_a_terminal_is_asked_and_may_refuse(
    dsn: str, settings: Settings, connection: psycopg.Connection
) -> None:
    env = {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir)}

    def failed() -> int:
        rows = connection.execute("SELECT FROM dataflow.datastatus WHERE status = 'FAILED'").fetchall()
        return len(rows)

    for answer, expected in (
        ("n\n", "NOT_ALLOWED"),
        ("\n", "NOT_ALLOWED"),
        (CTRL_C, "INTERRUPTED"),
        ("\x04", "INTERRUPTED"),
    ):
        drawn, status = on_a_terminal(["resubmit"], env, 100, answer)
        assert "resubmit 1 run?" in drawn
        assert (status, failed()) == (EXIT[expected], 1)
    drawn, status = on_a_terminal(["resubmit"], env, 100, "y\n")
    assert (status, failed()) == (0, 0)


def test_watch_draws_again_when_something_changes(
    daemon: Daemon, dsn: str, settings: Settings, connection: psycopg.Connection
) -> None:
    process = subprocess.Popen(
        [CTL, "status", "--watch", "--json"],
        env=os.environ | {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert '"limit": 3' in process.stdout.readline()
        limit(connection, 7)
        assert '"limit": 7' in process.stdout.readline()
        # A claim and a finish that queue nothing are noticed too.
        [attempt] = daemon.claim(1)
        running = json.loads(process.stdout.readline())["running"]
        daemon.finish([attempt])
        assert json.loads(process.stdout.readline())["running"] == running - 1
    finally:
        process.send_signal(2)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert daemon.name


@pytest.mark.parametrize("arguments", [["status"], ["why", "x", "1"], ["chunks", "x"], ["resubmit", "--yes"]])
def test_a_database_without_the_schema_and_no_database_have_different_errors(
    empty_dsn: str, run_ctl: RunCtl, arguments: list[str]
) -> None:
    missing = run_ctl(*arguments, env={"DATAFLOW_DSN": empty_dsn})
    assert missing.returncode == EXIT["SCHEMA_MISMATCH"]
    assert "dataflowctl init" in missing.stderr
    nowhere = run_ctl(*arguments, env={"DATAFLOW_DSN": "postgresql://me@127.0.0.1:1/flow"})
    assert nowhere.returncode == EXIT["DATABASE_UNREACHABLE"]
    assert "the database does not answer: " in nowhere.stderr
    assert "Connection refused; Is the server running" in nowhere.stderr  # libpq has two lines and a tab


@pytest.mark.parametrize(
    ("given", "said", "remedy"),
    [
        ({"user": "nobodyhere"}, 'role "nobodyhere" does not exist', "CREATE ROLE name LOGIN"),
        ({"dbname": "nowhere"}, 'database "nowhere" does not exist', "createdb"),
    ],
)
def test_a_refused_login_is_reported_as_the_servers_refusal(
    dsn: str, run_ctl: RunCtl, given: dict[str, str], said: str, remedy: str
) -> None:
    refused = run_ctl("status", env={"DATAFLOW_DSN": conninfo.make_conninfo(dsn, **given)})
    assert refused.returncode == EXIT["DATABASE_UNREACHABLE"]
    assert "the server refuses the connection: " in refused.stderr
    assert said in refused.stderr
    assert remedy in refused.stderr


@pytest.mark.parametrize(
    ("made_by", "serves_from", "expected"),
    [
        ("9.1.0", "9.0.0", "is of 9.1.0, and does not serve releases before 9.0.0"),
        ("0.0.1", "0.0.1", "is of release 0.0.1"),
        ("9.1.0", "0.1.0", ""),
    ],
)
def test_a_schema_of_another_release_is_refused_unless_it_serves_this_one(
    connection: psycopg.Connection, run_ctl: RunCtl, made_by: str, serves_from: str, expected: str
) -> None:
    connection.execute(
        "CREATE OR REPLACE FUNCTION dataflow.schema_version(OUT made_by text, OUT serves_from text) LANGUAGE sql"
        f" AS $$ SELECT '{made_by}', '{serves_from}' $$".encode()
    )
    for command in ("status", "pause"):
        result = run_ctl(command)
        assert result.returncode == (EXIT["SCHEMA_MISMATCH"] if expected else 0)
        assert expected in result.stderr
    assert run_ctl("doctor", "--no-spark", "--json").stdout.startswith("{")


def test_an_older_schema_asks_for_init(connection: psycopg.Connection, run_ctl: RunCtl) -> None:
    connection.execute("DROP FUNCTION dataflow.overview(text, text[])")
    result = run_ctl("status")
    assert result.returncode == EXIT["SCHEMA_MISMATCH"]
    assert "dataflowctl init" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["why", "nope", "1"], ["chunks", "nope"], ["runs", "nope"], ["stats", "nope"], ["lineage", "nope"]],
)
def test_an_unknown_name_is_not_found_and_the_known_are_named(
    connection: psycopg.Connection, run_ctl: RunCtl, arguments: list[str]
) -> None:
    retail(connection)
    result = run_ctl(*arguments)
    assert result.returncode == EXIT["NOT_FOUND"]
    assert "orders" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["chunks", "orders"], "orders has no chunks"),
        (["chunks", "orders", "--stale"], "no such chunk of orders"),
        (["chunks", "orders", "--map"], "no chunks"),
        (["runs"], "no runs yet"),
        (["runs", "clean_orders"], "no such run"),
        (["quarantine", "list"], "no such record is set aside"),
        (["quarantine", "records"], "no such record is set aside"),
        (["partition", "list"], "nothing is partitioned"),
        (["key", "list"], "no keys; `dataflowctl key generate` makes one"),
    ],
)
def test_an_empty_list_is_one_line_and_not_an_empty_table(
    connection: psycopg.Connection, run_ctl: RunCtl, arguments: list[str], expected: str
) -> None:
    retail(connection)
    assert ok(run_ctl(*arguments)) == expected + "\n"
    assert ok(run_ctl(*arguments, "--json")) == "[]\n"


@pytest.mark.usefixtures("daemon")
def test_what_needs_a_hand_is_folded_at_the_terminals_width(
    dsn: str, settings: Settings, connection: psycopg.Connection
) -> None:
    connection.execute(
        "UPDATE dataflow.datastatus SET reason = repeat('far away ', 20) WHERE status = 'FAILED'"
    )
    env = {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir), "NO_COLOR": "1"}
    drawn, _ = on_a_terminal(["status"], env, 60)
    hands = drawn.partition("needs a hand:")[2].partition("\n\n")[0]
    assert hands.count("far away") > 10
    assert max(map(len, hands.splitlines())) <= 60


def test_a_job_with_nothing_but_failures_left_has_no_eta(capsys: pytest.CaptureFixture[str]) -> None:
    job = {
        "jobid": "load",
        "paused": False,
        "eta_seconds": 0,
        "running": 0,
        "waits_for_spark": 0,
        "waiting": 0,
        "failed": 3,
        "limit": None,
    }
    job |= {"done": 1, "held": 0, "quarantined": 0, "forced": 0, "oldest_waiting": None, "per_hour": 1.0}
    status._draw_jobs([job, job | {"running": 1}])
    left, going = capsys.readouterr().out.splitlines()[1:]
    assert ("0.0s" in left, "0.0s" in going) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["staus"], "USAGE", "(did you mean 'status'?)"),
        (["resumbit"], "USAGE", "(did you mean 'resubmit'?)"),
        (["key", "lst"], "USAGE", "Did you mean 'list'?"),
        (
            ["why", "claen_orders", "1"],
            "NOT_FOUND",
            "there is no job claen_orders (did you mean 'clean_orders'?)",
        ),
        (["chunks", "order"], "NOT_FOUND", "there is no dataset order (did you mean 'orders'?)"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(
    connection: psycopg.Connection, run_ctl: RunCtl, arguments: list[str], status: str, expected: str
) -> None:
    retail(connection)
    result = run_ctl(*arguments)
    assert (result.returncode, expected in result.stderr) == (EXIT[status], True), result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["chunks", "orders", "--status", "BAD"],
        ["chunks", "orders", "--sort", "foo"],
        ["resubmit", "--status", "FOO"],
        ["ready", "raw_orders", "a/b"],
    ],
)
def test_an_invalid_value_is_a_wrong_command_line(
    connection: psycopg.Connection, run_ctl: RunCtl, arguments: list[str]
) -> None:
    retail(connection)
    result = run_ctl(*arguments)
    assert (result.returncode, result.stderr.count("error [USAGE]")) == (EXIT["USAGE"], 1), result.stderr


def test_a_hostile_text_cannot_steer_the_terminal(connection: psycopg.Connection, run_ctl: RunCtl) -> None:
    retail(connection)
    connection.execute(
        "UPDATE dataflow.job SET description = %s, params = %s", ["\x1b[2Jx", Jsonb({"a": "\x1b[2J"})]
    )
    assert "\x1b" not in ok(run_ctl("jobs")) + ok(run_ctl("stats", "clean_orders")) + ok(
        run_ctl("jobs", "--json")
    )


def test_json_is_whole_however_long_the_list(
    run_ctl: RunCtl, dsn: str, connection: psycopg.Connection
) -> None:
    dataids = [f"2{number:03}-01-01" for number in range(250)]
    retail(connection)
    limit(connection, 200)
    with running_daemon(dsn) as started:
        ready(connection, "raw_orders", *dataids)
        bad = {"item": "1", "reason": "no amount", "details": {}}
        started.finish(started.claim(200), quarantine=[bad])
        assert [row["dataid"] for row in asked(run_ctl, "chunks", "raw_orders")] == dataids
        assert len(asked(run_ctl, "runs")) == len(asked(run_ctl, "quarantine", "records")) == 200
        for command in (["chunks", "raw_orders"], ["runs"], ["quarantine", "records"]):
            said = run_ctl(*command, "--json", "--limit", "3")
            assert len(json.loads(said.stdout)) == 3
            assert (
                said.stderr == "truncated: there are more than the 3 of --limit; without it all are printed\n"
            )
        assert asked(run_ctl, "chunks", "orders", "--status", "HOLD") == []
