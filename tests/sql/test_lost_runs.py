"""Known ways in which a ready run was once missing in the queue: whichever transaction came first, the run has to be queued.

tests/interleave searches for such ways; here each known one has a test.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_world import Attempt, Daemon, World

PAUSE_KEY = 4242
# In a session that sets test.pause, the first INSERT into the queue waits for an advisory lock.
PAUSE = """
    CREATE FUNCTION public.pause_here() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('test.pause', true) = 'on' THEN
            PERFORM pg_advisory_xact_lock(4242);
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER a_pause BEFORE INSERT ON dataflow.work FOR EACH ROW EXECUTE FUNCTION public.pause_here();
"""


def job(name: str, inputs: dict[str, dict[str, Any]], outputs: list[str], **changes: Any) -> dict[str, Any]:
    """A job as the document of a flow declares it."""
    plain = {
        "jobid": name, "description": "", "kind": "python", "params": {}, "max_running": None, "max_attempts": 1,
        "max_lost": 5, "retry_delay": "30s", "timeout": None, "priority": 0, "strict_order": False,
        "config_hash": None, "inputs": inputs, "outputs": outputs,
    }  # fmt: skip
    return plain | changes


def flow(*jobs: dict[str, Any]) -> Jsonb:
    """The document of a flow with these jobs and all their datasets."""
    names = sorted({name for each in jobs for name in [*each["inputs"], *each["outputs"]]})
    datasets = [
        {
            "datasetid": name, "description": "", "format": "parquet", "location": f"/data/{name}/{{dataid}}",
            "options": {}, "checks": {}, "ordering": "natural", "publish": "pointer", "environment": "dev",
            "calendar_zone": "UTC", "calendar_ready": "end",
        }
        for name in names
    ]  # fmt: skip
    return Jsonb({"name": "shop", "datasets": datasets, "jobs": list(jobs)})


IDENTITY = {"kind": "identity"}
CLEAN = job("make_clean", {"raw": IDENTITY}, ["clean"])
APPLY = "SELECT * FROM dataflow.apply_flow(%s, true)"


def settled(world: World) -> set[tuple[str, str]]:
    """The queue after settle() has judged everything that was left to judge."""
    world.later()
    world.do("SELECT dataflow.settle()")
    assert world.value("SELECT count(*) FROM dataflow.recheck") == 0
    assert world.queue() == world.rebuilt_queue()
    return world.queue()


def test_a_chunk_that_becomes_ready_while_a_new_job_is_applied_is_judged(world: World) -> None:
    world.do(APPLY, flow(CLEAN))
    with world.session() as producer, world.session() as admin:
        producer.execute("SELECT dataflow.ready('raw', '1')")
        admin.execute(APPLY, [flow(CLEAN, job("copy", {"raw": IDENTITY}, ["copies"]))])
        admin.commit()
        producer.commit()
    assert settled(world) == {("make_clean", "1"), ("copy", "1")}


def test_a_chunk_that_became_ready_before_the_new_job_is_committed_is_judged(world: World) -> None:
    world.do(APPLY, flow(CLEAN))
    with world.session() as producer, world.session() as admin:
        admin.execute(APPLY, [flow(CLEAN, job("copy", {"raw": IDENTITY}, ["copies"]))])
        producer.execute("SELECT dataflow.ready('raw', '1')")
        producer.commit()
        admin.commit()
    assert settled(world) == {("make_clean", "1"), ("copy", "1")}


def test_a_chunk_that_becomes_ready_while_a_mapping_changes_is_judged_by_the_new_one(world: World) -> None:
    world.do(APPLY, flow(CLEAN))
    later = {"kind": "offset", "by": -1, "unit": "number"}
    with world.session() as producer, world.session() as admin:
        producer.execute("SELECT dataflow.ready('raw', '1')")
        admin.execute(APPLY, [flow(job("make_clean", {"raw": later}, ["clean"]))])
        admin.commit()
        producer.commit()
    # The producer has queued run 1 by the old mapping; the claim refuses run 1.
    assert world.daemon().runs() == {("make_clean", "2")}


def test_a_chunk_that_is_registered_while_its_dataset_gets_a_producer_becomes_that_jobs(world: World) -> None:
    world.do(APPLY, flow(CLEAN))
    with world.session() as producer, world.session() as admin:
        producer.execute("SELECT dataflow.ready('raw', '1')")
        admin.execute(APPLY, [flow(CLEAN, job("make_raw", {"files": IDENTITY}, ["raw"]))])
        admin.commit()
        producer.commit()
    settled(world)
    assert world.rows("SELECT jobid FROM dataflow.datastatus WHERE locktype = 'OUT'") == [("make_raw",)]
    assert world.resubmit(job="make_raw") == [("make_raw", "1", "READY")]


@pytest.mark.parametrize("reference_first", [True, False])
def test_a_reference_and_its_partner_in_two_transactions_make_a_run(
    world: World, *, reference_first: bool
) -> None:
    world.job("price", {"raw": IDENTITY, "rates": {"kind": "fixed", "dataid": "all"}}, "priced")
    statements = ["SELECT dataflow.ready('rates', 'all')", "SELECT dataflow.ready('raw', '1')"]
    with world.session() as one, world.session() as other:
        for session, statement in zip(
            (one, other), statements if reference_first else statements[::-1], strict=True
        ):
            session.execute(statement.encode())
        one.commit()
        other.commit()
    assert settled(world) == {("price", "1")}


def test_a_run_that_reads_only_references_is_judged_when_they_are_there(world: World) -> None:
    world.job("report", {"rates": {"kind": "fixed", "dataid": "all"}}, "reports")
    world.ready("rates", "all")
    daemon = world.daemon()
    daemon.connection.execute(
        "SELECT FROM dataflow.claim_run(%s, %s, 'report', 'q1')", [daemon.name, daemon.incarnation]
    )
    world.set_status("reports", "q1", "RESUBMIT")
    world.do("SELECT dataflow.hold('rates', 'all')")
    assert settled(world) == set()
    world.do("SELECT dataflow.release('rates', 'all')")
    assert settled(world) == {("report", "q1")}


def test_ready_vouches_for_a_chunk_that_was_registered_unvalidated(pipeline: World) -> None:
    pipeline.ready("raw", "1", validated=False)
    assert pipeline.queue() == set()
    [remedy] = pipeline.rows(
        "SELECT remedy FROM dataflow.why('clean_orders', '1') WHERE code = 'NOT_VALIDATED'"
    )
    assert remedy == ("when it is right: dataflowctl ready raw 1",)
    pipeline.ready("raw", "1")
    assert pipeline.queue() == {("clean_orders", "1")}
    assert (
        pipeline.value("SELECT count(*) FROM dataflow.event WHERE datasetid = 'raw' AND code = 'VALIDATED'")
        == 1
    )
    pipeline.ready("raw", "1", validated=False)
    assert pipeline.queue() == set()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_producer_with_an_old_snapshot_leaves_no_consumer_unjudged(world: World, level: str) -> None:
    world.job("join", ["raw", "rates"], "joined")
    with world.session() as producer:
        producer.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        producer.execute("SELECT count(*) FROM dataflow.datastatus")
        world.ready("rates", "1")
        producer.execute("SELECT dataflow.ready('raw', '1')")
        producer.commit()
    assert settled(world) == {("join", "1")}


@pytest.mark.parametrize(
    "call",
    [
        "SELECT * FROM dataflow.claim(%s, %s, 5)",
        "SELECT * FROM dataflow.claim_run(%s, %s, 'clean_orders', '2')",
    ],
)
def test_a_claim_with_an_old_snapshot_is_refused(pipeline: World, call: str) -> None:
    pipeline.ready("raw", "1", "2")
    daemon = pipeline.daemon()
    daemon.connection.execute("SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.Error, match="isolation level repeatable read") as error:
        daemon.connection.execute(call.encode(), [daemon.name, daemon.incarnation])
    assert error.value.sqlstate == "DF409"
    assert "READ COMMITTED" in str(error.value.diag.message_hint)
    for function in ("settle()", "rebuild_work()", "rescue()", "shed('global', 0)"):
        with pytest.raises(psycopg.Error, match="isolation level"):
            daemon.connection.execute(f"SELECT dataflow.{function}".encode())


@pytest.mark.parametrize("status", ["HOLD", "FAILED", "PENDING"])
def test_a_run_in_strict_order_is_open_until_all_its_outputs_are_ready(world: World, status: str) -> None:
    world.job("ledger", "raw", ["book", "rest"], strict_order=True)
    daemon = world.daemon()
    world.ready("raw", "1")
    daemon.work_off()
    world.set_status("rest", "1", status)
    world.ready("raw", "2")
    assert world.queue() == set()
    assert "1 comes first" in world.no("ledger", "2")["WRONG_DATA"]
    assert world.queue() == world.rebuilt_queue()


def test_a_judgement_that_is_no_longer_true_takes_no_row_from_the_queue(pipeline: World) -> None:
    """A run is judged not ready, and becomes ready before the judging session locks its row."""
    pipeline.ready("raw", "1", "2")
    pipeline.do("SELECT dataflow.hold('raw', '1')")
    pipeline.do(PAUSE.encode())  # type: ignore[arg-type]
    # Row 1 stands in the queue although its input is held, as when a claim had the row locked during the hold.
    # Row 2 is missing, so that the judging session inserts it, and pauses there.
    pipeline.as_framework(
        "INSERT INTO dataflow.work (jobid, dataid, sortkey) VALUES ('clean_orders', '1', dataflow.sortkey('1'))",
        "DELETE FROM dataflow.work WHERE dataid = '2'",
    )
    with (
        psycopg.connect(pipeline.dsn, autocommit=True) as judge,
        psycopg.connect(pipeline.dsn) as gate,
        ThreadPoolExecutor(1) as thread,
    ):
        gate.execute("SELECT pg_advisory_xact_lock(%s)", [PAUSE_KEY])
        judge.execute("SET test.pause = 'on'")
        judged = thread.submit(
            judge.execute,
            "SELECT dataflow._refresh(ARRAY['clean_orders', 'clean_orders'], ARRAY['1', '2'], true)",
        )
        wait_until_blocked(pipeline, judge)
        pipeline.do("SELECT dataflow.release('raw', '1')")
        gate.rollback()
        judged.result()
    assert pipeline.queue() == {("clean_orders", "1"), ("clean_orders", "2")}


def wait_until_blocked(world: World, session: psycopg.Connection) -> None:
    while not world.value("SELECT cardinality(pg_blocking_pids(%s))", session.info.backend_pid):
        pass


def lose_the_reply(world: World) -> tuple[Daemon, Attempt]:
    """A daemon whose claim was committed, and whose connection broke before the reply came."""
    daemon = world.daemon()
    [attempt] = daemon.claim()
    daemon.disconnect()
    return daemon, attempt


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda world: world.set_status("clean", "1", "RESUBMIT"),
        lambda world: world.do("SELECT dataflow.hold('clean', '1'), dataflow.release('clean', '1')"),
        lambda world: (
            world.do("SELECT dataflow.cancel('clean_orders', '1')"),
            world.resubmit(job="clean_orders"),
        ),
        lambda _: None,
    ],
    ids=["resubmit", "hold", "cancel", "nothing"],
)
def test_a_run_whose_claim_got_no_reply_runs_again(
    pipeline: World, meanwhile: Callable[[World], object]
) -> None:
    pipeline.ready("raw", "1")
    daemon, attempt = lose_the_reply(pipeline)
    meanwhile(pipeline)
    daemon.reconnect()
    held = daemon.connection.execute(
        "SELECT attempt, is_live FROM dataflow.retake_attempts(%s, %s)", [daemon.name, daemon.incarnation]
    ).fetchall()
    assert [number for number, _ in held] == [attempt.attempt]
    daemon.finish(attempt, outcome="RETURNED")
    # reconnect() and retake_attempts() have each locked the run; the end of the session frees both locks.
    daemon.disconnect()
    daemon.reconnect()
    pipeline.later()
    [again] = daemon.claim()
    assert again.run == attempt.run
    assert daemon.finish(again) == "accepted"


def test_a_cancelled_run_that_is_deleted_is_not_claimed_beside_its_runner(pipeline: World) -> None:
    pipeline.ready("raw", "1")
    daemon = pipeline.daemon()
    stopping = daemon.claim_one()
    pipeline.do("SELECT dataflow.cancel('clean_orders', '1')")
    pipeline.do("SELECT dataflow.delete_runs('clean_orders', ARRAY['1'])")
    assert pipeline.queue() == {("clean_orders", "1")}
    assert daemon.claim() == []
    assert daemon.finish(stopping) == "fenced"
    again = daemon.claim_one()
    assert again.number == 2
    assert daemon.finish(again) == "accepted"
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
    assert pipeline.value(locks, daemon.connection.info.backend_pid) == 0


def test_a_chunk_is_not_deleted_under_a_claim_that_is_about_to_read_it(pipeline: World) -> None:
    pipeline.ready("raw", "1")
    daemon = pipeline.daemon()
    with (
        psycopg.connect(pipeline.dsn, autocommit=True) as operator,
        ThreadPoolExecutor(1) as thread,
    ):
        daemon.connection.execute("BEGIN")
        daemon.claim_one()
        deleted = thread.submit(operator.execute, "SELECT dataflow.delete_chunk('raw', '1')")
        wait_until_blocked(pipeline, operator)
        daemon.connection.execute("COMMIT")
        with pytest.raises(psycopg.Error, match="is being written or read"):
            deleted.result()
    assert pipeline.status("raw", "1") == "READY"


def test_an_output_that_moves_while_it_is_written_is_made_by_its_new_producer(world: World) -> None:
    copy = job("copy", {"raw": IDENTITY}, ["copies"])
    world.do(APPLY, flow(CLEAN, copy))
    world.ready("raw", "1")
    daemon = world.daemon()
    attempts = {attempt.job: attempt for attempt in daemon.claim()}
    world.do(
        APPLY,
        flow(
            job("make_clean", {"raw": IDENTITY}, ["other"]),
            job("copy", {"raw": IDENTITY}, ["copies", "clean"]),
        ),
    )
    assert world.status("clean", "1") == "RESUBMIT"
    assert daemon.finish(attempts["make_clean"]) == "fenced"
    assert daemon.finish(attempts["copy"]) == "fenced"
    daemon.work_off()
    assert world.status("clean", "1") == "READY"
    assert world.rows("SELECT jobid FROM dataflow.datastatus WHERE datasetid = 'clean'") == [("copy",)]


def test_status_says_how_to_end_a_daemon_that_hangs_with_its_session(pipeline: World) -> None:
    pipeline.ready("raw", "1")
    daemon = pipeline.daemon()
    daemon.claim_one()
    daemon.expire()
    [hand] = [
        each
        for each in pipeline.value("SELECT dataflow.overview()")["needs_hand"]
        if each["code"] == "LOST_DAEMON"
    ]
    assert f"pg_terminate_backend({daemon.connection.info.backend_pid})" in hand["remedy"]
    assert "kill -KILL" in hand["remedy"]
    daemon.disconnect()
    [hand] = [
        each
        for each in pipeline.value("SELECT dataflow.overview()")["needs_hand"]
        if each["code"] == "LOST_DAEMON"
    ]
    assert "pg_terminate_backend" not in hand["remedy"]


def test_a_strict_run_is_judged_again_after_a_concurrent_settle(world: World) -> None:
    """A settle whose transaction is open closes run 1. Meanwhile a person vouches for the input of run 2, and still sees run 1 open."""
    world.job("ledger", "raw", "book", strict_order=True)
    world.ready("raw", "1")
    world.ready("raw", "2", validated=False)
    with world.session() as producer:
        producer.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        producer.execute("SELECT dataflow.ready('book', '1')")
        producer.commit()
    with world.session() as claiming:
        claiming.execute("SELECT dataflow.settle()")
        world.do("SELECT dataflow.validated('raw', '2')")
        claiming.commit()
    assert settled(world) == {("ledger", "2")}


def test_when_a_reader_ends_while_the_producer_changes_the_new_producer_may_write(world: World) -> None:
    copy = job("copy", {"clean": IDENTITY}, ["copies"])
    world.do(APPLY, flow(CLEAN, copy))
    world.ready("raw", "1")
    daemon = world.daemon()
    daemon.finish(daemon.claim_one())
    reader = daemon.claim_one()
    assert reader.job == "copy"
    world.set_status("clean", "1", "RESUBMIT")
    with world.session() as admin:
        other = job("clean_anew", {"raw": IDENTITY}, ["clean"])
        admin.execute(APPLY, [flow(copy, other)])
        assert daemon.finish(reader) == "accepted"
        admin.commit()
    assert ("clean_anew", "1") in settled(world)


def test_a_strict_job_waits_for_a_run_that_could_not_be_judged_yet(world: World) -> None:
    """A person's open transaction holds the row that makes run 1 an open run."""
    world.job("make_a", "raw", "a")
    world.job("ledger", ["a", "b"], "book", strict_order=True)
    daemon = world.daemon()
    world.ready("raw", "2")
    second = daemon.claim_one()
    with world.session() as person:
        person.execute("SELECT dataflow.ready('b', '1')")
        world.ready("raw", "1")
        daemon.claim_one()
        daemon.finish(second)
        world.ready("b", "2")
        assert daemon.runs() == set()
        person.commit()
    world.later()
    assert daemon.runs() == set()
    assert "1 comes first" in world.no("ledger", "2")["WRONG_DATA"]


