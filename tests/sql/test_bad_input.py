"""Wrong input is refused with a message that says what is allowed, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import World

DAY = "2026-01-01"
UNKNOWN_JOB = "the jobs are: clean_orders, sum_orders"
UNKNOWN_DATASET = "the datasets are: clean, raw, sums, today"
DATAID = "a dataid is 1 to 128 letters, digits and . _ : + = -, and does not start with a dot or a dash"
STATUS = "allowed are RUNNING, READY, FAILED, RESUBMIT, PENDING, HOLD"
SCOPE = "scopes are global, job:<jobid> and daemon:<name>"
CONCURRENCY = "it is 0 or more; 0 starts nothing"
FINISH = "outcome is DONE, FAILED or RETURNED"


@pytest.mark.parametrize(
    ("statement", "sqlstate", "hint"),
    [
        ("SELECT * FROM dataflow.five_questions('nosuch', '1')", "DF404", UNKNOWN_JOB),
        ("SELECT * FROM dataflow.history('nosuch', '1')", "DF404", UNKNOWN_JOB),
        ("SELECT * FROM dataflow.next_inputs('nosuch')", "DF404", UNKNOWN_JOB),
        ("SELECT dataflow.cancel('nosuch', '1')", "DF404", UNKNOWN_JOB),
        ("SELECT * FROM dataflow.resubmit('{\"job\": \"nosuch\"}')", "DF404", UNKNOWN_JOB),
        ("SELECT dataflow.set_concurrency('job:nosuch', 1)", "DF404", UNKNOWN_JOB),
        ("SELECT dataflow.ready('nosuch', '1')", "DF404", UNKNOWN_DATASET),
        ("SELECT dataflow.ready(NULL, '1')", "DF404", UNKNOWN_DATASET),
        ("SELECT dataflow.hold('nosuch', '1')", "DF404", UNKNOWN_DATASET),
        ("SELECT dataflow.release('nosuch', '1')", "DF404", UNKNOWN_DATASET),
        ("SELECT dataflow.validated('nosuch', '1')", "DF404", UNKNOWN_DATASET),
        ("SELECT dataflow.delete_chunk('nosuch', '1')", "DF404", UNKNOWN_DATASET),
        ("SELECT * FROM dataflow.data_location('nosuch', '1')", "DF404", UNKNOWN_DATASET),
        ("SELECT * FROM dataflow.resubmit('{\"dataset\": \"nosuch\"}')", "DF404", UNKNOWN_DATASET),
        ("SELECT * FROM dataflow.resubmit('{\"status\": \"FINISHED\"}')", "DF400", STATUS),
        ("SELECT * FROM dataflow.resubmit('{\"status\": [\"READY\", \"DONE\"]}')", "DF400", STATUS),
        ("SELECT dataflow.set_concurrency('everything', 1)", "DF404", SCOPE),
        ("SELECT dataflow.pause('job:')", "DF404", SCOPE),
        ("INSERT INTO dataflow.control (scope, concurrency) VALUES ('daemon:a b', 1)", "DF404", SCOPE),
        ("SELECT dataflow.set_concurrency('global', -1)", "DF400", CONCURRENCY),
        ("SELECT dataflow.set_concurrency('global', NULL)", "DF400", CONCURRENCY),
        ("UPDATE dataflow.control SET concurrency = -1 WHERE scope = 'global'", "DF400", CONCURRENCY),
        ("SELECT dataflow.ready('raw', 'a/b')", "DF400", DATAID),
        ("SELECT dataflow.ready('raw', ARRAY['1', '2', '../etc'])", "DF400", DATAID),
        ("SELECT dataflow.ready('raw', ARRAY['1', NULL])", "DF400", DATAID),
        ("SELECT dataflow.ready('raw', '')", "DF400", DATAID),
        ("SELECT dataflow.ready('raw', repeat('x', 129))", "DF400", DATAID),
        ("SELECT dataflow.ready('raw', E'1\\n')", "DF400", DATAID),
        ("SELECT dataflow.hold('raw', '-x')", "DF400", DATAID),
        ("SELECT * FROM dataflow.five_questions('clean_orders', 'a b')", "DF400", DATAID),
        ("SELECT * FROM dataflow.data_location('raw', '.x')", "DF400", DATAID),
        ("SELECT * FROM dataflow.dataid_range('2026-01-01T00..9999-12-31T23')", "DF400", "register it in parts"),
        ("SELECT * FROM dataflow.claim_run('a', gen_random_uuid(), 'clean_orders', '1', NULL)", "DF400", "it is true or false"),
        ("SELECT dataflow.restored(0)", "DF400", "name more than were made since the backup; a million by default"),
        ("SELECT * FROM dataflow.finish('{}')", "DF400", FINISH),
        ("SELECT * FROM dataflow.finish(NULL)", "DF400", FINISH),
        ("SELECT * FROM dataflow.finish('[7]')", "DF400", FINISH),
        ("SELECT * FROM dataflow.finish('[{\"attempt\": 1, \"outcome\": \"DONE\"}]')", "DF400", FINISH),
        ("SELECT * FROM dataflow.finish('[{\"attempt\": 1, \"token\": \"x\", \"outcome\": \"DONE\"}]')", "DF400", FINISH),
        ("SELECT dataflow.release('raw', '2026-01-01')", "DF404", "SELECT * FROM dataflow.datastatus WHERE status IN ('HOLD', 'PENDING') lists those that are"),
        ("SELECT dataflow.validated('raw', '2026-01-07')", "DF404", "only a chunk that has arrived can be validated; dataflow.ready() registers it"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_what_is_allowed(
    pipeline: World, statement: LiteralString, sqlstate: str, hint: str
) -> None:
    pipeline.ready("raw", DAY)
    before = pipeline.everything()
    with pytest.raises(psycopg.Error) as refused:
        pipeline.do(statement)
    assert (refused.value.sqlstate, refused.value.diag.message_hint) == (sqlstate, hint)
    assert pipeline.everything() == before


def test_a_selector_with_an_unknown_key_is_refused(pipeline: World) -> None:
    with pytest.raises(psycopg.Error, match="a selector has no key chunk") as refused:
        pipeline.resubmit(chunk="1")
    assert refused.value.sqlstate == "DF400"
    assert "dataid" in (refused.value.diag.message_hint or "")


@pytest.mark.parametrize(
    "result",
    [
        {"outcome": "SUCCESS"},
        {"outcome": None},
        {"attempt": None},
        {"attempt": "one"},
        {"token": None},
        {"token": "abc"},
    ],
    ids=str,
)
def test_a_malformed_finish_ends_nothing_of_its_batch(pipeline: World, result: dict[str, Any]) -> None:
    pipeline.ready("raw", DAY, "2026-01-02")
    daemon = pipeline.daemon()
    good, bad = daemon.claim()
    before = pipeline.everything()
    results = [
        {"attempt": good.attempt, "token": str(good.token), "outcome": "DONE"},
        {"attempt": bad.attempt, "token": str(bad.token), "outcome": "DONE"} | result,
    ]
    with pytest.raises(psycopg.Error) as refused:
        daemon.connection.execute("SELECT * FROM dataflow.finish(%s)", [Jsonb(results)])
    assert (refused.value.sqlstate, refused.value.diag.message_hint) == ("DF400", FINISH)
    assert pipeline.everything() == before


def test_a_finish_with_a_wrong_token_is_fenced_and_changes_nothing(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    before = pipeline.everything()
    assert daemon.finish(attempt._replace(token=uuid4())) == "fenced"
    assert daemon.finish(attempt._replace(attempt=attempt.attempt + 1)) == "fenced"
    assert pipeline.everything() == before
    assert daemon.finish(attempt) == "accepted"


def test_an_empty_finish_changes_nothing(pipeline: World) -> None:
    assert pipeline.rows("SELECT * FROM dataflow.finish('[]')") == []


def test_a_resubmit_that_matches_nothing_is_a_count_of_zero(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    before = pipeline.everything()
    assert pipeline.resubmit(status="FAILED") == []
    assert pipeline.resubmit(job="clean_orders", dataid="1999-*", downstream=True) == []
    assert pipeline.do("UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE dataid = '1999-01-01'") == 0
    assert pipeline.everything() == before


def test_a_chunk_that_is_being_written_cannot_be_registered(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.daemon().claim_one()
    before = pipeline.everything()
    with pytest.raises(
        psycopg.Error, match=f"chunk clean/{DAY} is RUNNING and cannot be registered"
    ) as refused:
        pipeline.ready("clean", "2026-01-07", DAY)
    assert refused.value.sqlstate == "DF409"
    assert pipeline.everything() == before


def test_a_dataset_has_one_producer(pipeline: World) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        pipeline.do("INSERT INTO dataflow.job_output (jobid, datasetid) VALUES ('sum_orders', 'clean')")


@pytest.mark.parametrize(
    "statement",
    [
        # READY without a manifest, and not registered from outside
        "UPDATE dataflow.datastatus SET external = false WHERE datasetid = 'raw'",
        # RUNNING without an attempt
        "UPDATE dataflow.datastatus SET status = 'RUNNING', attempt = NULL WHERE datasetid = 'raw'",
        # HOLD without the status to go back to
        "UPDATE dataflow.datastatus SET status = 'HOLD' WHERE datasetid = 'raw'",
        # a status of IN rows on an OUT row
        "UPDATE dataflow.datastatus SET status = 'DONE' WHERE datasetid = 'raw'",
        # ended without an outcome
        "UPDATE dataflow.attempt SET ended = now()",
        # failed without a code
        "UPDATE dataflow.attempt SET ended = now(), outcome = 'FAILED', code = NULL",
        # a retry of an attempt that has not failed
        "UPDATE dataflow.attempt SET retry_at = now()",
    ],
)
def test_impossible_states_cannot_be_stored_by_anybody(pipeline: World, statement: LiteralString) -> None:
    pipeline.ready("raw", DAY)
    pipeline.daemon().claim_one()
    with pytest.raises(psycopg.errors.CheckViolation):
        pipeline.as_framework(statement)
