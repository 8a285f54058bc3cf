"""Which daemons have a session, and which session of a frozen daemon keeps runs locked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from tests.fix_postgres import RunCtl, Server
    from tests.fix_world import Daemon, World

SEES = "SELECT daemon, state FROM dataflow.daemons ORDER BY daemon"
FROZEN = "SELECT daemon, session_pid, attempts FROM dataflow.frozen_sessions()"
END = "SELECT daemon, session_pid, is_ended FROM dataflow.end_frozen_sessions()"


def freeze(world: World, daemon: Daemon, *, leases: float) -> None:
    """Sets the end of the daemon's lease back by this many times the length of a lease."""
    world.do(
        "UPDATE dataflow.daemon SET lease_until = clock_timestamp() - %s * lease WHERE daemon = %s",
        leases,
        daemon.name,
    )


@pytest.fixture
def at_work(pipeline: World) -> Daemon:
    pipeline.ready("raw", "1")
    daemon = pipeline.daemon()
    daemon.claim_one()
    return daemon


def test_a_reader_sees_at_once_that_the_session_of_a_daemon_has_ended(
    server: Server, pipeline: World, at_work: Daemon
) -> None:
    with (
        server.login(pipeline.dsn, "dataflow_reader") as dsn,
        psycopg.connect(dsn, autocommit=True) as reader,
    ):
        assert reader.execute(SEES).fetchall() == [("alpha", "ALIVE")]
        at_work.disconnect()
        eventually(lambda: reader.execute(SEES).fetchall() == [("alpha", "GONE")])
        [hand] = reader.execute("SELECT code, count, detail FROM dataflow.needs_hand()").fetchall()
        assert hand[:2] == ("LOST_DAEMON", 1)
        assert " until " in hand[2]
        assert reader.execute("SELECT count(*) FROM dataflow.attempt WHERE ended IS NULL").fetchone() == (1,)


def test_a_daemon_that_comes_back_is_alive_again(pipeline: World, at_work: Daemon) -> None:
    at_work.disconnect()
    eventually(lambda: pipeline.rows(SEES) == [("alpha", "GONE")])
    assert len(at_work.reconnect()) == 1
    assert pipeline.rows(SEES) == [("alpha", "ALIVE")]


def test_only_a_lease_that_has_been_over_for_as_long_as_it_lasted_makes_a_session_frozen(
    pipeline: World, at_work: Daemon
) -> None:
    session = at_work.connection.info.backend_pid
    assert pipeline.rows(FROZEN) == []
    freeze(pipeline, at_work, leases=0.9)
    assert pipeline.rows(FROZEN) == []
    assert pipeline.rows(END) == []
    freeze(pipeline, at_work, leases=1.1)
    assert pipeline.rows(FROZEN) == [("alpha", session, 1)]
    # An expired lease is not enough to take a run back: the lock has to be free.
    assert pipeline.rows("SELECT * FROM dataflow.rescue()") == []
    assert pipeline.rows(END) == [("alpha", session, True)]
    assert [row[1:3] for row in pipeline.rows("SELECT * FROM dataflow.rescue()")] == [("clean_orders", "1")]
    assert pipeline.rows(FROZEN) == []


def test_a_session_that_holds_no_run_is_left_alone(pipeline: World) -> None:
    daemon = pipeline.daemon()
    freeze(pipeline, daemon, leases=100)
    assert pipeline.rows(END) == []
    daemon.connection.execute("SELECT 1")


def test_a_cancelled_run_whose_lock_a_frozen_session_keeps_is_freed(pipeline: World, at_work: Daemon) -> None:
    pipeline.do("SELECT dataflow.cancel('clean_orders', '1')")
    freeze(pipeline, at_work, leases=2)
    assert pipeline.rows(END) == [("alpha", at_work.connection.info.backend_pid, True)]


def test_an_earlier_process_of_a_daemon_that_was_started_again_is_found(
    pipeline: World, at_work: Daemon
) -> None:
    at_work.expire()
    heir = pipeline.daemon()
    assert pipeline.rows(FROZEN) == []
    pipeline.do("UPDATE dataflow.daemon SET started = started - 2 * lease")
    session = at_work.connection.info.backend_pid
    assert pipeline.rows(FROZEN) == [("alpha", session, 1)]
    [hand] = pipeline.value("SELECT dataflow.overview()")["needs_hand"]
    assert (hand["code"], hand["detail"]) == (
        "LOST_DAEMON",
        "an earlier process of daemon alpha keeps 1 run",
    )
    assert f"pg_terminate_backend({session})" in hand["remedy"]
    assert pipeline.rows(END) == [("alpha", session, True)]
    heir.connection.execute("SELECT 1")


def test_a_role_that_may_not_end_a_session_says_so_and_status_and_doctor_say_what_to_do(
    server: Server, pipeline: World, at_work: Daemon, run_ctl: RunCtl
) -> None:
    freeze(pipeline, at_work, leases=2)
    other = pipeline.daemon("beta")
    session = at_work.connection.info.backend_pid
    with (
        server.login(pipeline.dsn, "dataflow_daemon") as dsn,
        psycopg.connect(dsn, autocommit=True) as weak,
    ):
        assert weak.execute(END).fetchall() == [("alpha", session, False)]
        [hand] = pipeline.value("SELECT dataflow.overview()")["needs_hand"]
        assert "GRANT pg_signal_backend" in hand["remedy"]
        env = {"DATAFLOW_DSN": dsn}
        assert "daemon alpha on host hangs" in run_ctl("doctor", "--no-spark", env=env).stdout
        at_work.disconnect()
        pipeline.rows("SELECT * FROM dataflow.rescue()")
        said = run_ctl("doctor", "--no-spark", env=env).stdout
        assert "may not end the session of daemon beta" in said
        assert "GRANT pg_signal_backend TO " in said
    assert other.connection.execute("SELECT 1").fetchone() == (1,)


def test_a_role_with_pg_signal_backend_may_end_the_session_of_another(
    server: Server, pipeline: World
) -> None:
    """Only a superuser may end the session of a superuser."""
    with (
        server.login(pipeline.dsn, "dataflow_daemon", "frozen") as frozen_dsn,
        server.login(pipeline.dsn, "dataflow_daemon") as dsn,
    ):
        pipeline.ready("raw", "1")
        frozen = type(pipeline.daemon("unused")).start(frozen_dsn, "alpha")
        pipeline.daemons.append(frozen)
        frozen.claim_one()
        freeze(pipeline, frozen, leases=2)
        session = frozen.connection.info.backend_pid
        with psycopg.connect(dsn, autocommit=True) as other:
            assert other.execute(END).fetchall() == [("alpha", session, False)]
            role = other.info.user
            pipeline.connection.execute(f"GRANT pg_signal_backend TO {role}".encode())
            assert other.execute("SELECT may_end FROM dataflow.daemon_session WHERE daemon = 'alpha'").fetchall() == [(True,)]  # fmt: skip
            assert other.execute(END).fetchall() == [("alpha", session, True)]
            pipeline.connection.execute(f"REVOKE pg_signal_backend FROM {role}".encode())
        frozen.connection.close()