def test_an_output_that_is_declared_later_does_not_stop_a_strict_job(world: World) -> None:
    world.job("ledger", "raw", "book", strict_order=True)
    daemon = world.daemon()
    world.ready("raw", "1", "2")
    daemon.work_off()
    world.dataset("extra")
    world.as_framework("INSERT INTO dataflow.job_output (jobid, datasetid) VALUES ('ledger', 'extra')")
    world.ready("raw", "3")
    assert settled(world) == {("ledger", "3")}


def test_a_claim_while_a_strict_consumer_is_applied_makes_its_run_known(world: World) -> None:
    world.do(APPLY, flow(CLEAN))
    world.ready("raw", "1")
    daemon = world.daemon()
    with world.session() as admin:
        admin.execute(APPLY, [flow(CLEAN, job("ledger", {"clean": IDENTITY}, ["book"], strict_order=True))])
        daemon.claim()
        admin.commit()
    world.later()
    daemon.claim()
    assert settled(world) == set()
    assert world.rows("SELECT dataid FROM dataflow.open_run") == [("1",)]


def test_a_reference_with_many_partners_is_judged_in_parts(world: World) -> None:
    world.job("price", {"raw": IDENTITY, "rates": {"kind": "fixed", "dataid": "all"}}, "priced")
    world.ready("raw", *map(str, range(300)))
    with world.session() as other:
        other.execute("SELECT dataflow.hold('raw', 'x')")
        world.ready("rates", "all")
        other.rollback()
    world.as_framework("DELETE FROM dataflow.work")
    assert world.value("SELECT dataflow.settle(100)") <= 100
    assert world.queue() == set()
    for _ in range(4):
        world.do("SELECT dataflow.settle(100)")
    assert len(world.queue()) == 300
    assert world.value("SELECT count(*) FROM dataflow.recheck") == 0


