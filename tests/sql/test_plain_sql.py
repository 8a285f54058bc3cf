"""Plain SQL is an interface: statements that an operator types into psql, and the messages that refuse wrong ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.fix_world import World

DAY = "2026-01-01"


def made(pipeline: World) -> World:
    """A pipeline that has published all chunks of one day."""
    pipeline.ready("raw", DAY)
    pipeline.daemon().work_off()
    return pipeline


def heard(world: World) -> list[tuple[str | None, str | None]]:
    """The notices that the operator sees from now on, each with its hint."""
    notices: list[tuple[str | None, str | None]] = []
    world.connection.add_notice_handler(
        lambda said: notices.append((said.message_primary, said.message_hint))
    )
    return notices


def test_the_weekend_is_recovered_by_one_update(pipeline: World) -> None:
    pipeline.ready("raw", "2025-11-12", "2025-11-13")
    daemon = pipeline.daemon()
    daemon.fail(*daemon.claim())
    changed = pipeline.do("UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE dataid = '2025-11-12'")
    assert changed == 1
    assert daemon.work_off() == [("clean_orders", "2025-11-12"), ("sum_orders", "2025-11-12")]
    assert pipeline.status("clean", "2025-11-13") == "FAILED"


def test_an_update_rewrites_ready_chunks_in_order_of_dependency(pipeline: World) -> None:
    made(pipeline)
    assert pipeline.do("UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE dataid = %s", DAY) == 2
    assert pipeline.daemons[0].work_off() == [("clean_orders", DAY), ("sum_orders", DAY)]
    assert (pipeline.version("clean", DAY), pipeline.version("sums", DAY)) == (2, 2)


def test_in_rows_follow_their_run(pipeline: World) -> None:
    made(pipeline)
    pipeline.do("UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE datasetid = 'clean'")
    assert pipeline.consumed("raw", DAY, "clean_orders") is None
    assert pipeline.consumed("clean", DAY, "sum_orders") == "DONE"


def test_a_source_chunk_is_left_alone_with_a_notice(pipeline: World) -> None:
    made(pipeline)
    notices = heard(pipeline)
    assert pipeline.set_status("raw", DAY, "RESUBMIT") == 0
    assert pipeline.status("raw", DAY) == "READY"
    assert notices == [
        (f"raw/{DAY} is left alone: no job produces it", "dataflow.ready() registers a new version of it")
    ]


def test_a_held_chunk_is_left_alone_with_a_notice(pipeline: World) -> None:
    made(pipeline)
    pipeline.do("SELECT dataflow.hold('clean', %s, 'bad feed')", DAY)
    notices = heard(pipeline)
    assert pipeline.do("UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE datasetid = 'clean'") == 0
    assert pipeline.status("clean", DAY) == "HOLD"
    assert notices == [(f"clean/{DAY} is left alone: it is held (bad feed)", "dataflow.release() it first")]


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("RERUN", "RESUBMIT"),
        ("resubmit", "RESUBMIT"),
        ("ERROR", "FAILED"),
        ("failed", "FAILED"),
        ("COMPLETE", "READY"),
        ("Hold", "HOLD"),
        ("pending", "PENDING"),
    ],
)
def test_synonyms_are_normalised(pipeline: World, typed: str, stored: str) -> None:
    made(pipeline)
    assert pipeline.do("UPDATE dataflow.datastatus SET status = %s WHERE datasetid = 'sums'", typed) == 1
    assert pipeline.status("sums", DAY) == stored


PUBLISHED = "SELECT status, version, manifest, external FROM dataflow.datastatus WHERE datasetid = 'clean' AND locktype = 'OUT'"


@pytest.mark.parametrize("typed", ["READY", "COMPLETE"])
@pytest.mark.parametrize("before", ["FAILED", "RESUBMIT", "failed attempt"])
def test_ready_by_hand_points_at_the_last_version_that_the_job_made(
    pipeline: World, before: str, typed: str
) -> None:
    """The chunk's directory holds older versions and failed attempts too: it is never the chunk."""
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    places = [f"/data/clean/{DAY}/attempt={number}" for number in (1, 2)]
    for place in places:
        daemon.finish(daemon.claim_one(), outputs={"clean": {"location": place, "rows": 3}})
        pipeline.set_status("clean", DAY, "RESUBMIT")
    if before == "failed attempt":
        daemon.fail(daemon.claim_one())
    else:
        pipeline.set_status("clean", DAY, before)
    assert pipeline.set_status("clean", DAY, typed) == 1
    assert pipeline.rows(PUBLISHED) == [("READY", 2, 2, False)]
    assert pipeline.value("SELECT location FROM dataflow.data_location('clean', %s)", DAY) == places[1]
    attempt = daemon.claim_one()
    assert attempt.inputs == {f"clean/{DAY}": 2}
    order = pipeline.value("SELECT dataflow.work_order(%s, %s)", attempt.attempt, attempt.token)
    assert [(chunk["location"], chunk["rows"]) for chunk in order["inputs"]["clean"]["chunks"]] == [
        (places[1], 3)
    ]


