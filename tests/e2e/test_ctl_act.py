"""The commands that act: they preview, ask or refuse to guess, and do what the SQL functions do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dataflowd.model.errors import EXIT
from tests.e2e.ctl_flow import asked, limit, ok, ready, retail, running_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from tests.e2e.ctl_flow import Daemon
    from tests.fix_postgres import RunCtl, Server

DAYS = [f"2026-01-{day:02}" for day in range(1, 7)]


@pytest.fixture
def daemon(dsn: str, connection: psycopg.Connection) -> Iterator[Daemon]:
    """clean_orders is done for two days, failed for two and running for two."""
    retail(connection)
    limit(connection, 6)
    with running_daemon(dsn) as started:
        ready(connection, "raw_orders", *DAYS)
        claimed = started.claim(6)
        started.finish(claimed[:2])
        started.finish(claimed[2:4], "FAILED", code="NETWORK", error="no route")
        yield started


def statuses(connection: psycopg.Connection, dataset: str = "orders") -> dict[str, str]:
    rows = connection.execute(
        "SELECT dataid, status FROM dataflow.datastatus WHERE datasetid = %s AND locktype = 'OUT' ORDER BY dataid",
        [dataset],
    )
    return {str(row[0]): str(row[1]) for row in rows}


@pytest.mark.parametrize(
    "arguments",
    [
        ["resubmit"],
        ["hold", "clean_orders"],
        ["cancel", "clean_orders"],
        ["delete", "roll_up", "--dataid", DAYS[0]],
        ["prune", "--older-than", "90d"],
        ["concurrency", "0", "--now"],
    ],
)
def test_without_a_terminal_and_without_yes_nothing_is_done(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl, arguments: list[str]
) -> None:
    connection.execute("SELECT dataflow.hold('totals', %s)", [DAYS[0]])
    before = statuses(connection)
    result = run_ctl(*arguments)
    assert result.returncode == EXIT["NOT_ALLOWED"]
    assert "--yes" in result.stderr
    assert statuses(connection) == before
    assert asked(run_ctl, "concurrency")[0]["concurrency"] == 6
    assert daemon.name


@pytest.mark.usefixtures("daemon")
def test_resubmit_chooses_failures_unless_told_otherwise(
    connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    def chosen(*arguments: str) -> list[str]:
        return [run["dataid"] for run in asked(run_ctl, "resubmit", *arguments, "--dry-run")["runs"]]

    assert chosen() == DAYS[2:4]
    assert chosen("--error", "OTHER") == []
    assert chosen("clean_orders", "--status", "READY") == DAYS[:2]
    assert chosen("--dataid", "2026-01-03", "--dataid", "2026-01-0?5") == [DAYS[2]]
    for command in ("resubmit", "hold"):
        wrong = run_ctl(command, "clean_orders", "--dataid", "2026-01-0[5-6]", "--yes")
        assert (wrong.returncode, "In a glob * and ? have a meaning" in wrong.stderr) == (2, True)
    assert chosen("--dataid", "2026-01-02..2026-01-05", "--status", "any") == DAYS[1:5]
    assert chosen("--since", "2031-01-01") == []
    assert statuses(connection)[DAYS[2]] == "FAILED"
    assert "resubmit: 2 runs" in ok(run_ctl("resubmit", "--yes"))
    assert statuses(connection)[DAYS[2]] == "RESUBMIT"
    assert "nothing to resubmit" in ok(run_ctl("resubmit", "--yes"))
    named = ok(run_ctl("resubmit", "clean_orders", "--dataid", DAYS[0], "--yes"))
    assert named == f"clean_orders {DAYS[0]} is READY; add --status READY\n"


def test_resubmit_downstream_takes_what_was_made_of_it(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    ready(connection, "prices", *DAYS)
    daemon.run_all()
    preview = asked(
        run_ctl,
        "resubmit",
        "clean_orders",
        "--dataid",
        DAYS[0],
        "--status",
        "READY",
        "--downstream",
        "--dry-run",
    )
    assert [(run["depth"], run["jobid"]) for run in preview["runs"]] == [(0, "clean_orders"), (1, "roll_up")]


@pytest.mark.usefixtures("daemon")
def test_hold_and_release_by_pattern_and_before_a_chunk_exists(
    connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    held = asked(
        run_ctl,
        "hold",
        "--dataset",
        "raw_orders",
        "--dataid",
        "2031-*",
        "--dataid",
        "2026-02-01",
        "--reason",
        "late",
        "--yes",
    )
    assert held["chunks"] == [{"datasetid": "raw_orders", "dataid": "2026-02-01", "was": "NONE", "stops": []}]
    ok(run_ctl("hold", "clean_orders", "--dataid", f"{DAYS[0]}..{DAYS[2]}", "--yes"))
    assert list(statuses(connection).values()) == ["HOLD", "HOLD", "HOLD", "FAILED", "RUNNING", "RUNNING"]
    released = asked(run_ctl, "release", "--status", "HOLD", "--yes")
    assert [(chunk["datasetid"], chunk["becomes"]) for chunk in released["chunks"]] == [
        ("orders", "READY"),
        ("orders", "READY"),
        ("orders", "FAILED"),
        ("raw_orders", "NONE"),
    ]
    assert "2026-02-01" not in statuses(connection, "raw_orders")
    assert "no such chunk is held" in ok(run_ctl("release", "clean_orders", "--yes"))


@pytest.mark.parametrize("command", ["hold", "release", "cancel"])
def test_nothing_selected_is_not_everything(
    connection: psycopg.Connection, run_ctl: RunCtl, command: str
) -> None:
    retail(connection)
    result = run_ctl(command, "--yes")
    assert result.returncode == EXIT["USAGE"]
    assert "name a job, a dataset, a dataid or a pattern" in result.stderr


@pytest.mark.usefixtures("daemon")
def test_cancel_stops_what_runs_and_leaves_the_rest(connection: psycopg.Connection, run_ctl: RunCtl) -> None:
    done = asked(run_ctl, "cancel", "--dataid", "2026-01-*", "--reason", "source is down", "--yes")
    assert [run["dataid"] for run in done["runs"]] == DAYS[4:]
    assert list(statuses(connection).values()) == ["READY", "READY", "FAILED", "FAILED", "FAILED", "FAILED"]
    assert "source is down" in ok(run_ctl("history", "clean_orders", DAYS[5]))
    assert {cause["code"]: cause["runs"] for cause in asked(run_ctl, "status")["causes"]} == {
        "CANCELLED": 2,
        "NETWORK": 2,
    }


@pytest.mark.usefixtures("daemon")
def test_a_failure_by_hand_is_counted_among_the_causes(
    connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    connection.execute(
        "UPDATE dataflow.datastatus SET status = 'FAILED' WHERE datasetid = 'orders' AND dataid = %s",
        [DAYS[0]],
    )
    assert {cause["code"]: cause["runs"] for cause in asked(run_ctl, "status")["causes"]} == {
        "BY_HAND": 1,
        "NETWORK": 2,
    }


@pytest.mark.usefixtures("daemon")
def test_pause_and_resume_by_job_glob_dataset_daemon_and_all(run_ctl: RunCtl) -> None:
    assert asked(run_ctl, "pause", "*_orders") == [{"scope": "job:clean_orders", "was": False}]
    assert "job:clean_orders paused (as before)" in ok(run_ctl("pause", "--dataset", "orders"))
    assert asked(run_ctl, "pause", "--daemon", "alpha") == [{"scope": "daemon:alpha", "was": False}]
    assert asked(run_ctl, "pause") == [{"scope": "global", "was": False}]
    assert "PAUSED" in {hand["code"] for hand in asked(run_ctl, "status")["needs_hand"]}
    assert asked(run_ctl, "resume") == [{"scope": "global", "was": True}]
    paused = [row["scope"] for row in asked(run_ctl, "concurrency") if row["paused"]]
    assert paused == ["daemon:alpha", "job:clean_orders"]
    assert run_ctl("pause", "nope*").returncode == EXIT["NOT_FOUND"]


@pytest.mark.usefixtures("daemon")
def test_runners_and_slots_of_daemons_are_set_and_shown(run_ctl: RunCtl) -> None:
    (found,) = [
        row
        for row in asked(run_ctl, "concurrency", "--runners", "3", "--slots", "4")
        if row["scope"] == "global"
    ]
    assert (found["runners"], found["slots"]) == (3, 4)
    assert "runners" in ok(run_ctl("concurrency"))
    (own,) = asked(run_ctl, "concurrency", "--daemon", "alpha", "--slots", "1")
    assert (own["scope"], own["runners"], own["slots"]) == ("daemon:alpha", None, 1)
    assert asked(run_ctl, "concurrency", "--runners", "none", "--slots", "none")[0]["runners"] is None
    for wrong in (["--runners", "0"], ["--slots", "many"], ["--slots", "2", "--job", "clean_orders"]):
        assert run_ctl("concurrency", *wrong).returncode == EXIT["USAGE"]


def test_concurrency_is_shown_set_and_enforced_at_once(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    assert asked(run_ctl, "concurrency", "20")[0]["concurrency"] == 20
    (own,) = asked(run_ctl, "concurrency", "1", "--job", "clean_orders")
    assert (own["concurrency"], own["running"]) == (1, 2)
    (own,) = asked(run_ctl, "concurrency", "1", "--job", "clean_orders", "--now", "--yes")
    assert own["running"] == 1
    assert [statuses(connection)[day] for day in DAYS[4:]] == ["RUNNING", "RESUBMIT"]
    for wrong, said in (
        (["-1"], "a number is 0 or more"),
        (["many"], "neither a whole number nor `none`"),
        (["99999999999"], "a limit is 0 to 2147483647"),
        (["9" * 5000], "a limit is 0 to 2147483647"),
        (["1", "--job", "a", "--daemon", "b"], "not of both"),
    ):
        refused = run_ctl("concurrency", *wrong)
        assert (refused.returncode, said in refused.stderr) == (EXIT["USAGE"], True), refused.stderr
    assert run_ctl("concurrency", "1", "--job", "nope").returncode == EXIT["NOT_FOUND"]
    assert daemon.name


def test_ready_takes_names_ranges_and_files(
    connection: psycopg.Connection, run_ctl: RunCtl, tmp_path: Path
) -> None:
    retail(connection)
    listed = tmp_path / "dataids"
    listed.write_text("2026-05-01\n\n2026-05-02\n", encoding="utf-8")
    assert asked(
        run_ctl,
        "ready",
        "raw_orders",
        "2026-04-01",
        "--range",
        "2026-02-27..2026-03-02",
        "--from-file",
        str(listed),
    ) == {
        "datasetid": "raw_orders",
        "registered": 7,
        "warnings": [
            {
                "code": "NOTHING_THERE",
                "dataid": "2026-02-27",
                "count": 7,
                "detail": "this host sees nothing at /data/raw_orders",
            }
        ],
    }
    assert "2026-02-28" in statuses(connection, "raw_orders")
    assert "2026-02-29" not in statuses(connection, "raw_orders")
    connection.execute("UPDATE dataflow.dataset SET location = %s", [str(tmp_path)])
    assert "prices: 12 chunks ready" in ok(run_ctl("ready", "prices", "--range", "008..019"))
    assert list(statuses(connection, "prices"))[:3] == ["008", "009", "010"]
    assert "1 chunk ready, not validated" in ok(
        run_ctl("ready", "prices", "--from-file", "-", "--not-validated", stdin="7\n")
    )
    assert run_ctl("ready", "prices").returncode == EXIT["USAGE"]
    assert run_ctl("ready", "prices", "--from-file", "/nowhere").returncode == EXIT["NOT_FOUND"]


@pytest.mark.parametrize(
    "bounds", ["2026-01-31..2026-01-01", "a..b", "1..", "2026-01..2026-01-03", "1..9999999"]
)
def test_an_invalid_range_registers_nothing(
    connection: psycopg.Connection, run_ctl: RunCtl, bounds: str
) -> None:
    retail(connection)
    result = run_ctl("ready", "prices", "2026-01-01", "--range", bounds)
    assert result.returncode == EXIT["USAGE"], result.stderr
    assert statuses(connection, "prices") == {}


def test_ready_warns_of_what_may_be_a_slip(
    connection: psycopg.Connection, run_ctl: RunCtl, tmp_path: Path
) -> None:
    retail(connection)
    there = tmp_path / "2026-01-31"
    connection.execute("UPDATE dataflow.dataset SET location = %s", [f"{tmp_path}/{{dataid}}"])
    result = run_ctl("ready", "raw_orders", "2026-01-31", "2026-02-30")
    assert (result.returncode, result.stdout) == (0, "raw_orders: 2 chunks ready\n")
    assert result.stderr.splitlines() == [
        f"warning [NOTHING_THERE]: raw_orders 2026-01-31 (and 1 other): this host sees nothing at {there}",
        'warning [NO_DATE]: raw_orders 2026-02-30: it looks like a date, and there is no such date; ordering = "date" in the flow refuses these',
        "  if it is wrong: dataflowctl unregister raw_orders 2026-01-31",
    ]
    there.mkdir()
    assert "NOTHING_THERE" in run_ctl("ready", "raw_orders", "2026-01-31").stderr
    (there / "part.csv").write_text("1\n", encoding="utf-8")
    assert ok(run_ctl("ready", "raw_orders", "2026-01-31"))
    for elsewhere in ("s3a://bucket/raw", None):
        connection.execute("UPDATE dataflow.dataset SET location = %s, format = 'none'", [elsewhere])
        assert ok(run_ctl("ready", "raw_orders", "2026-01-31"))
    connection.execute("UPDATE dataflow.dataset SET ordering = 'date'")
    refused = run_ctl("ready", "raw_orders", "2026-03-01", "2026-02-30")
    assert refused.returncode == EXIT["USAGE"]
    assert "2026-02-30 is no date" in refused.stderr
    assert "2026-03-01" not in statuses(connection, "raw_orders")


def test_a_wrong_registration_is_withdrawn_with_or_without_what_was_made_of_it(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    limit(connection, 100)
    ready(connection, "raw_orders", "2031-01-01", "2031-01-02", "2031-01-03")
    daemon.finish([each for each in daemon.claim() if each["dataid"] < "2031-01-03"])
    shown = asked(run_ctl, "unregister", "raw_orders", "2031-01-01", "--dry-run")
    assert (shown["count"], shown["chunks"][0]["dataid"]) == (1, "2031-01-01")
    assert [(each["jobid"], each["dataset"], each["deed"]) for each in shown["made"]] == [
        ("clean_orders", "orders", "undecided")
    ]
    for words, said in (
        (["2031-01-01", "--yes"], "say --delete to forget them, or --keep"),
        (["2031-01-01"], "say --delete to forget them, or --keep"),
        (["2031-01-01", "--delete"], "say --yes when it is right"),
        (["2031-01-03", "--delete", "--yes"], "dataflowctl cancel clean_orders --dataid 2031-01-03"),
    ):
        refused = run_ctl("unregister", "raw_orders", *words)
        assert refused.returncode == EXIT["NOT_ALLOWED"], refused.stderr
        assert said in refused.stderr
    assert run_ctl("unregister", "raw_orders", "1999-*", "--yes").returncode == EXIT["NOT_FOUND"]
    assert run_ctl("unregister", "raw_orders", "x", "--keep", "--delete").returncode == EXIT["USAGE"]
    assert run_ctl("unregister", "raw_orders", "a b").returncode == EXIT["USAGE"]
    assert {"2031-01-01", "2031-01-02"} <= set(statuses(connection, "raw_orders"))
    kept = ok(run_ctl("unregister", "raw_orders", "2031-01-01", "--keep", "--yes"))
    assert kept.splitlines()[-1] == "withdrew 1 chunk of raw_orders, kept 1 chunk made of that"
    gone = asked(run_ctl, "unregister", "raw_orders", "2031-01-02", "--delete", "--yes")
    assert [each["deed"] for each in gone["made"]] == ["delete"]
    assert {"2031-01-01", "2031-01-02"} & set(statuses(connection, "raw_orders")) == set()
    made = statuses(connection, "orders")
    assert (made["2031-01-01"], "2031-01-02" in made) == ("READY", False)


def test_delete_is_previewed_refused_while_running_and_forgets_all(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    busy = run_ctl("delete", "clean_orders", "--yes")
    assert busy.returncode == EXIT["NOT_ALLOWED"]
    assert "being written or read" in busy.stderr
    preview = asked(run_ctl, "delete", "clean_orders", "--dataid", f"{DAYS[0]}..{DAYS[3]}", "--dry-run")
    assert [(run["dataid"], run["status"], run["attempts"]) for run in preview["runs"]] == [
        (DAYS[0], "READY", 1),
        (DAYS[1], "READY", 1),
        (DAYS[2], "FAILED", 1),
        (DAYS[3], "FAILED", 1),
    ]
    assert len(statuses(connection)) == 6
    assert "deleted 4 runs" in ok(
        run_ctl("delete", "clean_orders", "--dataid", f"{DAYS[0]}..{DAYS[3]}", "--yes")
    )
    assert list(statuses(connection)) == DAYS[4:]
    assert asked(run_ctl, "attempts", "clean_orders", DAYS[0]) == []
    assert asked(run_ctl, "history", "clean_orders", DAYS[0]) != []
    assert [row["dataid"] for row in daemon.claim(10)] == DAYS[:4]


@pytest.mark.usefixtures("daemon")
def test_prune_keeps_what_is_young_and_rebuild_finds_the_same_queue(
    connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    connection.execute("UPDATE dataflow.event SET at = now() - interval '100 days' WHERE event <= 3")
    assert asked(run_ctl, "prune", "--older-than", "90d", "--dry-run") == {"dry_run": True, "events": 3}
    assert "deleted 3 events" in ok(run_ctl("prune", "--older-than", "90d", "--yes"))
    assert run_ctl("prune", "--older-than", "soon").returncode == EXIT["USAGE"]
    ready(connection, "raw_orders", "2026-03-01")
    connection.execute("SET ROLE dataflow_admin")
    connection.execute("DELETE FROM dataflow.work")
    assert asked(run_ctl, "rebuild")["queued"] == 1


def test_psql_opens_the_database_in_use(run_ctl: RunCtl) -> None:
    assert ok(run_ctl("psql", "-Atc", "SELECT 6 * 7")) == "42\n"


def test_a_reader_may_look_and_may_not_act(
    server: Server, dsn: str, daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    with server.login(dsn, "dataflow_reader") as theirs:
        env = {"DATAFLOW_DSN": theirs}
        for look in (
            ["status"],
            ["why", "clean_orders", DAYS[0]],
            ["why", "roll_up"],
            ["chunks", "orders"],
            ["chunks", "orders", "--map"],
            ["runs"],
            ["attempts", "clean_orders", DAYS[0]],
            ["history", "clean_orders", DAYS[0]],
            ["jobs"],
            ["datasets"],
            ["lineage", "orders", DAYS[0]],
            ["stats", "clean_orders"],
            ["quarantine", "list"],
            ["concurrency"],
        ):
            assert json.loads(ok(run_ctl(*look, "--json", env=env))) is not None
        for act in (
            ["resubmit", "--yes"],
            ["hold", "clean_orders", "--yes"],
            ["pause"],
            ["concurrency", "9"],
            ["ready", "prices", "1"],
            ["delete", "roll_up", "--yes"],
            ["rebuild"],
        ):
            refused = run_ctl(*act, env=env)
            assert refused.returncode == EXIT["NOT_ALLOWED"], (act, refused.stdout, refused.stderr)
            assert "dataflow_operator" in refused.stderr
    assert list(statuses(connection).values()).count("FAILED") == 2
    assert daemon.name


def test_a_daemon_that_nobody_has_seen_is_neither_paused_nor_limited(
    daemon: Daemon, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    for arguments in (["pause", "--daemon", "alpa"], ["concurrency", "2", "--daemon", "alpa"]):
        refused = run_ctl(*arguments)
        assert (refused.returncode, "there is no daemon alpa" in refused.stderr) == (EXIT["NOT_FOUND"], True)
        assert f"the daemons are: {daemon.name}" in refused.stderr
    assert connection.execute("SELECT count(*) FROM dataflow.control").fetchone() == (1,)


@pytest.mark.usefixtures("daemon")
def test_resubmit_says_why_there_is_nothing_to_do(connection: psycopg.Connection, run_ctl: RunCtl) -> None:
    def said(*arguments: str) -> str:
        return ok(run_ctl("resubmit", *arguments, "--yes"))

    connection.execute("SELECT dataflow.hold('orders', %s, 'wait')", [DAYS[0]])
    held = said("clean_orders", "--dataid", DAYS[0], "--status", "any")
    assert held.startswith(f"orders/{DAYS[0]} is held")
    assert "nothing has the error code NOSUCH" in said("--error", "nosuch")
    assert "there is no such run" in said("clean_orders", "--dataid", "1999-01-01")
    assert "nothing has the error code NOSUCH or NEITHER" in said("--error", "nosuch", "--error", "neither")
    assert "nothing of clean_orders is stale" in said("clean_orders", "--stale")
    assert said("--stale").startswith("nothing is stale")
    assert "resubmit: 2 runs" in said("--error", "network", "--error", "nosuch")


@pytest.mark.usefixtures("daemon")
def test_the_reason_of_a_cancel_is_shown_with_the_attempt(run_ctl: RunCtl) -> None:
    ok(run_ctl("cancel", "clean_orders", "--dataid", DAYS[4], "--reason", "source is down", "--yes"))
    assert asked(run_ctl, "why", "clean_orders", DAYS[4])["detail"].endswith(": source is down")
