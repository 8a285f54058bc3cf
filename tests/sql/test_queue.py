"""Which runs are claimed, in which order, and how many: retries, priority, strict order, limits, pauses, fairness."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest

from tests.fix_world import PLENTY, World

DAYS = [f"2026-01-{day:02}" for day in range(1, 31)]


def test_a_failed_run_is_tried_max_attempts_times_and_then_stays_failed(world: World) -> None:
    world.job("flaky", "raw", "clean", max_attempts=3)
    world.ready("raw", DAYS[0])
    daemon = world.daemon()
    for _ in range(3):
        daemon.fail(daemon.claim_one())
        world.later()
    assert daemon.runs() == set()
    assert world.outcomes("flaky", DAYS[0]) == ["FAILED", "FAILED", "FAILED"]
    assert world.no("flaky", DAYS[0])["LOCKED"].endswith("waits for RESUBMIT")


def test_the_delay_between_tries_doubles_within_a_fifth(world: World) -> None:
    world.job("flaky", "raw", "clean", max_attempts=4, retry_delay="10 seconds")
    world.ready("raw", *DAYS)
    daemon = world.daemon()
    for expected in (10, 20, 40):
        daemon.fail(*daemon.claim())
        delays = [
            float(delay)
            for [delay] in world.rows(
                "SELECT extract(epoch FROM retry_at - ended) FROM dataflow.attempt"
                " WHERE ended = (SELECT max(ended) FROM dataflow.attempt)"
            )
        ]
        assert len(set(delays)) > 1
        assert expected * 0.9 <= min(delays) <= max(delays) <= expected * 1.1
        world.later()


def test_a_retry_waits_until_it_is_due(world: World) -> None:
    world.job("flaky", "raw", "clean", max_attempts=2, retry_delay="30 minutes")
    world.ready("raw", DAYS[0])
    daemon = world.daemon()
    daemon.fail(daemon.claim_one())
    assert world.value("SELECT not_before > now() + interval '26 minutes' FROM dataflow.work")
    assert daemon.runs() == set()
    world.later()
    assert daemon.runs() == {("flaky", DAYS[0])}


def test_a_job_may_set_the_time_of_its_retry_or_rule_it_out(world: World) -> None:
    world.job("flaky", "raw", "clean", max_attempts=5)
    world.ready("raw", DAYS[0], DAYS[1])
    daemon = world.daemon()
    first, second = daemon.claim()
    daemon.fail(first, retry_after=7200)
    daemon.fail(second, retry=False)
    assert world.rows(
        "SELECT dataid, extract(epoch FROM retry_at - ended)::int FROM dataflow.attempt ORDER BY dataid"
    ) == [(DAYS[0], 7200), (DAYS[1], None)]
    assert world.queue() == {("flaky", DAYS[0])}


def test_a_resubmit_does_not_wait_for_the_retry_and_starts_counting_anew(world: World) -> None:
    world.job("flaky", "raw", "clean", max_attempts=2, retry_delay="30 minutes")
    world.ready("raw", DAYS[0])
    daemon = world.daemon()
    daemon.fail(daemon.claim_one())
    world.set_status("clean", DAYS[0], "RESUBMIT")
    daemon.fail(daemon.claim_one())
    world.later()
    assert daemon.runs() == {("flaky", DAYS[0])}
    assert world.rows("SELECT number, tries FROM dataflow.attempt ORDER BY number") == [
        (1, 1),
        (2, 1),
        (3, 2),
    ]


def test_a_held_retry_goes_on_where_it_was_when_it_is_released(world: World) -> None:
    world.job("flaky", "raw", "clean", max_attempts=2)
    world.ready("raw", DAYS[0])
    daemon = world.daemon()
    daemon.fail(daemon.claim_one())
    world.do("SELECT dataflow.hold('clean', %s)", DAYS[0])
    world.later()
    assert daemon.runs() == set()
    assert world.value("SELECT dataflow.release('clean', %s)", DAYS[0]) == "FAILED"
    assert daemon.runs() == {("flaky", DAYS[0])}
    assert world.rows("SELECT number, tries FROM dataflow.attempt ORDER BY number") == [(1, 1), (2, 2)]


def test_the_smallest_dataid_comes_first_in_natural_order(world: World) -> None:
    world.job("count", "raw", "clean")
    world.ready("raw", "10", "9", "1.10", "1.9")
    daemon = world.daemon()
    assert [daemon.claim_one().dataid for _ in range(4)] == ["1.9", "1.10", "9", "10"]


def test_a_dataset_may_be_ordered_as_text(world: World) -> None:
    world.dataset("clean", ordering="text")
    world.job("count", "raw", "clean")
    world.ready("raw", "9", "10")
    daemon = world.daemon()
    assert [daemon.claim_one().dataid for _ in range(2)] == ["10", "9"]


def test_a_higher_priority_is_claimed_first(world: World) -> None:
    world.job("slow", "raw", "later_please", priority=-1)
    world.job("usual", "raw", "clean")
    world.job("urgent", "raw", "first_please", priority=5)
    world.ready("raw", *DAYS[:3])
    daemon = world.daemon()
    assert [daemon.claim_one().job for _ in range(9)] == ["urgent"] * 3 + ["usual"] * 3 + ["slow"] * 3


def test_strict_order_waits_until_every_earlier_dataid_is_ready(world: World) -> None:
    world.job("ledger", "raw", "book", strict_order=True)
    world.ready("raw", *DAYS[:3])
    daemon = world.daemon()
    for day in DAYS[:3]:
        attempt = daemon.claim_one()
        assert attempt.dataid == day
        assert daemon.claim() == []
        daemon.finish(attempt)


def test_strict_order_waits_for_a_failed_one(world: World) -> None:
    world.job("ledger", "raw", "book", strict_order=True)
    world.ready("raw", *DAYS[:2])
    daemon = world.daemon()
    daemon.fail(daemon.claim_one())
    assert world.no("ledger", DAYS[1]) == {"WRONG_DATA": f"{DAYS[0]} comes first: the job keeps strict order"}
    assert daemon.claim() == []
    world.resubmit(status="FAILED")
    assert daemon.work_off() == [("ledger", DAYS[0]), ("ledger", DAYS[1])]


def test_strict_order_lets_a_late_earlier_dataid_go_first(world: World) -> None:
    world.job("ledger", "raw", "book", strict_order=True)
    world.ready("raw", DAYS[1], DAYS[2])
    world.ready("raw", DAYS[0])
    assert world.queue() == {("ledger", DAYS[0])}
    assert world.daemon().work_off() == [("ledger", day) for day in DAYS[:3]]


def test_strict_order_holds_for_published_ones_that_are_resubmitted(world: World) -> None:
    world.job("ledger", "raw", "book", strict_order=True)
    world.ready("raw", *DAYS[:3])
    daemon = world.daemon()
    daemon.work_off()
    world.ready("raw", DAYS[3])
    world.set_status("book", DAYS[2], "RESUBMIT")
    world.set_status("book", DAYS[0], "RESUBMIT")
    assert world.queue() == {("ledger", DAYS[0])}
    assert daemon.work_off() == [("ledger", DAYS[0]), ("ledger", DAYS[2]), ("ledger", DAYS[3])]


def test_strict_order_waits_for_a_dataid_whose_input_is_still_to_come(world: World) -> None:
    world.job("prepare", "source", "raw")
    world.job("ledger", "raw", "book", strict_order=True)
    world.ready("source", *DAYS[:2])
    daemon = world.daemon()
    first, second = daemon.claim()
    daemon.fail(first)
    daemon.finish(second)
    assert daemon.claim() == []
    world.resubmit(status="FAILED")
    assert daemon.work_off() == [("prepare", DAYS[0]), ("ledger", DAYS[0]), ("ledger", DAYS[1])]


def test_strict_order_forgets_a_chunk_that_was_held_and_never_came(world: World) -> None:
    world.job("ledger", "raw", "book", strict_order=True)
    world.do("SELECT dataflow.hold('book', %s)", DAYS[0])
    world.ready("raw", DAYS[1])
    daemon = world.daemon()
    assert daemon.claim() == []
    world.do("SELECT dataflow.release('book', %s)", DAYS[0])
    assert daemon.runs() == {("ledger", DAYS[1])}


def test_strict_order_forgets_an_input_that_was_deleted(world: World) -> None:
    world.job("ledger", "raw", "book", strict_order=True)
    world.ready("raw", *DAYS[:2])
    world.do("SELECT dataflow.delete_chunk('raw', %s)", DAYS[0])
    assert world.queue() == {("ledger", DAYS[1])}


def test_a_job_never_exceeds_its_own_limit(world: World) -> None:
    world.job("heavy", "raw", "clean", max_running=3)
    world.ready("raw", *DAYS)
    alpha, beta = world.daemon("alpha"), world.daemon("beta")
    running = alpha.claim(2)
    assert len(beta.claim(2)) == 1
    assert alpha.claim() == []
    alpha.finish(running[0])
    assert len(beta.claim()) == 1


def test_a_control_row_overrides_a_jobs_own_limit_at_once(world: World) -> None:
    world.job("heavy", "raw", "clean", max_running=3)
    world.ready("raw", *DAYS)
    daemon = world.daemon()
    assert len(daemon.claim()) == 3
    world.do("SELECT dataflow.set_concurrency('job:heavy', 5)")
    assert len(daemon.claim()) == 2
    world.do("SELECT dataflow.set_concurrency('job:heavy', NULL)")
    assert daemon.claim() == []


def test_the_global_limit_is_exact_over_all_daemons(world: World) -> None:
    world.job("count", "raw", "clean")
    world.ready("raw", *DAYS)
    alpha, beta = world.daemon("alpha"), world.daemon("beta")
    world.do("UPDATE dataflow.control SET concurrency = 4 WHERE scope = 'global'")
    assert len(alpha.claim(3)) == 3
    assert len(beta.claim(3)) == 1
    world.do("UPDATE dataflow.control SET concurrency = 2 WHERE scope = 'global'")
    assert alpha.claim() == beta.claim() == []
    world.do("UPDATE dataflow.control SET concurrency = 5 WHERE scope = 'global'")
    assert len(beta.claim()) == 1


def test_a_daemon_has_a_limit_of_its_own(world: World) -> None:
    world.job("count", "raw", "clean")
    world.ready("raw", *DAYS)
    world.do("SELECT dataflow.set_concurrency('daemon:alpha', 2)")
    assert len(world.daemon("alpha").claim()) == 2
    assert len(world.daemon("beta").claim()) == len(DAYS) - 2


@pytest.mark.parametrize("scope", ["global", "job:count", "daemon:alpha"])
def test_a_paused_scope_starts_nothing_and_lets_what_runs_go_on(world: World, scope: str) -> None:
    world.job("count", "raw", "clean")
    world.ready("raw", *DAYS)
    daemon = world.daemon("alpha")
    running = daemon.claim_one()
    world.do("SELECT dataflow.pause(%s)", scope)
    assert daemon.claim() == []
    assert daemon.finish(running) == "accepted"
    world.do("SELECT dataflow.pause(%s, false)", scope)
    assert len(daemon.claim()) == len(DAYS) - 1


def test_a_pause_keeps_the_limit(world: World) -> None:
    world.do("SELECT dataflow.set_concurrency('global', 7)")
    world.do("SELECT dataflow.pause()")
    world.do("SELECT dataflow.pause('global', false)")
    assert world.value("SELECT concurrency FROM dataflow.control WHERE scope = 'global'") == 7


def test_a_paused_job_or_daemon_does_not_stop_the_others(world: World) -> None:
    world.job("one", "raw", "first")
    world.job("two", "raw", "second")
    world.ready("raw", DAYS[0])
    world.do("SELECT dataflow.pause('job:one')")
    world.do("SELECT dataflow.pause('daemon:alpha')")
    assert world.daemon("alpha").claim() == []
    assert world.daemon("beta").runs() == {("two", DAYS[0])}


def test_a_large_backfill_cannot_starve_another_job(world: World) -> None:
    world.job("backfill", "history", "restored")
    world.job("daily", "raw", "clean")
    world.do("SELECT dataflow.set_concurrency('global', 10)")
    world.do("SELECT dataflow.ready('history', array_agg(n::text)) FROM generate_series(1, 2000) AS n")
    daemon = world.daemon()
    running = daemon.claim()
    assert Counter(a.job for a in running) == {"backfill": 10}
    world.ready("raw", *DAYS)
    daemon.finish(*running[:5])
    assert Counter(a.job for a in daemon.claim()) == {"daily": 5}
    daemon.finish(*running[5:])
    assert Counter(a.job for a in daemon.claim()) == {"backfill": 5}


def test_a_job_at_its_limit_leaves_the_places_to_others(world: World) -> None:
    world.job("heavy", "raw", "clean", max_running=1, priority=10)
    world.job("light", "raw", "dust")
    world.ready("raw", *DAYS)
    world.do("SELECT dataflow.set_concurrency('global', 6)")
    assert Counter(a.job for a in world.daemon().claim()) == {"heavy": 1, "light": 5}


def test_a_claim_of_zero_or_fewer_runs_claims_nothing(world: World) -> None:
    world.job("count", "raw", "clean")
    world.ready("raw", *DAYS)
    daemon = world.daemon()
    assert daemon.claim(0) == []
    assert daemon.claim(-1) == []


def test_a_claim_refuses_what_changed_since_it_was_queued_and_says_why(pipeline: World) -> None:
    pipeline.ready("raw", DAYS[0])
    pipeline.as_framework(
        "ALTER TABLE dataflow.datastatus DISABLE TRIGGER datastatus_updated",
        "UPDATE dataflow.datastatus SET status = 'FAILED' WHERE datasetid = 'raw'",
        "ALTER TABLE dataflow.datastatus ENABLE TRIGGER datastatus_updated",
    )
    assert pipeline.queue() == {("clean_orders", DAYS[0])}
    assert pipeline.daemon().claim() == []
    assert pipeline.queue() == set()
    assert pipeline.rows("SELECT jobid, dataid, code, reason FROM dataflow.event WHERE kind = 'refused'") == [
        ("clean_orders", DAYS[0], "DATA_NOT_READY", f"raw/{DAYS[0]} is FAILED")
    ]


def test_the_answers_at_the_moment_of_the_claim_are_kept(pipeline: World) -> None:
    pipeline.ready("raw", DAYS[0])
    pipeline.daemon().claim()
    assert pipeline.value("SELECT answers FROM dataflow.attempt") == dict.fromkeys(
        ["ready", "right_data", "right_place", "validated", "safe"], True
    )


@pytest.mark.parametrize("commits_first", ["orders", "customers"])
def test_two_inputs_that_arrive_in_open_transactions_at_a_time_make_one_run(
    world: World, commits_first: str
) -> None:
    world.job("join", ["orders", "customers"], "joined")
    daemon = world.daemon()
    with world.session() as one, world.session() as two:
        one.execute("SELECT dataflow.ready('orders', '1')")
        two.execute("SELECT dataflow.ready('customers', '1')")
        assert daemon.claim() == []
        first, second = (one, two) if commits_first == "orders" else (two, one)
        first.commit()
        assert daemon.claim() == []
        assert daemon.claim() == []
        second.commit()
        world.later()
        assert daemon.runs() == {("join", "1")}
    assert world.value("SELECT count(*) FROM dataflow.recheck") == 0


def test_an_idle_transaction_on_some_runs_does_not_keep_the_others_from_being_claimed(world: World) -> None:
    world.job("count", "raw", "clean", max_attempts=2)
    world.ready("raw", *DAYS)
    daemon = world.daemon()
    daemon.connection.execute("SET lock_timeout = '1s'")
    daemon.fail(*daemon.claim(5))
    world.later()
    with world.session() as idle:
        idle.execute(
            "UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE locktype = 'OUT' AND jobid <> ''"
        )
        assert {dataid for _, dataid in daemon.runs()} == set(DAYS[5:])


def test_an_idle_transaction_on_the_first_runs_does_not_stop_the_queue_behind_them(world: World) -> None:
    world.job("count", "raw", "clean")
    world.ready("raw", *DAYS)
    world.do("SELECT dataflow.set_concurrency('global', 2)")
    daemon = world.daemon()
    daemon.connection.execute("SET lock_timeout = '1s'")
    daemon.fail(*daemon.claim())
    world.resubmit(status="FAILED")
    with world.session() as idle:
        idle.execute("SELECT * FROM dataflow.datastatus WHERE status = 'RESUBMIT' FOR UPDATE")
        claimed = {dataid for _ in range(2) for _, dataid in daemon.runs()}
        assert claimed == {DAYS[2], DAYS[3]}


def test_a_hold_in_an_open_transaction_does_not_stop_the_claims(pipeline: World) -> None:
    daemon = pipeline.daemon()
    daemon.connection.execute("SET lock_timeout = '1s'")
    with pipeline.session() as idle:
        idle.execute("SELECT dataflow.hold('clean', %s)", [DAYS[0]])
        pipeline.ready("raw", DAYS[0], DAYS[1])
        assert daemon.runs() == {("clean_orders", DAYS[1])}
        idle.commit()
    pipeline.later()
    assert daemon.runs() == set()


def test_claims_of_one_moment_share_out_the_work(world: World) -> None:
    world.job("count", "raw", "clean")
    world.ready("raw", *DAYS)
    alpha, beta = world.daemon("alpha"), world.daemon("beta")
    first, second = alpha.runs(PLENTY), beta.runs(PLENTY)
    assert len(first) == len(DAYS)
    assert second == set()


def test_a_daemon_without_a_lease_in_this_session_claims_nothing(world: World) -> None:
    daemon = world.daemon()
    stranger = "SELECT * FROM dataflow.claim(%s, %s, 1)"
    with pytest.raises(psycopg.Error) as refused:
        world.do(stranger, daemon.name, daemon.incarnation)
    assert refused.value.sqlstate == "DF409"
    assert refused.value.diag.message_hint


def test_a_claim_that_does_not_look_at_the_whole_queue_still_finds_what_came_in_behind_it(
    world: World,
) -> None:
    world.job("count", "raw", "clean")
    world.ready("raw", *DAYS[10:])
    daemon = world.daemon()
    daemon.claim(5)
    world.ready("raw", *DAYS[:10])
    # Tells claim() that its last scan of the whole queue was slow.
    daemon.connection.execute(
        "SELECT set_config('dataflow.look_seconds', '1', false),"
        " set_config('dataflow.look_again', extract(epoch FROM now() + interval '1 hour')::text, false)"
    )
    claim = "SELECT dataid FROM dataflow.claim(%s, %s, 100)"
    found = daemon.connection.execute(claim, [daemon.name, daemon.incarnation]).fetchall()
    assert [dataid for [dataid] in found] == DAYS[15:]
    found = daemon.connection.execute(claim, [daemon.name, daemon.incarnation]).fetchall()
    assert [dataid for [dataid] in found] == DAYS[:10]


def test_a_daemon_claims_only_jobs_whose_code_its_host_has(world: World) -> None:
    world.job("here", "raw", "mine")
    world.job("there", "raw", "theirs")
    world.ready("raw", DAYS[0])
    daemon = world.daemon()
    world.do("SELECT dataflow.serve_jobs(%s, %s, ARRAY['here'])", daemon.name, daemon.incarnation)
    assert daemon.runs() == {("here", DAYS[0])}
    assert world.daemon("beta").runs() == {("there", DAYS[0])}


@pytest.mark.parametrize("by", ["UPDATE", "hold and release"])
def test_what_a_person_has_failed_is_not_tried_again_by_itself(world: World, by: str) -> None:
    world.job("flaky", "raw", "clean", max_attempts=3)
    world.ready("raw", DAYS[0])
    daemon = world.daemon()
    daemon.fail(daemon.claim_one())
    world.set_status("clean", DAYS[0], "RESUBMIT")
    world.set_status("clean", DAYS[0], "FAILED")
    if by == "hold and release":
        world.set_status("clean", DAYS[0], "HOLD")
        world.do("SELECT dataflow.release('clean', %s)", DAYS[0])
    world.later()
    assert world.queue() == set()
    assert daemon.claim() == []


def test_a_job_in_strict_order_that_is_up_to_date_does_not_hide_the_others(world: World) -> None:
    world.job("ledger", "raw", "book", strict_order=True)
    world.job("clean_orders", "raw", "clean")
    world.ready("raw", DAYS[0])
    daemon = world.daemon()
    daemon.work_off()
    world.do("SELECT dataflow.hold('raw', %s)", DAYS[0])
    world.set_status("clean", DAYS[0], "RESUBMIT")
    world.do("SELECT dataflow.release('raw', %s)", DAYS[0])
    assert daemon.runs() == {("clean_orders", DAYS[0])}


def test_a_plan_that_was_made_while_nothing_was_queued_does_not_walk_the_queue(pipeline: World) -> None:
    """Sessions plan anew when a table doubles. In a large database a filling queue doubles no table, so old plans stay in use."""
    with psycopg.connect(pipeline.dsn, autocommit=True) as session:
        pipeline.do("VACUUM ANALYZE")
        session.execute("SELECT set_config('dataflow.planned_for', '1000000000000', false)")
        session.execute("SELECT dataflow.ready('raw', 'first')")
        session.execute("SELECT dataflow.hold('raw', 'first')")
        pipeline.ready("raw", *map(str, range(2000)))
        with session.transaction():
            session.execute("SELECT dataflow.hold('raw', i::text) FROM generate_series(1, 10) i")
            [[read]] = session.execute(
                "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'work'"
            ).fetchall()
    assert read < 200
    assert pipeline.queue() == pipeline.rebuilt_queue()
    assert len(pipeline.queue()) == 1990


def test_a_rebuild_of_the_queue_keeps_since_when_a_run_waits(pipeline: World) -> None:
    pipeline.ready("raw", "2026-01-01")
    pipeline.as_framework("UPDATE dataflow.work SET enqueued = now() - interval '1 day'")
    pipeline.as_framework(
        "INSERT INTO dataflow.work (jobid, dataid, sortkey) VALUES ('clean_orders', '2040-01-01', 'x')"
    )
    told = pipeline.history("clean_orders", "2026-01-01")
    assert pipeline.value("SELECT dataflow.rebuild_work()") == 1
    assert pipeline.value("SELECT enqueued < now() - interval '1 hour' FROM dataflow.work")
    assert pipeline.history("clean_orders", "2026-01-01") == told