def test_a_version_that_is_ready_again_by_hand_tells_so_and_is_stale_by_what_made_it(pipeline: World) -> None:
    made(pipeline)
    daemon = pipeline.daemons[0]
    pipeline.set_status("clean", DAY, "RESUBMIT")
    daemon.fail(daemon.claim_one(), code="BAD")
    pipeline.set_status("clean", DAY, "READY")
    told = pipeline.value("SELECT detail FROM dataflow.why('clean_orders', %s) WHERE number = 0", DAY)
    assert told.startswith("attempt 1 on alpha made version 1, finished ")
    assert f", of raw/{DAY} v1; set to READY by hand " in told
    assert told.endswith(", after attempt 2 ended BAD")
    assert pipeline.rows("SELECT datasetid FROM dataflow.stale") == []
    pipeline.ready("raw", DAY)
    assert pipeline.rows("SELECT datasetid, because, input FROM dataflow.stale") == [
        ("clean", ["INPUT"], f"raw/{DAY}")
    ]
    # The consumer does not run again, since its input has not changed. The next version has a new number.
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert daemon.work_off() == [("clean_orders", DAY)]
    assert pipeline.rows(PUBLISHED) == [("READY", 2, 2, False)]


@pytest.mark.parametrize("typed", ["READY", "COMPLETE"])
@pytest.mark.parametrize("before", ["failed attempt", "never made", "collected"])
def test_ready_by_hand_is_refused_where_the_job_has_published_nothing(
    pipeline: World, before: str, typed: str
) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    if before == "failed attempt":
        daemon.fail(daemon.claim_one())
    elif before == "never made":
        pipeline.do("SELECT dataflow.hold('clean', %s)", DAY)
    else:
        daemon.finish(daemon.claim_one())
        pipeline.set_status("clean", DAY, "FAILED")
        pipeline.as_framework("UPDATE dataflow.manifest SET collected = now()")
    digest = pipeline.everything()
    with pytest.raises(psycopg.Error) as refused:
        pipeline.set_status("clean", DAY, typed)
    remedy = f"dataflowctl ready clean {DAY} registers data that was brought from outside"
    diagnosis = refused.value.diag
    assert (diagnosis.sqlstate, diagnosis.message_primary, diagnosis.message_hint) == (
        "DF409",
        f"clean/{DAY} cannot be set to READY by hand: there is no version of it that job clean_orders has published",
        f"{remedy}; status RESUBMIT has the job make it",
    )
    assert pipeline.everything() == digest


