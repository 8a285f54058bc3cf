"""The history has each declaration with its author and its flow, the events around a run, and what the run waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import Row, World

DAY = "2026-01-01"
SECRET = "hunter-2-canary"  # noqa: S105


def declared(world: World) -> list[Row]:
    """Events of declarations: kind, name, what changed, from, to, and by which flow."""
    return world.rows(
        "SELECT kind, coalesce(nullif(jobid, ''), datasetid), code, from_status, to_status, reason"
        " FROM dataflow.event WHERE kind IN ('dataset', 'job') ORDER BY event"
    )


def flow(**changes: Any) -> dict[str, Any]:
    raw = {"datasetid": "raw", "format": "csv", "location": "/data/raw/{dataid}", "description": ""}
    clean = {"datasetid": "clean", "format": "csv", "location": "/data/clean", "description": ""}
    plain = {"options": {}, "checks": {}, "ordering": "natural", "publish": "pointer"}
    calendar = {"calendar_zone": "UTC", "calendar_ready": "end"}
    job = {
        "jobid": "clean_orders",
        "description": "",
        "kind": "command",
        "params": changes.pop("params", {}),
        "max_running": changes.pop("max_running", None),
        "max_attempts": 1,
        "max_lost": 5,
        "retry_delay": "30 seconds",
        "priority": 0,
        "strict_order": False,
        "inputs": {"raw": changes.pop("mapping", {"kind": "identity"})},
        "outputs": ["clean"],
    }
    return {
        "name": "shop",
        "file": "/flows/shop.toml",
        "datasets": [raw | plain | calendar | changes, clean | plain | calendar],
        "jobs": [job],
    }


def apply(world: World, document: dict[str, Any]) -> None:
    world.do("SELECT * FROM dataflow.apply_flow(%s)", Jsonb(document))


def test_apply_tells_what_changed_from_what_to_what_and_from_which_file(world: World) -> None:
    apply(world, flow())
    first = declared(world)
    by = "flow shop, /flows/shop.toml"
    assert ("dataset", "raw", "declared", None, "/data/raw/{dataid}", by) in first
    assert ("job", "clean_orders", "declared", None, "command", by) in first
    assert ("job", "clean_orders", "input", None, '{"kind": "identity"}', by) in first
    apply(world, flow())
    assert declared(world) == first, "applying the same flow again writes no event"
    apply(
        world,
        flow(location="/new/{dataid}", max_running=3, mapping={"kind": "offset", "unit": "day", "by": -1}),
    )
    assert set(declared(world)[len(first) :]) == {
        ("dataset", "raw", "location", "/data/raw/{dataid}", "/new/{dataid}", by),
        ("job", "clean_orders", "max_running", None, "3", by),
        (
            "job",
            "clean_orders",
            "input",
            '{"kind": "identity"}',
            '{"by": -1, "kind": "offset", "unit": "day"}',
            by,
        ),
    }
    assert (
        world.value("SELECT count(*) FROM dataflow.event WHERE kind = 'job' AND actor <> session_user") == 0
    )


def test_history_has_a_change_by_hand_without_a_flow(pipeline: World) -> None:
    known = len(declared(pipeline))
    pipeline.as_framework("UPDATE dataflow.dataset SET description = 'orders' WHERE datasetid = 'raw'")
    assert declared(pipeline)[known:] == [("dataset", "raw", "description", "", "orders", None)]


def test_secrets_do_not_reach_history(world: World) -> None:
    apply(world, flow())
    apply(world, flow(params={"api_token": SECRET, "nested": {"password": SECRET}, "day": 1}))
    apply(world, flow(params={"day": 2}, location=f"s3a://user:{SECRET}@bucket/raw"))
    with world.connection.transaction():
        world.do("SET LOCAL ROLE dataflow_admin")
        world.do("UPDATE dataflow.dataset SET encryptedpass = %s", f"dataflowd-sealed-v1.{SECRET}")
    told = world.rows("SELECT e::text FROM dataflow.event e")
    assert [row for row in told if SECRET in row[0]] == []
    assert any('"day": 1' in (row[4] or "") for row in declared(world))


def test_history_has_a_second_registration_with_its_version(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    alpha = pipeline.daemon()
    alpha.work_off()
    pipeline.do("SELECT dataflow.ready('raw', %s, reason => 'a correction')", DAY)
    [event] = pipeline.rows(
        "SELECT kind, datasetid, from_status, to_status, reason FROM dataflow.event WHERE code = 'NEW_VERSION'"
    )
    assert event == ("status", "raw", None, None, "version 2: a correction")
    assert pipeline.queue() == set(), "a new version of an input queues no run"


def test_only_the_daemon_itself_reports_its_reload(pipeline: World) -> None:
    alpha = pipeline.daemon()
    reload = "SELECT dataflow.reloaded(%s, %s, 2)"
    assert alpha.connection.execute(reload, [alpha.name, alpha.incarnation]).fetchall() == [(True,)]
    assert pipeline.rows("SELECT dataflow.reloaded('alpha', gen_random_uuid(), 2)") == [(False,)]
    assert pipeline.rows("SELECT reason FROM dataflow.event WHERE to_status = 'RELOADED'") == [
        ("alpha on host read its flow files again and has the code of 2 jobs",)
    ]


def test_history_shows_limits_daemons_and_declarations_around_a_run(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    alpha = pipeline.daemon()
    pipeline.do("SELECT dataflow.set_concurrency('global', 7)")
    pipeline.do("SELECT dataflow.set_concurrency('job:sum_orders', 7)")
    attempt = alpha.claim_one()
    pipeline.as_framework("UPDATE dataflow.dataset SET description = 'x' WHERE datasetid IN ('raw', 'sums')")
    alpha.crash()
    beta = pipeline.daemon("beta")
    beta.connection.execute("SELECT * FROM dataflow.rescue()")
    beta.finish(beta.claim_one())
    pipeline.do("SELECT dataflow.set_concurrency('global', 8)")
    told = pipeline.rows(
        "SELECT kind, to_status, reason FROM dataflow.history('clean_orders', %s)"
        " WHERE kind NOT IN ('status', 'queued', 'blocked')",
        DAY,
    )
    assert told == [
        ("daemon", "STARTED", "alpha on host, pid 1"),
        ("control", "7", "global"),
        ("dataset", "x", None),
        ("daemon", "STARTED", "beta on host, pid 1"),
        ("daemon", "GONE", "alpha: it left 1 attempt behind"),
    ]
    assert attempt.number == 1


def waited(world: World, dataid: str) -> list[Row]:
    return world.rows(
        "SELECT code, reason FROM dataflow.history('clean_orders', %s) WHERE kind = 'waited' ORDER BY at",
        dataid,
    )


def queued_ago(world: World, dataid: str, seconds: int) -> None:
    """Moves the event `queued` of the run into the past."""
    with world.connection.transaction():
        world.do("SET LOCAL ROLE dataflow_admin")
        world.do(
            "UPDATE dataflow.event SET at = at - make_interval(secs => %s) WHERE kind = 'queued' AND dataid = %s",
            *(seconds, dataid),
        )


def test_a_wait_for_a_place_names_the_limit(pipeline: World) -> None:
    alpha = pipeline.daemon()
    pipeline.do("SELECT dataflow.set_concurrency('global', 3)")
    pipeline.ready("raw", "1", "2", "3", "4")
    first = alpha.claim()
    assert len(first) == 3
    pipeline.as_framework(
        "UPDATE dataflow.attempt SET claimed = claimed - interval '100 seconds'",
        "UPDATE dataflow.event SET at = at - interval '110 seconds' WHERE kind IN ('daemon', 'control')",
    )
    queued_ago(pipeline, "4", 90)
    alpha.finish(*first)
    alpha.finish(*alpha.claim())
    [(code, reason)] = waited(pipeline, "4")
    assert code == "PLACE"
    assert reason.startswith("90.")
    assert reason.endswith("for a place: 3 of 3 were running (limit of global)")


def test_a_wait_for_a_daemon_says_when_one_came(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    queued_ago(pipeline, DAY, 90)
    alpha = pipeline.daemon()
    alpha.finish(alpha.claim_one())
    [(code, reason)] = waited(pipeline, DAY)
    assert code == "DAEMON"
    assert "no daemon was running until alpha on host, pid 1 started at" in reason


def test_history_has_pauses_and_starts_of_runners(pipeline: World) -> None:
    alpha = pipeline.daemon()
    pipeline.do("SELECT dataflow.pause('job:clean_orders')")
    pipeline.ready("raw", DAY)
    pipeline.as_framework("UPDATE dataflow.event SET at = at - interval '100 seconds'")
    pipeline.do("SELECT dataflow.pause('job:clean_orders', false)")
    attempt = alpha.claim_one()
    pipeline.as_framework("UPDATE dataflow.attempt SET claimed = claimed - interval '10 seconds'")
    pipeline.do("SELECT dataflow.began(%s, %s, 0, NULL)", attempt.attempt, attempt.token)
    alpha.finish(attempt)
    (queue, paused), (start, runner) = waited(pipeline, DAY)
    assert (queue, start) == ("PAUSED", "RUNNER")
    assert paused.endswith("job clean_orders was paused")
    assert runner.startswith("10.")
    assert "its runner's start" in runner


@pytest.mark.parametrize("what", ["add", "retire"])
def test_history_has_a_changed_key(world: World, what: str) -> None:
    [[key]] = world.rows("SELECT dataflow.add_key('x25519', decode(repeat('01', 32), 'hex'))")
    if what == "retire":
        world.do("SELECT dataflow.retire_key(%s)", key)
    said = {"add": "KEY_ADDED", "retire": "KEY_RETIRED"}[what]
    assert world.value("SELECT reason FROM dataflow.event WHERE to_status = %s", said) == key
