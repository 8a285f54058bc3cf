"""The life of an attempt: fenced, cancelled, lost, rescued, retaken, and finished while an operator's transaction holds its rows."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_world import World  # noqa: TC001 - pytest shows the type of a fixture

DAY = "2026-01-01"
NEXT_DAY = "2026-01-02"


def rescued(world: World) -> list[tuple[str, str]]:
    return [(job, dataid) for job, dataid in world.rows("SELECT jobid, dataid FROM dataflow.rescue()")]


def test_resubmit_while_running_kills_the_token_at_once(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert pipeline.outcomes("clean_orders", DAY) == ["CANCELLED"]
    assert not daemon.connection.execute(
        "SELECT dataflow.started(%s, %s)", [attempt.attempt, attempt.token]
    ).fetchall()[0][0]
    assert daemon.finish(attempt) == "fenced"
    assert pipeline.status("clean", DAY) == "RESUBMIT"
    assert pipeline.value("SELECT count(*) FROM dataflow.manifest") == 0


def test_an_attempt_started_when_its_code_began_and_not_when_the_daemon_reported_it(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    ago = "SELECT dataflow.began(%s, %s, %s, NULL)"
    assert daemon.connection.execute(ago, [attempt.attempt, attempt.token, 3600.0]).fetchall() == [(True,)]
    assert pipeline.value("SELECT started = claimed FROM dataflow.attempt")
    pipeline.as_framework("UPDATE dataflow.attempt SET claimed = claimed - interval '1 hour'")
    daemon.connection.execute(ago, [attempt.attempt, attempt.token, 60.0])
    assert pipeline.value(
        "SELECT clock_timestamp() - started BETWEEN interval '60 s' AND interval '90 s' FROM dataflow.attempt"
    )


def test_a_result_tells_the_start_in_seconds_unless_it_was_told_before(pipeline: World) -> None:
    """The clock of the daemon's host does not count, so that no attempt has ended before it began."""
    pipeline.ready("raw", DAY, "2026-01-02", "2026-01-03")
    daemon = pipeline.daemon()
    told, short, unbegun = daemon.claim()
    pipeline.as_framework("UPDATE dataflow.attempt SET claimed = claimed - interval '1 hour'")
    pipeline.do("SELECT dataflow.began(%s, %s, 120, NULL)", told.attempt, told.token)
    daemon.finish(told, short, ran=60.0)
    daemon.fail(unbegun)
    assert pipeline.rows(
        "SELECT extract(epoch FROM ended - started)::int FROM dataflow.attempt ORDER BY attempt"
    ) == [
        (120,),
        (60,),
        (None,),
    ]


