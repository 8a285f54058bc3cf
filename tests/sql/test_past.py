"""The five questions about the past: the evidence that an attempt keeps, and what the history says about a time when a run waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import Attempt, Daemon, World

DAY = "2026-01-01"
FOUND = {
    "inputs": {
        "raw": {"chunks": 1, "files": 2, "bytes": 34, "modified": "2026-01-01T05:00:00.000+00:00"},
    },
    "outputs": {"clean": "/data/clean/2026-01-01/.attempts/attempt=1"},
    "directory": "/flows",
}


def order_of(world: World, attempt: Attempt) -> Any:
    return world.value("SELECT dataflow.take_order(%s, %s)", attempt.attempt, attempt.token)


def told(world: World, attempt: Attempt) -> Any:
    return world.value("SELECT told FROM dataflow.evidence WHERE attempt = %s", attempt.attempt)


def answers(
    world: World, job: str, dataid: str, number: int
) -> dict[int, tuple[bool | None, str | None, str]]:
    rows = world.rows("SELECT * FROM dataflow.why_attempt(%s, %s, %s)", job, dataid, number)
    return {row[0]: (row[2], row[3], row[4]) for row in rows}


def at(world: World, moment: str, dataid: str = DAY) -> dict[int, tuple[bool | None, str | None, str]]:
    """Answers at a time before now; `moment` is an interval such as `2 hours`."""
    rows = world.rows(
        "SELECT * FROM dataflow.why_at('clean_orders', %s, clock_timestamp() - %s::interval)", dataid, moment
    )
    return {row[0]: (row[2], row[3], row[4]) for row in rows}


def days_pass(world: World, days: int) -> None:
    """Moves all timestamps so far into the past."""
    with world.connection.transaction():
        world.do("SET LOCAL ROLE dataflow_admin")
        back = f"{days} days"
        world.do("UPDATE dataflow.event SET at = at - %s::interval", back)
        world.do(
            "UPDATE dataflow.attempt SET claimed = claimed - %(d)s::interval, started = started - %(d)s::interval,"
            " ended = ended - %(d)s::interval".replace("%(d)s", "%s"),
            *[back] * 3,
        )
        world.do("UPDATE dataflow.manifest SET published = published - %s::interval", back)
        world.do("UPDATE dataflow.datastatus SET modified = modified - %s::interval", back)
        world.do("UPDATE dataflow.dataset SET modified = modified - %s::interval", back)


@pytest.fixture
def alpha(pipeline: World) -> Daemon:
    return pipeline.daemon()


def test_the_evidence_has_the_inputs_their_locations_and_who_registered_them(
    pipeline: World, alpha: Daemon
) -> None:
    pipeline.ready("raw", DAY)
    attempt = alpha.claim_one()
    assert order_of(pipeline, attempt) is not None
    kept = told(pipeline, attempt)
    [chunk] = kept["inputs"]["raw"]["listed"]
    assert (chunk["version"], chunk["status"], chunk["validated"]) == (1, "READY", True)
    assert chunk["location"] == f"/data/raw/{DAY}"
    assert chunk["by"].startswith(pipeline.value("SELECT session_user"))
    assert chunk["lock"] == f"IN RUNNING by clean_orders/{DAY}, version 1"
    assert kept["outputs"]["clean"]["lock"] == f"OUT RUNNING by attempt {attempt.attempt}"
    assert (kept["daemon"], kept["hostname"], kept["environment"]) == ("alpha", "host", "dev")


def test_the_evidence_names_the_attempt_that_made_an_input_and_its_checks(
    pipeline: World, alpha: Daemon
) -> None:
    pipeline.ready("raw", DAY)
    check = {"dataset": "clean", "name": "min_rows", "passed": True, "observed": "12", "expected": "1"}
    made = {"location": "/data/clean/there", "files": [{"path": "a", "bytes": 5}], "bytes": 5, "rows": 12}
    alpha.finish(alpha.claim_one(), outputs={"clean": made}, checks=[check])
    attempt = alpha.claim_one()
    order_of(pipeline, attempt)
    [chunk] = told(pipeline, attempt)["inputs"]["clean"]["listed"]
    assert chunk["by"] == "attempt 1 of clean_orders on alpha"
    assert (chunk["location"], chunk["files"], chunk["bytes"], chunk["rows"]) == (
        "/data/clean/there",
        1,
        5,
        12,
    )
    assert chunk["checks"] == [{"name": "min_rows", "passed": True, "observed": "12", "expected": "1"}]
    _, _, validated = answers(pipeline, "sum_orders", DAY, 1)[4]
    assert "min_rows passed (12, expected 1)" in validated


def test_the_evidence_has_what_was_measured_at_the_registration(pipeline: World, alpha: Daemon) -> None:
    pipeline.ready("raw", DAY)
    pipeline.as_framework(
        """INSERT INTO dataflow.measurement (datasetid, dataid, version, found) VALUES ('raw', '2026-01-01', 1, '{"files": 1, "bytes": 5}')"""
    )
    attempt = alpha.claim_one()
    order_of(pipeline, attempt)
    [chunk] = told(pipeline, attempt)["inputs"]["raw"]["listed"]
    assert chunk["registered"] == {"files": 1, "bytes": 5}


def test_an_attempt_that_lost_its_claim_gets_no_order_and_writes_no_evidence(
    pipeline: World, alpha: Daemon
) -> None:
    pipeline.ready("raw", DAY)
    attempt = alpha.claim_one()
    assert pipeline.value("SELECT dataflow.take_order(%s, gen_random_uuid())", attempt.attempt) is None
    assert pipeline.rows("SELECT FROM dataflow.evidence") == []


def test_of_very_many_inputs_the_evidence_lists_the_first_and_counts_the_others(world: World) -> None:
    every = [str(n) for n in range(1, 3001)]
    world.job("sum_month", {"hours": {"kind": "all", "dataids": every}}, "months")
    world.do("SELECT dataflow.ready('hours', array_agg(n::text)) FROM generate_series(1, 3000) AS n")
    alpha = world.daemon()
    attempt = alpha.claim_one()
    order_of(world, attempt)
    kept = told(world, attempt)["inputs"]["hours"]
    assert kept["chunks"] == 3000
    assert 0 < len(kept["listed"]) <= 50
    assert world.value("SELECT octet_length(told::text) FROM dataflow.evidence") <= 65536
    _, _, ready = answers(world, "sum_month", attempt.dataid, 1)[1]
    assert ready.endswith("(and 2995 more)")


def test_what_the_host_found_is_kept_with_the_result_and_bounded(pipeline: World, alpha: Daemon) -> None:
    pipeline.ready("raw", DAY, "2026-01-02")
    first, second = alpha.claim()
    order_of(pipeline, first)
    alpha.finish(first, found=FOUND)
    said = answers(pipeline, "clean_orders", DAY, 1)
    assert said[2][2] == "found raw: 2 files, 34 bytes, changed last 2026-01-01T05:00:00.000+00:00"
    assert f"raw/{DAY} at /data/raw/{DAY}" in said[3][2]
    assert "clean is written to /data/clean/2026-01-01/.attempts/attempt=1" in said[3][2]
    assert said[14][2].startswith("daemon alpha of host host, environment dev")
    alpha.finish(second, found={"inputs": {"raw": {"note": "x" * 70000}}})
    assert pipeline.value(
        "SELECT found FROM dataflow.evidence WHERE attempt = %s", second.attempt
    ).keys() == {"left_out"}


def test_an_attempt_that_runs_for_long_says_before_its_end_what_was_found(
    pipeline: World, alpha: Daemon
) -> None:
    pipeline.ready("raw", DAY)
    attempt = alpha.claim_one()
    order_of(pipeline, attempt)
    assert "has not yet said" in answers(pipeline, "clean_orders", DAY, 1)[2][2]
    began = "SELECT dataflow.began(%s, %s, 1.5, %s)"
    assert pipeline.value(began, attempt.attempt, attempt.token, Jsonb(FOUND)) is True
    assert pipeline.value(began, attempt.attempt, uuid4(), Jsonb({"inputs": {}})) is False
    alpha.crash()
    pipeline.daemon("beta").connection.execute("SELECT * FROM dataflow.rescue()")
    said = answers(pipeline, "clean_orders", DAY, 1)
    assert (said[0][1], said[2][2].startswith("found raw: 2 files")) == ("LOST", True)


@pytest.mark.parametrize(
    ("code", "name", "number"),
    [("WRONG_DATA", "right_data", 2), ("INVALID_PATH", "right_place", 3), ("NOT_VALIDATED", "validated", 4)],
)
def test_the_hosts_refusal_answers_the_question_of_its_code(
    pipeline: World, alpha: Daemon, code: str, name: str, number: int
) -> None:
    pipeline.ready("raw", DAY)
    attempt = alpha.claim_one()
    order_of(pipeline, attempt)
    alpha.fail(attempt, code=code)
    kept = pipeline.value("SELECT answers FROM dataflow.attempt")
    assert [key for key, value in kept.items() if value is False] == [name]
    assert kept["refused"] == {"code": code, "detail": "no such file"}
    answer, said, detail = answers(pipeline, "clean_orders", DAY, 1)[number]
    assert (answer, said) == (False, code)
    assert detail.startswith("the host found: no such file")
    assert pipeline.no("clean_orders", DAY)[code] == "attempt 1 found: no such file"


def test_a_refusal_code_after_the_job_has_begun_is_not_the_hosts_answer(
    pipeline: World, alpha: Daemon
) -> None:
    pipeline.ready("raw", DAY)
    attempt = alpha.claim_one()
    pipeline.do("SELECT dataflow.began(%s, %s, 0, NULL)", attempt.attempt, attempt.token)
    alpha.fail(attempt, code="WRONG_DATA")
    assert "refused" not in pipeline.value("SELECT answers FROM dataflow.attempt")
    assert set(pipeline.no("clean_orders", DAY)) == {"LOCKED"}


def test_the_answer_of_a_host_stands_until_something_changes(pipeline: World, alpha: Daemon) -> None:
    pipeline.ready("raw", DAY)
    alpha.fail(alpha.claim_one(), code="INVALID_PATH")
    assert set(pipeline.no("clean_orders", DAY)) == {"INVALID_PATH", "LOCKED"}
    pipeline.as_framework(
        "UPDATE dataflow.dataset SET location = '/data/other/{dataid}', modified = now() WHERE datasetid = 'raw'"
    )
    assert set(pipeline.no("clean_orders", DAY)) == {"LOCKED"}
    pipeline.resubmit(job="clean_orders")
    alpha.fail(alpha.claim_one(), code="WRONG_DATA")
    assert set(pipeline.no("clean_orders", DAY)) == {"WRONG_DATA", "LOCKED"}
    pipeline.ready("raw", DAY)
    assert set(pipeline.no("clean_orders", DAY)) == {"LOCKED"}
    pipeline.resubmit(job="clean_orders")
    assert pipeline.no("clean_orders", DAY) == {}


def test_the_questions_of_now_say_where_each_dataset_is(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    [[place]] = pipeline.rows(
        "SELECT detail FROM dataflow.five_questions('clean_orders', %s) WHERE number = 3", DAY
    )
    assert f"raw/{DAY} at /data/raw/{DAY}" in place
    assert f"clean is written below /data/clean/{DAY}" in place


def test_a_forced_attempt_keeps_what_the_questions_said(pipeline: World, alpha: Daemon) -> None:
    rows = alpha.connection.execute(
        "SELECT * FROM dataflow.claim_run(%s, %s, 'clean_orders', %s, true)",
        [alpha.name, alpha.incarnation, DAY],
    ).fetchall()
    assert len(rows) == 1
    answer, code, detail = answers(pipeline, "clean_orders", DAY, 1)[1]
    assert (answer, code, detail) == (False, "DATA_NOT_READY", f"raw/{DAY} is not there")


def test_a_time_when_the_run_was_running_is_answered_by_its_attempt(pipeline: World, alpha: Daemon) -> None:
    pipeline.ready("raw", DAY)
    attempt = alpha.claim_one()
    order_of(pipeline, attempt)
    alpha.fail(attempt, code="INVALID_PATH")
    days_pass(pipeline, 7)
    pipeline.as_framework(
        "UPDATE dataflow.attempt SET claimed = ended - interval '1 hour'",
    )
    said = at(pipeline, "7 days 30 minutes")
    assert said[0][1] == "FAILED"
    assert said[3][:2] == (False, "INVALID_PATH")


def test_a_time_when_the_run_waited_is_answered_by_history(pipeline: World, alpha: Daemon) -> None:
    pipeline.do("SELECT dataflow.hold('raw', %s, 'bad feed')", DAY)
    days_pass(pipeline, 1)
    pipeline.do("SELECT dataflow.release('raw', %s)", DAY)
    pipeline.ready("raw", DAY)
    days_pass(pipeline, 1)
    alpha.finish(alpha.claim_one())
    held, queued, done = at(pipeline, "36 hours"), at(pipeline, "12 hours"), at(pipeline, "0")
    assert held[5][:2] == (False, "LOCKED")
    assert "bad feed" in held[5][2]
    assert held[1][0] is not False, "a held chunk is a matter of question 5"
    assert queued[0][1] == "QUEUED"
    assert all(answer for answer, _, _ in list(queued.values())[1:])
    assert done[0][1] == "READY"
    assert done[5][:2] == (False, "LOCKED")


def test_a_chunk_that_was_not_there_then_says_when_it_came(pipeline: World) -> None:
    pipeline.ready("raw", "2025-12-31")
    days_pass(pipeline, 1)
    pipeline.ready("raw", DAY)
    answer, code, detail = at(pipeline, "12 hours")[1]
    assert (answer, code) == (False, "DATA_NOT_READY")
    assert detail.startswith(f"raw/{DAY} was not there; it came at ")


def test_the_past_knows_the_location_of_then(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    days_pass(pipeline, 1)
    pipeline.as_framework("UPDATE dataflow.dataset SET location = '/new/{dataid}' WHERE datasetid = 'raw'")
    assert f"raw/{DAY} at /data/raw/{DAY}" in at(pipeline, "12 hours")[3][2]
    assert f"raw/{DAY} at /new/{DAY}" in at(pipeline, "0")[3][2]


def test_the_past_knows_that_a_chunk_was_not_validated_then(pipeline: World) -> None:
    pipeline.ready("raw", DAY, validated=False)
    days_pass(pipeline, 1)
    pipeline.do("SELECT dataflow.validated('raw', %s)", DAY)
    assert at(pipeline, "12 hours")[4][:2] == (False, "NOT_VALIDATED")
    assert at(pipeline, "0")[4][0] is True


def test_a_time_before_the_kept_history_is_answered_with_that_limit(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    days_pass(pipeline, 100)
    pipeline.set_status("raw", DAY, "HOLD")
    pipeline.as_framework("DELETE FROM dataflow.event WHERE at < now() - interval '1 day'")
    answer, _, detail = at(pipeline, "50 days")[5]
    assert answer is None or "READY" in detail or "history begins" in detail


@pytest.mark.parametrize(
    ("statement", "state", "message"),
    [
        ("SELECT * FROM dataflow.five_questions_at('nosuch', '1', now())", "DF404", "there is no job nosuch"),
        ("SELECT * FROM dataflow.five_questions_at('clean_orders', 'a b', now())", "DF400", "not a dataid"),
        ("SELECT * FROM dataflow.five_questions_at('clean_orders', '1', NULL)", "DF400", "nothing is known"),
        (
            "SELECT * FROM dataflow.why_at('clean_orders', '1', now() + interval '1 day')",
            "DF400",
            "nothing is known of",
        ),
        (
            "SELECT * FROM dataflow.why_attempt('clean_orders', '1', 7)",
            "DF404",
            "clean_orders 1 has no attempt 7",
        ),
    ],
)
def test_a_question_that_cannot_be_answered_is_one_clear_error(
    pipeline: World, statement: Any, state: str, message: str
) -> None:
    with pytest.raises(psycopg.Error, match=message) as caught:
        pipeline.rows(statement)
    assert caught.value.sqlstate == state
    assert caught.value.diag.message_hint


def test_secrets_are_not_kept_in_evidence(pipeline: World, alpha: Daemon) -> None:
    pipeline.as_framework(
        """UPDATE dataflow.job SET params = '{"api_token": "s3cr3t", "url": "https://u:s3cr3t@host/x", "deep": [{"password": "s3cr3t"}], "day": 3}'"""
    )
    pipeline.ready("raw", DAY)
    attempt = alpha.claim_one()
    order_of(pipeline, attempt)
    kept = told(pipeline, attempt)
    assert "s3cr3t" not in str(kept)
    assert kept["params"]["day"] == 3
