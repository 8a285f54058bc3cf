"""Sixteen daemons work on one queue at the same time: each run is done once, and none is forgotten.

Two producers feed one consumer. Often two concurrent transactions each bring one of the two inputs of a run.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest

from dataflowd.database import db

if TYPE_CHECKING:
    from tests.fix_world import Daemon, World

DAEMONS = 16
DATAIDS = 6_667  # for each of the three jobs
BATCH = 64
DEADLINE_SECONDS = 240


def work(daemon: Daemon, observer: psycopg.Connection, trouble: Event) -> None:
    """Claims and finishes until all runs are done; every eleventh attempt fails and is tried again."""
    done = "SELECT count(*) FROM dataflow.datastatus WHERE datasetid = 'joined' AND status = 'READY'"
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while not trouble.is_set():
            attempts = daemon.claim(BATCH)
            bad = [each for each in attempts if each.number == 1 and each.attempt % 11 == 0]
            good = [each for each in attempts if each not in bad]
            verdicts = daemon.offer(*good) | daemon.offer(*bad, outcome="FAILED")
            assert set(verdicts.values()) <= {"accepted"}
            if not attempts and observer.execute(done).fetchone() == (DATAIDS,):
                return
            assert time.monotonic() < deadline, "runs are left that nobody could claim or finish in time"
    finally:
        trouble.set()


def test_sixteen_daemons_do_each_of_twenty_thousand_runs_once(world: World) -> None:
    world.job("left", "raw", "lefts", max_attempts=2, retry_delay="0")
    world.job("right", "raw", "rights", max_attempts=2, retry_delay="0")
    world.job("join", ["lefts", "rights"], "joined", max_attempts=2, retry_delay="0")
    world.do("SELECT dataflow.set_concurrency('global', %s)", DAEMONS * BATCH)
    daemons = [world.daemon(f"daemon{number}") for number in range(DAEMONS)]
    world.do("SELECT dataflow.ready('raw', array_agg(n::text)) FROM generate_series(1, %s) AS n", DATAIDS)
    done_or_in_trouble = Event()
    with (
        psycopg.connect(world.dsn, autocommit=True) as observer,
        ThreadPoolExecutor(DAEMONS) as threads,
    ):
        working = [threads.submit(work, daemon, observer, done_or_in_trouble) for daemon in daemons]
        for each in as_completed(working):
            each.result()
    assert world.rows(
        "SELECT jobid, count(*), count(DISTINCT dataid) FROM dataflow.attempt WHERE outcome = 'DONE' GROUP BY jobid ORDER BY jobid"
    ) == [("join", DATAIDS, DATAIDS), ("left", DATAIDS, DATAIDS), ("right", DATAIDS, DATAIDS)]
    assert world.rows("SELECT outcome FROM dataflow.attempt GROUP BY outcome ORDER BY outcome") == [
        ("DONE",),
        ("FAILED",),
    ]
    assert world.queue() == set()
    assert world.counts() == {
        ("raw", "", "READY"): DATAIDS,
        ("lefts", "left", "READY"): DATAIDS,
        ("rights", "right", "READY"): DATAIDS,
        ("joined", "join", "READY"): DATAIDS,
    }


def test_limits_hold_while_sixteen_daemons_claim(world: World) -> None:
    limit = 5
    world.job("count", "raw", "clean", max_running=limit)
    daemons = [world.daemon(f"daemon{number}") for number in range(DAEMONS)]
    world.ready("raw", *map(str, range(500)))

    def claims(daemon: Daemon) -> int:
        most = 0
        for _ in range(10):
            attempts = daemon.claim(3)
            live = "SELECT count(*) FROM dataflow.attempt WHERE ended IS NULL"
            [[running]] = daemon.connection.execute(live).fetchall()
            most = max(most, running)
            daemon.offer(*attempts)
        return most

    with ThreadPoolExecutor(DAEMONS) as threads:
        assert max(threads.map(claims, daemons)) <= limit


def test_concurrent_operators_and_daemons_neither_deadlock_nor_lose_a_run(world: World) -> None:
    world.job("clean_orders", "raw", "clean")
    world.job("sum_orders", "clean", "sums")
    dataids = [str(number) for number in range(200)]
    daemons = [world.daemon(f"daemon{number}") for number in range(4)]
    world.ready("raw", *dataids)

    def operate(statement: bytes) -> None:
        with psycopg.connect(world.dsn, autocommit=True) as operator:
            for _ in range(25):
                operator.execute(statement)

    def serve(daemon: Daemon) -> None:
        for _ in range(60):
            daemon.offer(*daemon.claim(20))

    statements = [
        b"UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE dataid LIKE '1%'",
        b'SELECT dataflow.resubmit(\'{"dataid": "2*", "job": "clean_orders"}\', true)',
        b"SELECT dataflow.ready('raw', ARRAY['5', '55', '155'])",
        b"SELECT dataflow.fold_counters()",
    ]
    with ThreadPoolExecutor(len(statements) + len(daemons)) as threads:
        waited = [threads.submit(operate, statement) for statement in statements]
        waited += [threads.submit(serve, daemon) for daemon in daemons]
        for each in waited:
            each.result()
    world.later()
    while any(daemon.work_off() for daemon in daemons):
        world.later()
    assert world.queue() == world.rebuilt_queue() == set()
    assert world.counts() == {
        ("raw", "", "READY"): len(dataids),
        ("clean", "clean_orders", "READY"): len(dataids),
        ("sums", "sum_orders", "READY"): len(dataids),
    }


def within(daemon: Daemon, want: int, scarce: list[str], room: int) -> list[str]:
    rows = daemon.connection.execute(
        "SELECT jobid FROM dataflow.claim_within(%s, %s, %s, %s, %s)",
        (daemon.name, daemon.incarnation, want, scarce, room),
    ).fetchall()
    return sorted(str(jobid) for [jobid] in rows)


def test_a_claim_takes_of_all_scarce_jobs_together_only_what_has_room(world: World) -> None:
    for job in ("spark1", "spark2", "shell"):
        world.job(job, f"raw_{job}", f"out_{job}")
        world.ready(f"raw_{job}", *"12345")
    world.do("SELECT dataflow.set_concurrency('global', 100)")
    alpha, beta = world.daemon("alpha"), world.daemon("beta")
    scarce = ["spark1", "spark2"]
    assert within(alpha, 100, scarce, 3) == ["shell"] * 5 + ["spark1"] * 2 + ["spark2"]
    assert within(alpha, 100, scarce, 0) == []
    # Another daemon takes what alpha has no room for. A claim without a limit for scarce jobs takes all.
    assert within(beta, 2, scarce, 4) == ["spark1", "spark2"]
    assert len(beta.claim()) == 5


def test_a_scarce_job_keeps_its_priority(world: World) -> None:
    world.job("spark", "raw", "out", priority=5)
    world.job("shell", "raw", "out2")
    world.ready("raw", *"123")
    world.do("SELECT dataflow.set_concurrency('global', 3)")
    assert within(world.daemon(), 3, ["spark"], 2) == ["shell", "spark", "spark"]


def test_runners_and_slots_of_a_daemon_are_set_and_logged(world: World) -> None:
    limits: LiteralString = db.query("daemon_limits").replace("%(daemon)s", "'alpha'").rstrip(";")
    assert world.rows(limits) == [(100, None, False, None, None)]
    world.do("UPDATE dataflow.control SET runners = 3, slots = 2 WHERE scope = 'global'")
    world.do("SELECT dataflow.set_slots('daemon:alpha', 6)")
    assert world.rows(limits) == [(100, None, False, 3, 6)]
    world.do("SELECT dataflow.set_runners('global', NULL)")
    assert world.rows(limits) == [(100, None, False, None, 6)]
    told = [
        row[0]
        for row in world.rows("SELECT reason FROM dataflow.event WHERE kind = 'control' ORDER BY event")
    ]
    assert "global (runners by host -> 3) (slots by host -> 2)" in told
    world.job("work", "raw", "out")
    for wrong in (
        "SELECT dataflow.set_runners('global', 0)",
        "SELECT dataflow.set_slots('global', -1)",
        "SELECT dataflow.set_slots('job:work', 2)",
    ):
        with pytest.raises(psycopg.Error) as refused:
            world.do(wrong)
        assert refused.value.sqlstate == "DF400"
        assert refused.value.diag.message_hint
