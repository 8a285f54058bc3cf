"""Every line of the lock table, and the stories that follow from it."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
import pytest

from tests.fix_world import World  # noqa: TC001 - pytest shows the type of a fixture
from tests.judge import judge, look

DAY = "2026-01-01"
NEXT_DAY = "2026-01-02"


def test_out_running_nobody_reads_and_nobody_else_writes(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    assert pipeline.daemon().runs() == {("clean_orders", DAY)}
    assert pipeline.status("clean", DAY) == "RUNNING"
    assert pipeline.no("sum_orders", DAY) == {"DATA_NOT_READY": f"clean/{DAY} is RUNNING"}
    assert pipeline.no("clean_orders", DAY)["LOCKED"] == f"clean/{DAY} is being written"
    assert pipeline.daemon("beta").runs() == set()


def test_out_ready_everybody_reads_and_nobody_writes(pipeline: World) -> None:
    pipeline.job("audit", "clean", "audited")
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    assert pipeline.status("clean", DAY) == "READY"
    assert pipeline.no("clean_orders", DAY) == {
        "LOCKED": f"clean/{DAY} is published already (version 1); RESUBMIT rewrites it"
    }
    assert daemon.runs() == {("sum_orders", DAY), ("audit", DAY)}


def test_out_failed_nobody_reads_and_a_rerun_waits_for_resubmit(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.fail(daemon.claim_one())
    assert pipeline.status("clean", DAY) == "FAILED"
    assert pipeline.no("sum_orders", DAY) == {"DATA_NOT_READY": f"clean/{DAY} is FAILED"}
    assert pipeline.no("clean_orders", DAY) == {
        "LOCKED": f"clean/{DAY} has FAILED (JOB_FAILED) and waits for RESUBMIT"
    }
    assert daemon.runs() == set()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert daemon.runs() == {("clean_orders", DAY)}


def test_out_failed_waits_for_the_jobs_own_retry_policy(world: World) -> None:
    world.job("flaky", "raw", "clean", max_attempts=2)
    world.ready("raw", DAY)
    daemon = world.daemon()
    daemon.fail(daemon.claim_one())
    assert world.status("clean", DAY) == "FAILED"
    assert daemon.runs() == set()
    world.later()
    assert daemon.runs() == {("flaky", DAY)}


def test_out_resubmit_nobody_reads_and_the_framework_may_rewrite(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert pipeline.no("sum_orders", DAY) == {"DATA_NOT_READY": f"clean/{DAY} is RESUBMIT"}
    assert pipeline.no("clean_orders", DAY) == {}
    assert daemon.runs() == {("clean_orders", DAY)}


@pytest.mark.parametrize("status", ["PENDING", "HOLD"])
def test_out_pending_or_hold_is_locked_for_reading_and_writing(pipeline: World, status: str) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    pipeline.set_status("clean", DAY, status)
    assert pipeline.no("sum_orders", DAY) == {"LOCKED": f"clean/{DAY} is {status}"}
    assert pipeline.no("clean_orders", DAY) == {"LOCKED": f"clean/{DAY} is {status}"}
    assert daemon.runs() == set()


@pytest.mark.parametrize("how", ["HOLD", "PENDING", "hold()", "hold_chunks()"])
def test_a_hold_stops_the_readers_of_the_chunk_until_its_release(world: World, how: str) -> None:
    world.job("split", ["raw", "rates"], ["good", "bad"], max_attempts=2)
    world.job("copy", "raw", "copied")
    world.ready("raw", DAY, NEXT_DAY)
    world.ready("rates", DAY, NEXT_DAY)
    daemon = world.daemon()
    attempts = {attempt.run: attempt for attempt in daemon.claim()}
    statements = {
        "hold()": "SELECT dataflow.hold('raw', '2026-01-01', 'bad feed')",
        "hold_chunks()": """SELECT * FROM dataflow.hold_chunks('{"dataset": "raw", "dataid": "2026-01-01"}', 'bad feed')""",
    }
    if how in statements:
        world.do(statements[how])
    else:
        world.do(
            "UPDATE dataflow.datastatus SET status = %s, reason = 'bad feed' WHERE datasetid = 'raw' AND dataid = %s",
            *(how, DAY),
        )
    held = how if how == "PENDING" else "HOLD"
    for run in [("split", DAY), ("copy", DAY)]:
        assert world.outcomes(*run) == ["CANCELLED"]
        assert world.no(*run)["LOCKED"] == f"raw/{DAY} is {held}: bad feed"
        assert daemon.finish(attempts.pop(run)) == "fenced"
    assert {world.status(output, DAY) for output in ("good", "bad", "copied")} == {"RESUBMIT"}
    reason = world.value(
        "SELECT reason FROM dataflow.datastatus WHERE datasetid = 'good' AND dataid = %s", DAY
    )
    assert reason == f"stopped: raw/{DAY} is {held}: bad feed"
    assert (world.consumed("raw", DAY, "copy"), world.consumed("rates", DAY, "split")) == (None, None)
    # Attempts that read another chunk of the dataset go on.
    assert daemon.finish(*attempts.values()) == "accepted"
    assert daemon.claim() == []
    assert judge(world.connection) == []
    world.do("SELECT dataflow.release('raw', %s)", DAY)
    again = {attempt.run: attempt for attempt in daemon.claim()}
    assert again.keys() == {("split", DAY), ("copy", DAY)}
    # The cancelled attempt has spent no try: the first failure is retried.
    daemon.fail(again["split", DAY])
    assert world.value("SELECT count(*) FROM dataflow.attempt WHERE retry_at IS NOT NULL") == 1


def test_a_hold_that_is_not_committed_keeps_its_chunk_from_being_read(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    with pipeline.session() as other:
        other.execute("SELECT dataflow.hold('raw', %s)", [DAY])
        assert daemon.claim() == []
    pipeline.later()
    assert daemon.claim() == []
    assert pipeline.outcomes("clean_orders", DAY) == []


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_hold_whose_snapshot_is_older_than_the_reader_stops_it_at_the_next_claim(
    pipeline: World, isolation: LiteralString
) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    with pipeline.session() as other:
        other.execute("BEGIN ISOLATION LEVEL " + isolation)
        other.execute("SELECT FROM dataflow.job")
        attempt = daemon.claim_one()
        other.execute("SELECT dataflow.hold('raw', %s, 'bad feed')", [DAY])
    assert daemon.claim() == []
    assert pipeline.outcomes("clean_orders", DAY) == ["CANCELLED"]
    assert daemon.finish(attempt) == "fenced"
    assert judge(pipeline.connection) == []


def test_a_dry_run_of_hold_lists_what_it_would_stop(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT_DAY)
    daemon = pipeline.daemon()
    daemon.claim_one()
    shown = """SELECT dataid, was, stops FROM dataflow.hold_chunks('{"dataset": "raw"}', dry_run => true)"""
    assert pipeline.rows(shown) == [(DAY, "READY", [f"clean_orders {DAY}"]), (NEXT_DAY, "READY", [])]
    assert pipeline.outcomes("clean_orders", DAY) == [None]


def test_in_running_other_jobs_may_consume_the_chunk_too(world: World) -> None:
    world.job("one", "raw", "first")
    world.job("two", "raw", "second")
    world.ready("raw", DAY)
    assert world.daemon().claim_one().run == ("one", DAY)
    assert world.daemon("beta").runs() == {("two", DAY)}
    assert (world.consumed("raw", DAY, "one"), world.consumed("raw", DAY, "two")) == ("RUNNING", "RUNNING")


def test_in_done_the_job_will_not_consume_it_again(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.work_off()
    assert pipeline.consumed("raw", DAY, "clean_orders") == "DONE"
    pipeline.ready("raw", DAY)
    assert daemon.runs() == set()


def test_in_error_the_lock_is_released_for_a_rerun(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    daemon.fail(daemon.claim_one())
    assert pipeline.consumed("clean", DAY, "sum_orders") == "ERROR"
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert daemon.runs() == {("clean_orders", DAY)}


def test_without_a_row_there_is_no_lock(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    assert pipeline.status("clean", DAY) is None
    assert pipeline.no("clean_orders", DAY) == {}


def test_a_chunk_that_is_being_read_is_not_rewritten_before_its_readers_are_through(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    reading = daemon.claim_one()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert pipeline.no("clean_orders", DAY) == {"LOCKED": f"clean/{DAY} is being read by job sum_orders"}
    assert daemon.runs() == set()
    assert daemon.finish(reading) == "accepted"
    assert daemon.runs() == {("clean_orders", DAY)}


def test_why_advises_to_wait_for_the_reader_and_not_to_release_another_hold(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    daemon.claim_one()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    pipeline.do("SELECT dataflow.hold('raw', %s, 'a bad feed')", DAY)
    said = "SELECT detail || ': ' || remedy FROM dataflow.why('clean_orders', %s) WHERE number = 5"
    assert pipeline.value(said, DAY) == f"clean/{DAY} is being read by job sum_orders: wait until it is free"


def test_a_daemon_of_the_first_release_tells_the_remedy_in_its_error(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    told = "nothing is there\n  remedy: restore it, then resubmit"
    failed: dict[str, Any] = {"outcome": "FAILED", "code": "INVALID_PATH", "error": told, "retry": False}
    assert daemon.finish(daemon.claim_one(), **failed) == "accepted"
    assert pipeline.value("SELECT remedy FROM dataflow.attempt") == "restore it"


def test_a_run_is_claimed_finished_and_published(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    assert attempt.run == ("clean_orders", DAY)
    assert attempt.inputs == {f"raw/{DAY}": 1}
    published = {"clean": {"location": f"/data/clean/{DAY}/attempt=1", "rows": 10, "bytes": 200}}
    assert daemon.finish(attempt, outputs=published) == "accepted"
    assert pipeline.status("clean", DAY) == "READY"
    assert pipeline.consumed("raw", DAY, "clean_orders") == "DONE"
    assert pipeline.rows(
        "SELECT datasetid, dataid, version, attempt, rows, bytes FROM dataflow.manifest"
    ) == [("clean", DAY, 1, attempt.attempt, 10, 200)]


def test_dependent_jobs_run_one_after_the_other(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT_DAY)
    daemon = pipeline.daemon()
    assert daemon.work_off() == [
        ("clean_orders", DAY),
        ("clean_orders", NEXT_DAY),
        ("sum_orders", DAY),
        ("sum_orders", NEXT_DAY),
    ]
    assert pipeline.queue() == set()


def test_several_outputs_are_locked_published_and_failed_together(world: World) -> None:
    world.job("split", "raw", ["good", "bad"])
    world.ready("raw", DAY, NEXT_DAY)
    daemon = world.daemon()
    first, second = daemon.claim()
    assert [world.status(name, DAY) for name in ("good", "bad")] == ["RUNNING", "RUNNING"]
    daemon.finish(first)
    daemon.fail(second)
    assert [world.status(name, DAY) for name in ("good", "bad")] == ["READY", "READY"]
    assert [world.status(name, NEXT_DAY) for name in ("good", "bad")] == ["FAILED", "FAILED"]


def test_a_resubmit_of_one_output_takes_the_others_along(world: World) -> None:
    world.job("split", "raw", ["good", "bad"])
    world.ready("raw", DAY)
    daemon = world.daemon()
    daemon.work_off()
    world.set_status("good", DAY, "RESUBMIT")
    assert world.status("bad", DAY) == "RESUBMIT"
    daemon.work_off()
    assert (world.version("good", DAY), world.version("bad", DAY)) == (2, 2)


def test_several_inputs_are_all_waited_for(world: World) -> None:
    world.job("join", ["orders", "customers"], "joined")
    world.ready("orders", DAY)
    daemon = world.daemon()
    assert world.no("join", DAY) == {"DATA_NOT_READY": f"customers/{DAY} is not there"}
    assert daemon.runs() == set()
    world.ready("customers", DAY)
    attempt = daemon.claim_one()
    assert attempt.inputs == {f"customers/{DAY}": 1, f"orders/{DAY}": 1}


def test_a_job_without_data_runs_by_its_calendar(world: World) -> None:
    world.calendar("every_day", "daily", DAY)
    world.job("fetch", "every_day", "raw")
    daemon = world.daemon()
    world.do("SELECT dataflow.tick('2026-01-02 12:00Z')")
    assert daemon.runs() == {("fetch", DAY)}


def test_two_runs_of_one_job_on_different_dataids_at_a_time_but_never_two_on_the_same(
    pipeline: World,
) -> None:
    pipeline.ready("raw", DAY, NEXT_DAY)
    alpha, beta = pipeline.daemon("alpha"), pipeline.daemon("beta")
    assert alpha.claim_one().run == ("clean_orders", DAY)
    assert beta.runs() == {("clean_orders", NEXT_DAY)}
    with pytest.raises(psycopg.errors.UniqueViolation):
        pipeline.as_framework(
            "INSERT INTO dataflow.attempt (jobid, dataid, number, tries, daemon, incarnation, tag, inputs, answers)"
            " SELECT jobid, dataid, number + 1, 1, daemon, incarnation, tag, inputs, answers FROM dataflow.attempt"
        )


def test_a_consumer_fails_and_is_rerun_without_its_producer(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    daemon.fail(daemon.claim_one())
    assert pipeline.resubmit(status="FAILED") == [("sum_orders", DAY, "FAILED")]
    assert daemon.work_off() == [("sum_orders", DAY)]
    assert pipeline.version("clean", DAY) == 1


def test_a_producer_found_invalid_after_its_consumer_failed_is_rewritten_before_it(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    daemon.fail(daemon.claim_one())
    pipeline.set_status("clean", DAY, "FAILED")
    pipeline.set_status("sums", DAY, "RESUBMIT")
    assert daemon.runs() == set()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert daemon.work_off() == [("clean_orders", DAY), ("sum_orders", DAY)]
    assert pipeline.version("clean", DAY) == 2


def test_a_chunk_that_arrived_unvalidated_is_not_used(pipeline: World) -> None:
    pipeline.ready("raw", DAY, validated=False)
    daemon = pipeline.daemon()
    assert pipeline.no("clean_orders", DAY) == {
        "NOT_VALIDATED": f"raw/{DAY} has arrived, but is not validated"
    }
    assert daemon.runs() == set()
    pipeline.do("SELECT dataflow.validated('raw', %s)", DAY)
    assert daemon.runs() == {("clean_orders", DAY)}


def test_a_validation_can_be_withdrawn(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.do("SELECT dataflow.validated('raw', %s, false, 'half a file')", DAY)
    assert pipeline.queue() == set()
    assert pipeline.daemon().runs() == set()


def test_data_without_a_place_is_not_used(world: World) -> None:
    world.dataset("clean", location=None)
    world.job("clean_orders", "raw", "clean")
    world.ready("raw", DAY)
    assert world.no("clean_orders", DAY) == {
        "INVALID_PATH": "dataset clean has neither a location nor a table"
    }


def test_datasets_of_two_environments_do_not_meet(world: World) -> None:
    world.dataset("raw", environment="prod")
    world.dataset("clean", environment="test")
    world.job("clean_orders", "raw", "clean")
    world.ready("raw", DAY)
    assert world.no("clean_orders", DAY) == {
        "INVALID_PATH": "its datasets belong to different environments: prod and test"
    }


@pytest.mark.parametrize("bound", ["raw", "clean"])
def test_a_daemon_reads_and_writes_only_what_is_of_its_environment(world: World, bound: str) -> None:
    world.dataset(bound, environment="prod")
    world.job("clean_orders", "raw", "clean")
    world.ready("raw", DAY)
    assert world.daemon("tester", environment="test").runs() == set()
    assert world.daemon("producer", environment="prod").runs() == {("clean_orders", DAY)}


def test_a_dataid_that_a_mapping_does_not_know_is_the_wrong_data(world: World) -> None:
    world.job("report", {"raw": {"kind": "offset", "by": -1, "unit": "day"}}, "out")
    assert world.no("report", "north") == {
        "WRONG_DATA": "raw has no input chunk for dataid north: its mapping does not know such ids"
    }


def test_a_retired_job_does_not_run(pipeline: World) -> None:
    pipeline.do("UPDATE dataflow.job SET retired = now() WHERE jobid = 'clean_orders'")
    pipeline.ready("raw", DAY)
    assert pipeline.no("clean_orders", DAY) == {
        "LOCKED": "the job is retired: its flow no longer declares it"
    }
    assert pipeline.daemon().runs() == set()


def test_each_code_is_that_of_its_question_also_for_the_second_judge(world: World) -> None:
    """A code belongs to one of the five questions, so that a reader knows which one is meant."""
    world.job("clean_orders", ["raw", "rates"], "clean")
    world.job("late", {"raw": {"kind": "offset", "by": -1, "unit": "day"}}, "later")
    world.dataset("homeless", location=None)
    world.job("lost", "raw", "homeless")
    days = [f"2026-01-0{day}" for day in range(1, 8)]
    world.ready("raw", *days, "north")
    world.ready("rates", *days[1:])
    world.set_status("raw", days[1], "HOLD")
    world.set_status("rates", days[2], "PENDING")
    world.set_status("rates", days[3], "FAILED")
    world.do("SELECT dataflow.validated('rates', %s, false)", days[4])
    world.do("SELECT dataflow.hold('clean', %s)", days[5])
    expected = {
        ("clean_orders", days[0]): "DATA_NOT_READY",
        ("clean_orders", days[1]): "LOCKED",
        ("clean_orders", days[2]): "LOCKED",
        ("clean_orders", days[3]): "DATA_NOT_READY",
        ("clean_orders", days[4]): "NOT_VALIDATED",
        ("clean_orders", days[5]): "LOCKED",
        ("clean_orders", days[6]): None,
        ("late", days[2]): "LOCKED",
        ("late", "north"): "WRONG_DATA",
        ("lost", days[6]): "INVALID_PATH",
    }
    assert {run: next(iter(world.no(*run)), None) for run in expected} == expected
    second = look(world.connection)
    assert {run: second.code(run) for run in expected} == expected