def test_data_brought_from_outside_takes_the_place_of_what_failed(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.fail(daemon.claim_one())
    pipeline.ready("clean", DAY)
    assert pipeline.rows(PUBLISHED) == [("READY", 1, None, True)]
    assert daemon.work_off() == [("sum_orders", DAY)]
    # FAILED and then READY by hand registers the same data from outside once more.
    pipeline.set_status("clean", DAY, "FAILED")
    pipeline.set_status("clean", DAY, "READY")
    assert pipeline.rows(PUBLISHED) == [("READY", 2, None, True)]


def test_a_source_chunk_that_was_set_aside_is_registered_again_by_ready(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.set_status("raw", DAY, "FAILED")
    pipeline.set_status("raw", DAY, "READY")
    pipeline.do("SELECT dataflow.hold('raw', '2026-01-02')")
    pipeline.set_status("raw", "2026-01-02", "READY")
    assert pipeline.rows(
        "SELECT dataid, version, external FROM dataflow.datastatus WHERE datasetid = 'raw' ORDER BY dataid"
    ) == [(DAY, 2, True), ("2026-01-02", 1, True)]


def test_a_chunk_that_was_published_before_it_was_held_is_the_same_when_set_ready(pipeline: World) -> None:
    made(pipeline)
    pipeline.set_status("clean", DAY, "HOLD")
    pipeline.set_status("clean", DAY, "READY")
    assert pipeline.rows(
        "SELECT version, manifest, external, held_from FROM dataflow.datastatus WHERE datasetid = 'clean' AND locktype = 'OUT'"
    ) == [(1, 1, False, None)]


def test_a_chunk_failed_by_hand_says_so(pipeline: World) -> None:
    made(pipeline)
    pipeline.do(
        "UPDATE dataflow.datastatus SET status = 'FAILED', reason = 'half empty' WHERE datasetid = 'sums'"
    )
    assert pipeline.rows("SELECT status, code, reason FROM dataflow.datastatus WHERE datasetid = 'sums'") == [
        ("FAILED", "BY_HAND", "half empty")
    ]


def test_an_update_may_set_the_reason_alone(pipeline: World) -> None:
    made(pipeline)
    assert pipeline.do("UPDATE dataflow.datastatus SET reason = 'seen' WHERE datasetid = 'sums'") == 1
    assert pipeline.status("sums", DAY) == "READY"


@pytest.mark.parametrize(
    ("statement", "sqlstate", "hint"),
    [
        (
            "UPDATE dataflow.datastatus SET status = 'FINISHED' WHERE datasetid = 'sums'",
            "DF400",
            "allowed are RESUBMIT, HOLD, PENDING, FAILED, READY (also RERUN, COMPLETE, ERROR)",
        ),
        (
            "UPDATE dataflow.datastatus SET status = 'FINISHED' WHERE locktype = 'IN'",
            "DF400",
            "an IN row is RUNNING, DONE or ERROR, and follows its run: set the status of the OUT row",
        ),
        (
            "UPDATE dataflow.datastatus SET status = 'RUNNING' WHERE datasetid = 'sums'",
            "DF409",
            "a claim sets RUNNING, and the attempt that holds the token publishes; RESUBMIT cancels it and runs again",
        ),
        (
            "INSERT INTO dataflow.datastatus (datasetid, dataid, run, status, external) VALUES ('raw', '1', '1', 'READY', true)",
            "DF409",
            "SELECT dataflow.ready(dataset, dataid) registers a chunk; SELECT dataflow.hold(dataset, dataid, reason) locks one",
        ),
        (
            "DELETE FROM dataflow.datastatus WHERE datasetid = 'sums'",
            "DF409",
            "SELECT dataflow.delete_chunk(dataset, dataid) forgets a chunk with all that belongs to it",
        ),
    ],
)
def test_a_wrong_update_is_refused_with_what_is_allowed(
    pipeline: World, statement: LiteralString, sqlstate: str, hint: str
) -> None:
    made(pipeline)
    before = pipeline.everything()
    with pytest.raises(psycopg.Error) as refused:
        pipeline.do(statement)
    assert (refused.value.sqlstate, refused.value.diag.message_hint) == (sqlstate, hint)
    assert pipeline.everything() == before


@pytest.mark.parametrize(
    "assignment",
    [
        "datasetid = 'raw'",
        "dataid = '2026-01-02'",
        "jobid = 'clean_orders'",
        "run = '2026-01-02'",
        "locktype = 'IN'",
        "attempt = 7",
        "version = 7",
        "manifest = NULL",
        "external = true",
        "validated = false",
        "held_from = 'READY'",
        "code = 'NONE'",
        "modified = now() + interval '1 day'",
        "sortkey = 'a'",
    ],
)
def test_an_update_may_set_only_status_and_reason(pipeline: World, assignment: LiteralString) -> None:
    made(pipeline)
    before = pipeline.everything()
    with pytest.raises(
        psycopg.Error, match=f"only status and reason of sums/{DAY} may be set by hand"
    ) as refused:
        pipeline.do("UPDATE dataflow.datastatus SET " + assignment + " WHERE datasetid = 'sums'")  # noqa: S608 - ours
    assert refused.value.sqlstate == "DF409"
    assert pipeline.everything() == before


def test_a_running_chunk_cannot_be_declared_ready(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    attempt = pipeline.daemon().claim_one()
    with pytest.raises(psycopg.Error, match=f"clean/{DAY} cannot be set to READY by hand") as refused:
        pipeline.set_status("clean", DAY, "READY")
    assert refused.value.sqlstate == "DF409"
    assert pipeline.daemons[0].finish(attempt) == "accepted"


def test_an_update_of_everything_is_all_or_nothing(pipeline: World) -> None:
    made(pipeline)
    pipeline.ready("raw", "2026-01-02")
    pipeline.daemons[0].claim_one()
    before = pipeline.everything()
    with pytest.raises(psycopg.Error):
        pipeline.do("UPDATE dataflow.datastatus SET status = 'READY'")
    assert pipeline.everything() == before


def test_the_concurrency_is_changed_by_one_update(pipeline: World) -> None:
    pipeline.ready("raw", *map(str, range(30)))
    pipeline.do("UPDATE dataflow.control SET concurrency = 20 WHERE scope = 'global'")
    assert len(pipeline.daemon().claim()) == 20
    assert pipeline.rows(
        "SELECT from_status, to_status, reason FROM dataflow.event WHERE kind = 'control' ORDER BY event DESC LIMIT 1"
    ) == [("100", "20", "global")]


def test_many_chunks_are_registered_by_one_call(pipeline: World) -> None:
    registered = pipeline.value(
        "SELECT dataflow.ready('raw', array_agg(n::text)) FROM generate_series(1, 20001) AS n"
    )
    assert registered == 20001
    assert pipeline.value("SELECT count(*) FROM dataflow.work") == 20001


def test_a_daemon_is_told_of_work_of_cancellations_and_of_control(pipeline: World) -> None:
    with psycopg.connect(pipeline.dsn, autocommit=True) as listener:
        listener.execute("LISTEN dataflow")

        def told() -> list[str]:
            return [notice.payload for notice in listener.notifies(timeout=5, stop_after=1)]

        pipeline.ready("raw", DAY)
        assert told() == ["work"]
        pipeline.daemon().claim_one()
        pipeline.do("SELECT dataflow.cancel('clean_orders', %s)", DAY)
        assert told() == ["cancel"]
        pipeline.do("UPDATE dataflow.control SET concurrency = 20 WHERE scope = 'global'")
        assert told() == ["control"]


def test_every_object_of_the_schema_has_a_comment(connection: psycopg.Connection) -> None:
    silent = connection.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'dataflow'::regnamespace AND proname NOT LIKE '\\_%'"
        " AND obj_description(oid, 'pg_proc') IS NULL"
        " UNION ALL"
        " SELECT relname FROM pg_class WHERE relnamespace = 'dataflow'::regnamespace AND relkind IN ('r', 'v')"
        " AND obj_description(oid, 'pg_class') IS NULL"
    ).fetchall()
    assert silent == []