def test_a_run_whose_row_a_person_holds_has_one_row_in_recheck(pipeline: World) -> None:
    dataids = [str(number) for number in range(20)]
    pipeline.ready("raw", *dataids)
    with pipeline.session() as person:
        person.execute("SELECT FROM dataflow.work FOR UPDATE")
        pipeline.as_framework(
            "INSERT INTO dataflow.recheck (jobid, dataid) SELECT 'clean_orders', n::text FROM generate_series(0, 19) AS n"
        )
        for _ in range(4):
            pipeline.later()
            pipeline.do("SELECT dataflow.settle()")
            assert pipeline.value("SELECT count(*) FROM dataflow.recheck") == 20
        person.rollback()
    assert settled(pipeline) == {("clean_orders", dataid) for dataid in dataids}


def test_a_cancelled_statement_leaves_no_gate_locked(world: World) -> None:
    looks = "SELECT dataflow._is_quiet(), dataflow._company() FROM generate_series(1, 1000000)"
    with psycopg.connect(world.dsn, autocommit=True) as session:
        session.execute("SET statement_timeout = '10ms'")
        for _ in range(100):
            with pytest.raises(psycopg.errors.QueryCanceled):
                session.execute(looks)
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
        assert world.value(held, session.info.backend_pid) == 0


