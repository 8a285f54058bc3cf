"""Reports for people and programs: history, counters, status, where data is and what comes next."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.fix_world import Row, World

DAY = "2026-01-01"
DAYS = [f"2026-01-{day:02}" for day in range(1, 11)]


def counted(world: World) -> dict[tuple[str, str, str], int]:
    """The numbers that chunk_count has to give, counted row by row."""
    found = world.rows(
        "SELECT datasetid, jobid, status, count(*) FROM dataflow.datastatus WHERE locktype = 'OUT' GROUP BY 1, 2, 3"
    )
    return {(dataset, job, status): chunks for dataset, job, status, chunks in found}


def test_the_history_has_the_events_of_a_run_in_order(world: World) -> None:
    world.job("join", ["orders", "customers"], "joined", max_attempts=2)
    world.ready("orders", DAY)
    world.ready("customers", DAY)
    daemon = world.daemon()
    daemon.fail(daemon.claim_one())
    world.later()
    daemon.finish(daemon.claim_one())
    world.set_status("joined", DAY, "RESUBMIT")
    world.do("SELECT dataflow.hold('joined', %s, 'wait')", DAY)
    assert world.history("join", DAY) == [
        "blocked DATA_NOT_READY",
        "queued",
        "-->RUNNING",
        "RUNNING->FAILED",
        "queued",
        "FAILED->RUNNING",
        "RUNNING->READY",
        "READY->RESUBMIT",
        "queued",
        "RESUBMIT->HOLD",
        "blocked LOCKED",
    ]


def test_history_has_every_change_of_what_a_run_waits_for_once(world: World) -> None:
    world.job("join", ["a", "b", "c"], "joined")
    world.ready("a", DAY)
    world.ready("b", DAY)
    world.ready("b", DAY)
    assert world.rows("SELECT reason FROM dataflow.history('join', %s)", DAY) == [
        (f"b/{DAY} is not there (and 1 more)",),
        (f"c/{DAY} is not there",),
    ]


def test_the_history_says_who_did_it_and_with_which_program(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon("alpha")
    daemon.finish(daemon.claim_one())
    with psycopg.connect(pipeline.dsn, autocommit=True, application_name="psql") as operator:
        operator.execute(
            "UPDATE dataflow.datastatus SET status = 'FAILED', reason = 'bad' WHERE datasetid = 'clean'"
        )
    assert pipeline.rows(
        "SELECT actor, application, to_status, code, reason FROM dataflow.history('clean_orders', %s)"
        " WHERE kind = 'status'",
        DAY,
    ) == [
        ("postgres", "dataflowd alpha", "RUNNING", None, None),
        ("postgres", "dataflowd alpha", "READY", None, None),
        ("postgres", "psql", "FAILED", "BY_HAND", "bad"),
    ]


def test_the_history_names_the_attempt_and_its_error(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    daemon.fail(attempt, code="OUT_OF_MEMORY")
    assert pipeline.rows(
        "SELECT attempt, code, reason FROM dataflow.history('clean_orders', %s) WHERE to_status = 'FAILED'",
        DAY,
    ) == [(attempt.attempt, "OUT_OF_MEMORY", "no such file")]


def test_young_history_is_kept_and_old_history_can_be_pruned(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.as_framework("UPDATE dataflow.event SET at = now() - interval '100 days' WHERE kind = 'queued'")
    assert pipeline.value("SELECT dataflow.prune('90 days')") == 1
    with pytest.raises(psycopg.Error) as refused:
        pipeline.do("SELECT dataflow.prune('1 hour')")
    assert refused.value.sqlstate == "DF400"


def test_counters_are_exact_after_anything_and_after_they_are_folded(pipeline: World) -> None:
    dice = random.Random(7)  # noqa: S311 - the same story at every run
    daemon = pipeline.daemon()
    pipeline.ready("raw", *DAYS)

    def finish() -> None:
        attempts = daemon.claim(3)
        for attempt in attempts:
            dice.choice([daemon.finish, daemon.fail])(attempt)

    def by_hand() -> None:
        chosen = dice.choice(["RESUBMIT", "FAILED", "HOLD", "PENDING"])
        dataset = dice.choice(["clean", "sums"])
        pipeline.set_status(dataset, dice.choice(DAYS), chosen)

    def forget() -> None:
        pipeline.do("SELECT dataflow.delete_chunk('sums', %s)", dice.choice(DAYS))

    for step in range(60):
        dice.choice([finish, finish, by_hand, forget])()
        assert pipeline.counts() == counted(pipeline)
        if step % 7 == 0:
            pipeline.do("SELECT dataflow.fold_counters()")
            assert pipeline.counts() == counted(pipeline)
    queued = "SELECT coalesce(sum(chunks), 0) FROM dataflow.counter WHERE locktype = 'WORK'"
    assert pipeline.value(queued) == len(pipeline.queue())


def test_folding_leaves_one_row_a_key(pipeline: World) -> None:
    pipeline.ready("raw", *DAYS)
    pipeline.daemon().work_off()
    pipeline.do("SELECT dataflow.fold_counters()")
    assert pipeline.value("SELECT count(*) FROM dataflow.counter") == 3


def test_counters_do_not_make_writers_wait_for_each_other(pipeline: World) -> None:
    with pipeline.session() as one, pipeline.session() as two:
        two.execute("SET lock_timeout = '1s'")
        one.execute("SELECT dataflow.ready('raw', '1')")
        two.execute("SELECT dataflow.ready('raw', '2')")
        pipeline.do("SELECT dataflow.fold_counters()")
        one.commit()
        two.commit()
    assert pipeline.counts() == counted(pipeline)


def test_the_status_has_one_row_a_job(pipeline: World) -> None:
    pipeline.ready("raw", *DAYS)
    daemon = pipeline.daemon()
    done, failed, *_ = daemon.claim(4)
    daemon.finish(done)
    daemon.fail(failed)
    pipeline.do("SELECT dataflow.hold('clean', %s)", DAYS[9])
    pipeline.do("SELECT dataflow.pause('job:sum_orders')")
    assert pipeline.rows(
        "SELECT jobid, ready, running, failed, resubmit, held, queued, paused FROM dataflow.status()"
    ) == [("clean_orders", 1, 2, 1, 0, 1, 5, False), ("sum_orders", 0, 0, 0, 0, 0, 1, True)]


def test_data_location_says_where_a_chunk_is(world: World) -> None:
    world.dataset(
        "raw", hostname="db1", database="shop", schemaname="public", tablename="orders", username="reader"
    )
    world.job("clean_orders", "raw", "clean")
    world.ready("raw", DAY)
    assert world.rows(
        "SELECT status, version, location, rows, hostname, tablename, username FROM dataflow.data_location('raw', %s)",
        DAY,
    ) == [("READY", 1, f"/data/raw/{DAY}", None, "db1", "orders", "reader")]
    where = "SELECT status, version, location, files, rows FROM dataflow.data_location('clean', %s)"
    assert world.rows(where, DAY) == [(None, None, f"/data/clean/{DAY}", None, None)]
    daemon = world.daemon()
    made = {"location": f"/data/clean/dataid={DAY}/attempt=1", "files": [{"path": "part-0"}], "rows": 5}
    daemon.finish(daemon.claim_one(), outputs={"clean": made})
    assert world.rows(where, DAY) == [("READY", 1, made["location"], made["files"], 5)]


def test_a_chunk_that_is_made_again_stays_published_until_an_operator_takes_it_away(world: World) -> None:
    world.job("clean_orders", "raw", "clean", max_attempts=1)
    world.ready("raw", DAY)
    daemon = world.daemon()
    daemon.finish(daemon.claim_one(), outputs={"clean": {"location": "/data/first", "rows": 5}})

    def published() -> list[Row]:
        return world.rows(
            "SELECT version, location, rows, status FROM dataflow.published WHERE datasetid = 'clean'"
        )

    assert published() == [(1, "/data/first", 5, "READY")]
    world.set_status("clean", DAY, "RESUBMIT")
    assert published() == [(1, "/data/first", 5, "RESUBMIT")]
    again = daemon.claim_one()
    assert published() == [(1, "/data/first", 5, "RUNNING")]
    daemon.fail(again)
    assert published() == [(1, "/data/first", 5, "FAILED")]
    for status in ("HOLD", "FAILED"):
        world.set_status("clean", DAY, status)
        assert published() == []
    # A rejected version stays unpublished until a newer one comes, or a person sets the chunk to READY.
    world.resubmit(dataid=DAY)
    assert published() == []
    again = daemon.claim_one()
    assert published() == []
    daemon.fail(again)
    assert published() == []
    assert world.rows("SELECT dataid FROM dataflow.published WHERE datasetid = 'raw'") == [(DAY,)]
    world.set_status("clean", DAY, "READY")
    assert published() == [(1, "/data/first", 5, "READY")]


def test_the_next_inputs_are_those_of_the_next_run_with_all_that_is_needed_to_read_them(world: World) -> None:
    world.job("join", ["orders", "customers"], "joined")
    world.ready("orders", "10", "9")
    world.ready("customers", "10", "9")
    upcoming = (
        "SELECT run, datasetid, dataid, status, location FROM dataflow.next_inputs('join') ORDER BY datasetid"
    )
    assert world.rows(upcoming) == [
        ("9", "customers", "9", "READY", "/data/customers/9"),
        ("9", "orders", "9", "READY", "/data/orders/9"),
    ]
    daemon = world.daemon()
    daemon.claim_one()
    assert {run for run, *_ in world.rows(upcoming)} == {"10"}
    daemon.claim_one()
    assert world.rows(upcoming) == []


def test_which_dataids_a_job_makes_of_an_input(world: World) -> None:
    week = {"kind": "window", "last": 3, "unit": "day"}
    world.job("trend", {"raw": week}, "trends")
    assert world.rows("SELECT * FROM dataflow.output_dataid('trend', 'raw', %s)", DAY) == [
        (DAYS[0],),
        (DAYS[1],),
        (DAYS[2],),
    ]
    with pytest.raises(psycopg.Error, match="job trend does not read dataset trends") as refused:
        world.rows("SELECT * FROM dataflow.output_dataid('trend', 'trends', %s)", DAY)
    assert refused.value.sqlstate == "DF404"


def test_five_questions_are_five_rows_with_their_answers(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    assert pipeline.rows(
        "SELECT number, question, answer FROM dataflow.five_questions('clean_orders', %s)", DAY
    ) == [
        (1, "Is the data ready?", True),
        (2, "Is it the right data?", True),
        (3, "Is it in the right place?", True),
        (4, "Has it been validated?", True),
        (5, "Is it safe to access?", True),
    ]


def test_what_is_paused_has_no_time_of_arrival(pipeline: World) -> None:
    pipeline.ready("raw", DAY, "2026-02-02")
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim(1)[0])

    def eta() -> Any:
        jobs = pipeline.value("SELECT dataflow.overview() -> 'jobs'")
        return next(job["eta_seconds"] for job in jobs if job["jobid"] == "clean_orders")

    assert eta() is not None
    pipeline.do("SELECT dataflow.pause('job:clean_orders')")
    assert eta() is None
    pipeline.do("SELECT dataflow.pause('job:clean_orders', false)")
    pipeline.do("SELECT dataflow.pause()")
    assert eta() is None


def test_runs_that_will_be_retried_need_no_hand(world: World) -> None:
    world.job("once", "raw", "first")
    world.job("again", "raw", "second", max_attempts=2)
    world.ready("raw", DAY)
    daemon = world.daemon()
    daemon.finish(*daemon.claim(), outcome="FAILED", code="NETWORK", error="no route")
    hands = world.value("SELECT dataflow.overview() -> 'needs_hand'")
    assert [hand["detail"] for hand in hands if hand["code"] == "NETWORK"] == [
        "1 run of 1 job FAILED: no route"
    ]


def test_why_appends_the_resubmit_to_the_remedy_once(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    told = {
        "error": "min_rows: 0\n  remedy: none of its words count",
        "remedy": "correct the data or the job",
    }
    daemon.finish(daemon.claim_one(), outcome="FAILED", code="CHECK_FAILED", **told)
    [[remedy]] = pipeline.rows("SELECT remedy FROM dataflow.why('clean_orders', %s) WHERE number = 0", DAY)
    assert remedy == f"correct the data or the job, then dataflowctl resubmit clean_orders --dataid {DAY}"