def test_the_message_for_attempts_of_a_restarted_daemon_does_not_blame_the_lease(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    first = pipeline.daemon()
    first.claim_one()
    first.disconnect()
    pipeline.daemon()
    assert rescued(pipeline) == [("clean_orders", DAY)]
    assert (
        pipeline.value("SELECT error FROM dataflow.attempt")
        == "daemon alpha was restarted; what it ran is lost"
    )


def test_a_daemon_learns_which_of_its_attempts_it_must_stop(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT_DAY)
    daemon = pipeline.daemon()
    first, second = daemon.claim()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert pipeline.rows(
        "SELECT dataflow.cancelled(%s, %s, %s)",
        *(daemon.name, daemon.incarnation, [first.attempt, second.attempt]),
    ) == [(first.attempt,)]


def test_resubmit_while_running_runs_again_here_after_the_daemon_let_go(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert daemon.claim() == []
    assert daemon.fail(attempt) == "fenced"
    pipeline.later()
    again = daemon.claim_one()
    assert (again.run, again.number) == (attempt.run, 2)
    assert daemon.finish(again) == "accepted"
    assert pipeline.version("clean", DAY) == 1


def test_resubmit_while_running_runs_elsewhere_only_after_the_lock_is_free(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    alpha, beta = pipeline.daemon("alpha"), pipeline.daemon("beta")
    attempt = alpha.claim_one()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert beta.claim() == []
    alpha.finish(attempt)
    pipeline.later()
    assert beta.runs() == {attempt.run}


def test_a_cancelled_run_of_a_daemon_that_is_cut_off_waits_for_the_end_of_its_lease(pipeline: World) -> None:
    """The daemon cannot learn of the cancellation, so its runner goes on until the lease ends."""
    pipeline.ready("raw", DAY)
    alpha, beta = pipeline.daemon("alpha"), pipeline.daemon("beta")
    attempt = alpha.claim_one()
    alpha.disconnect()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    assert beta.claim() == []
    alpha.expire()
    pipeline.later()
    assert beta.runs() == {attempt.run}


def test_a_cancelled_run_of_a_dead_daemon_runs_elsewhere(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    alpha = pipeline.daemon("alpha")
    attempt = alpha.claim_one()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    alpha.crash()
    assert pipeline.daemon("beta").runs() == {attempt.run}


def test_a_cancelled_run_fails_and_waits_for_resubmit(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    assert pipeline.value("SELECT dataflow.cancel('clean_orders', %s, 'wrong month')", DAY) is True
    assert pipeline.rows(
        "SELECT status, code, reason FROM dataflow.datastatus WHERE datasetid = 'clean'"
    ) == [("FAILED", "CANCELLED", "wrong month")]
    assert pipeline.consumed("raw", DAY, "clean_orders") == "ERROR"
    assert daemon.finish(attempt) == "fenced"
    assert daemon.claim() == []
    assert pipeline.value("SELECT dataflow.cancel('clean_orders', %s)", DAY) is False


def test_failing_a_running_chunk_by_hand_releases_its_inputs_and_its_other_outputs(world: World) -> None:
    world.job("prepare", "source", "raw")
    world.job("split", "raw", ["good", "bad"])
    world.ready("source", DAY)
    daemon = world.daemon()
    daemon.finish(daemon.claim_one())
    attempt = daemon.claim_one()
    world.set_status("good", DAY, "FAILED")
    assert daemon.finish(attempt) == "fenced"
    assert (world.status("bad", DAY), world.consumed("raw", DAY, "split")) == ("FAILED", "ERROR")
    world.set_status("raw", DAY, "RESUBMIT")
    world.set_status("bad", DAY, "RESUBMIT")
    world.later()
    assert daemon.work_off() == [("prepare", DAY), ("split", DAY)]


def test_a_hold_cancels_a_running_attempt_and_its_release_runs_it_again(world: World) -> None:
    world.job("split", "raw", ["good", "bad"])
    world.ready("raw", DAY)
    daemon = world.daemon()
    attempt = daemon.claim_one()
    assert world.value("SELECT dataflow.hold('good', %s, 'bad feed')", DAY) == "RUNNING"
    assert daemon.finish(attempt) == "fenced"
    assert daemon.claim() == []
    assert world.value("SELECT dataflow.release('good', %s)", DAY) == "RESUBMIT"
    assert daemon.work_off() == [("split", DAY)]


def test_rescue_needs_an_expired_lease_and_a_free_lock(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    daemon.expire()
    assert rescued(pipeline) == []
    daemon.disconnect()
    assert rescued(pipeline) == [attempt.run]
    assert pipeline.outcomes(*attempt.run) == ["LOST"]
    assert pipeline.daemon("beta").runs() == {attempt.run}


def test_rescue_leaves_a_lost_session_alone_while_its_lease_lasts(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.claim_one()
    daemon.disconnect()
    assert rescued(pipeline) == []
    daemon.expire()
    assert len(rescued(pipeline)) == 1


def test_what_a_stopped_daemon_still_held_is_rescued_at_once(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    pipeline.do("SELECT dataflow.stop_daemon(%s, %s)", daemon.name, daemon.incarnation)
    daemon.disconnect()
    assert rescued(pipeline) == [attempt.run]


def test_a_new_incarnation_makes_the_attempts_of_the_old_one_rescuable(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    old = pipeline.daemon()
    attempt = old.claim_one()
    old.disconnect()
    new = pipeline.daemon(old.name)
    assert rescued(pipeline) == [attempt.run]
    assert new.runs() == {attempt.run}


def test_a_name_is_not_taken_from_a_living_daemon(pipeline: World) -> None:
    daemon = pipeline.daemon()
    with pytest.raises(psycopg.Error, match="runs already, on host with pid 1") as refused:
        pipeline.daemon(daemon.name)
    assert refused.value.sqlstate == "DF409"
    assert daemon.claim() == []


def test_lost_attempts_do_not_spend_tries(world: World) -> None:
    world.job("flaky", "raw", "clean", max_attempts=2)
    world.ready("raw", DAY)
    for number in range(3):
        daemon = world.daemon(f"daemon{number}")
        daemon.claim_one()
        daemon.crash()
        rescued(world)
    survivor = world.daemon()
    for _ in range(2):
        survivor.fail(survivor.claim_one())
        world.later()
    assert survivor.claim() == []
    assert world.outcomes("flaky", DAY) == ["LOST"] * 3 + ["FAILED"] * 2


def test_a_run_that_loses_its_runner_max_lost_times_fails(world: World) -> None:
    world.job("killer", "raw", "clean", max_lost=2)
    world.ready("raw", DAY)
    for number in range(2):
        daemon = world.daemon(f"daemon{number}")
        daemon.claim_one()
        daemon.crash()
        rescued(world)
    assert world.rows("SELECT status, code, reason FROM dataflow.datastatus WHERE datasetid = 'clean'") == [
        ("FAILED", "LOST", "lost its runner 2 times")
    ]
    assert world.consumed("raw", DAY, "killer") == "ERROR"
    assert world.daemon().claim() == []


def test_resubmit_starts_counting_lost_runners_anew(world: World) -> None:
    world.job("killer", "raw", "clean", max_lost=2)
    world.ready("raw", DAY)
    for number in range(2):
        daemon = world.daemon(f"daemon{number}")
        daemon.claim_one()
        daemon.crash()
        rescued(world)
    world.resubmit(status="FAILED")
    daemon = world.daemon("daemon2")
    daemon.claim_one()
    daemon.crash()
    rescued(world)
    assert world.status("clean", DAY) == "RESUBMIT"


def test_attempts_given_back_at_shutdown_cost_nothing(world: World) -> None:
    world.job("flaky", "raw", "clean", max_attempts=2)
    world.ready("raw", DAY)
    daemon = world.daemon()
    assert daemon.finish(daemon.claim_one(), outcome="RETURNED") == "accepted"
    assert world.status("clean", DAY) == "RESUBMIT"
    assert world.consumed("raw", DAY, "flaky") is None
    daemon.claim_one()
    assert world.rows("SELECT number, tries, lost FROM dataflow.attempt ORDER BY number") == [
        (1, 1, 0),
        (2, 1, 0),
    ]


def test_after_a_reconnect_a_daemon_takes_its_attempts_again(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT_DAY)
    daemon = pipeline.daemon()
    first, second = daemon.claim()
    daemon.disconnect()
    assert daemon.reconnect() == [first.attempt, second.attempt]
    daemon.expire()
    assert rescued(pipeline) == []
    assert daemon.finish(first, second) == "accepted"


def test_after_a_reconnect_a_daemon_does_not_get_back_what_was_rescued_or_cancelled(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT_DAY)
    daemon = pipeline.daemon()
    first, second = daemon.claim()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    daemon.disconnect()
    assert daemon.reconnect() == [second.attempt]
    assert pipeline.daemon("beta").claim() == []
    daemon.crash()
    rescued(pipeline)
    daemon.reconnect()
    assert daemon.finish(first) == "fenced"
    assert daemon.finish(second) == "fenced"


def test_a_renewed_lease_counts_from_now_and_an_old_incarnation_renews_nothing(pipeline: World) -> None:
    daemon = pipeline.daemon()
    renew = "SELECT dataflow.renew_lease(%s, %s) > now() + interval '50 minutes'"
    daemon.expire()
    assert pipeline.value(renew, daemon.name, daemon.incarnation) is True
    old = daemon.incarnation
    daemon.crash()
    new = pipeline.daemon(daemon.name)
    assert pipeline.value(renew, daemon.name, old) is None
    assert new.claim() == []


def test_a_zombie_cannot_publish(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    zombie = pipeline.daemon("zombie")
    attempt = zombie.claim_one()
    zombie.crash()
    rescued(pipeline)
    living = pipeline.daemon("living")
    again = living.claim_one()
    zombie.reconnect()
    assert zombie.finish(attempt, outputs={"clean": {"rows": 1}}) == "fenced"
    assert pipeline.status("clean", DAY) == "RUNNING"
    assert living.finish(again, outputs={"clean": {"rows": 2}}) == "accepted"
    assert zombie.finish(attempt, outputs={"clean": {"rows": 1}}) == "fenced"
    assert pipeline.rows("SELECT version, attempt, rows FROM dataflow.manifest") == [(1, again.attempt, 2)]


def test_a_result_offered_twice_is_taken_once(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    assert daemon.finish(attempt) == "accepted"
    assert daemon.finish(attempt) == "fenced"
    assert pipeline.version("clean", DAY) == 1


def test_one_fenced_result_does_not_spoil_the_batch(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT_DAY)
    daemon = pipeline.daemon()
    first, second = daemon.claim()
    pipeline.set_status("clean", DAY, "RESUBMIT")
    results = [{"attempt": a.attempt, "token": str(a.token), "outcome": "DONE"} for a in (first, second)]
    verdicts = daemon.connection.execute("SELECT attempt, verdict FROM dataflow.finish(%s)", [Jsonb(results)])
    assert dict(verdicts.fetchall()) == {first.attempt: "fenced", second.attempt: "accepted"}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE dataid = '2026-01-01'",
        "UPDATE dataflow.datastatus SET status = 'HOLD' WHERE datasetid = 'clean' AND dataid = '2026-01-01'",
        "SELECT FROM dataflow.datastatus WHERE datasetid = 'clean' AND dataid = '2026-01-01' FOR UPDATE",
        "SELECT dataflow.cancel('clean_orders', '2026-01-01')",
    ],
)
def test_a_finish_does_not_wait_for_an_operators_open_transaction(pipeline: World, statement: str) -> None:
    pipeline.ready("raw", DAY, NEXT_DAY)
    daemon = pipeline.daemon()
    daemon.connection.execute("SET lock_timeout = '1s'")
    first, second = daemon.claim()
    with pipeline.session() as operator:
        operator.execute(statement.encode())
        assert daemon.finish(first) == "busy"
        assert daemon.finish(second) == "accepted"
        operator.rollback()
    assert daemon.finish(first) == "accepted"


def test_a_finish_that_was_busy_is_fenced_once_the_operator_commits(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    with pipeline.session() as operator:
        operator.execute("UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE datasetid = 'clean'")
        assert daemon.finish(attempt) == "busy"
        operator.commit()
    assert daemon.finish(attempt) == "fenced"


def test_a_consumer_finishes_while_its_input_is_in_an_operators_transaction(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    with pipeline.session() as operator:
        operator.execute("SELECT dataflow.ready('raw', %s)", [DAY])
        assert daemon.finish(attempt) == "accepted"


def test_a_finished_or_cancelled_run_leaves_no_lock_behind(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT_DAY, "2026-01-03", "2026-01-04")
    daemon = pipeline.daemon()
    done, failed, cancelled, returned = daemon.claim()
    pipeline.do("SELECT dataflow.cancel('clean_orders', %s)", cancelled.dataid)
    daemon.finish(done)
    daemon.fail(failed)
    daemon.fail(cancelled)
    daemon.finish(returned, outcome="RETURNED")
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
    assert pipeline.value(held, daemon.connection.info.backend_pid) == 0


def test_what_an_attempt_found_is_stored_with_it(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    daemon.finish(
        attempt,
        code_hash="c1",
        usage={"max_rss": 5},
        checks=[{"dataset": "clean", "name": "min_rows", "passed": True, "observed": "7", "expected": "1"}],
        nodes=[{"node": "parse", "items": 9, "successes": 7, "failures": 2, "seconds": 0.5}],
        quarantine=[{"item": "17", "reason": "no date", "details": {"line": "x;y"}}],
    )
    assert pipeline.rows("SELECT datasetid, name, passed, observed, expected FROM dataflow.check_result") == [
        ("clean", "min_rows", True, "7", "1")
    ]
    assert pipeline.rows("SELECT node, items, successes, failures, seconds FROM dataflow.node_stat") == [
        ("parse", 9, 7, 2, 0.5)
    ]
    assert pipeline.rows("SELECT jobid, dataid, itemid, reason, details FROM dataflow.quarantine") == [
        ("clean_orders", DAY, "17", "no date", {"line": "x;y"})
    ]
    assert pipeline.rows("SELECT outcome, code_hash, usage FROM dataflow.attempt") == [
        ("DONE", "c1", {"max_rss": 5})
    ]


def test_a_deleted_chunk_whose_input_is_there_is_made_again(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.work_off()
    assert pipeline.value("SELECT dataflow.delete_chunk('clean', %s)", DAY) is True
    again = daemon.claim_one()
    assert (again.run, again.number) == (("clean_orders", DAY), 2)
    assert daemon.finish(again) == "accepted"
    assert pipeline.value("SELECT dataflow.delete_chunk('clean', '2025-01-01')") is False


def test_versions_of_a_deleted_chunk_count_on_so_that_what_was_made_of_it_is_stale(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.work_off()
    versions = "SELECT datasetid, version FROM dataflow.published ORDER BY datasetid"
    assert pipeline.rows(versions) == [("clean", 1), ("raw", 1), ("sums", 1)]
    pipeline.do("SELECT dataflow.delete_chunk('clean', %s)", DAY)
    daemon.finish(daemon.claim_one())
    assert pipeline.rows(versions) == [("clean", 2), ("raw", 1), ("sums", 1)]
    stale = "SELECT datasetid, because, input FROM dataflow.stale"
    assert pipeline.rows(stale) == [("sums", ["INPUT"], f"clean/{DAY}")]
    # Versions also count on when the deleted chunk was held and released, and when it comes from outside.
    pipeline.do("SELECT dataflow.delete_chunk('clean', %s)", DAY)
    pipeline.do("SELECT dataflow.hold('clean', %s)", DAY)
    pipeline.do("SELECT dataflow.release('clean', %s)", DAY)
    daemon.finish(daemon.claim_one())
    pipeline.do("SELECT dataflow.delete_chunk('raw', %s)", DAY)
    pipeline.ready("raw", DAY)
    assert pipeline.rows(versions) == [("clean", 3), ("raw", 2), ("sums", 1)]
    assert ("clean", ["INPUT"], f"raw/{DAY}") in pipeline.rows(stale)


def test_a_chunk_that_is_being_written_or_read_is_not_deleted(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.daemon().claim_one()
    for dataset in ("raw", "clean"):
        with pytest.raises(psycopg.Error, match="is being written or read") as refused:
            pipeline.do("SELECT dataflow.delete_chunk(%s, %s)", dataset, DAY)
        assert refused.value.sqlstate == "DF409"