def test_a_hold_waits_for_a_claim_that_is_under_way_and_cancels_it(pipeline: World) -> None:
    pipeline.ready("raw", "1")
    daemon = pipeline.daemon()
    with psycopg.connect(pipeline.dsn, autocommit=True) as operator, ThreadPoolExecutor(1) as thread:
        daemon.connection.execute("BEGIN")
        daemon.claim_one()
        held = thread.submit(operator.execute, "SELECT dataflow.hold('clean', '1')")
        wait_until_blocked(pipeline, operator)
        daemon.connection.execute("COMMIT")
        held.result()
    assert pipeline.status("clean", "1") == "HOLD"
    assert pipeline.outcomes("clean_orders", "1") == ["CANCELLED"]


def test_a_resubmitted_chunk_takes_the_other_outputs_of_its_new_producer_along(world: World) -> None:
    copy = job("copy", {"raw": IDENTITY}, ["copies"])
    world.do(APPLY, flow(job("make_clean", {"raw": IDENTITY}, ["clean", "side"]), copy))
    world.ready("raw", "1")
    daemon = world.daemon()
    daemon.work_off()
    world.set_status("side", "1", "RESUBMIT")
    world.do(APPLY, flow(CLEAN, job("copy", {"raw": IDENTITY}, ["copies", "side"])))
    assert settled(world) == {("make_clean", "1"), ("copy", "1")}
    daemon.work_off()
    assert {world.status(name, "1") for name in ("clean", "copies", "side")} == {"READY"}
