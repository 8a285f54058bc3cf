"""One run, named by a person: asked for in the usual way, or forced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.fix_world import Daemon, World

DAY = "2026-01-01"


def claim_run(daemon: Daemon, dataid: str = DAY, *, forced: bool = False) -> list[tuple[Any, ...]]:
    return daemon.connection.execute(
        "SELECT attempt, inputs FROM dataflow.claim_run(%s, %s, 'clean_orders', %s, %s)",
        [daemon.name, daemon.incarnation, dataid, forced],
    ).fetchall()


def refused(daemon: Daemon, sqlstate: str, *, forced: bool) -> str:
    with pytest.raises(psycopg.Error) as error:
        claim_run(daemon, forced=forced)
    assert error.value.sqlstate == sqlstate
    return str(error.value.diag.message_primary)


def test_a_run_that_may_not_start_is_not_given(pipeline: World) -> None:
    daemon = pipeline.daemon()
    assert claim_run(daemon) == []
    pipeline.ready("raw", DAY, "2026-01-02")
    [(attempt, inputs)] = claim_run(daemon, "2026-01-02")
    assert inputs == {"raw/2026-01-02": 1}
    assert pipeline.value("SELECT forced FROM dataflow.attempt WHERE attempt = %s", attempt) is False
    assert pipeline.queue() == {("clean_orders", DAY)}


def test_never_two_writers_also_not_by_force(pipeline: World) -> None:
    daemon, other = pipeline.daemon(), pipeline.daemon("beta")
    pipeline.ready("raw", DAY)
    daemon.claim_one()
    assert "attempt 1 of daemon alpha is at it" in refused(other, "DF423", forced=True)
    assert pipeline.outcomes("clean_orders", DAY) == [None]


def test_a_forced_run_replaces_what_was_published_and_its_consumers_wait(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.ready("raw", DAY)
    daemon.work_off()
    assert pipeline.no("clean_orders", DAY).keys() == {"LOCKED"}
    [(attempt, _)] = claim_run(daemon, forced=True)
    assert pipeline.no("sum_orders", DAY).keys() == {"DATA_NOT_READY", "LOCKED"}
    answers = pipeline.value("SELECT answers FROM dataflow.attempt WHERE attempt = %s", attempt)
    assert [name for name, answer in answers.items() if not answer] == ["safe"]
    token = pipeline.value("SELECT token FROM dataflow.attempt WHERE attempt = %s", attempt)
    finished = daemon.connection.execute(
        "SELECT verdict FROM dataflow.finish(jsonb_build_array(jsonb_build_object("
        "'attempt', %s::bigint, 'token', %s::text, 'outcome', 'DONE')))",
        [attempt, str(token)],
    ).fetchall()
    assert finished == [("accepted",)]
    assert pipeline.version("clean", DAY) == 2
    assert pipeline.queue() == pipeline.rebuilt_queue()


def test_limits_pauses_and_environments_hold_also_by_force(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.ready("raw", DAY)
    pipeline.do("SELECT dataflow.set_concurrency('global', 0)")
    assert "the limit of global, 0 attempts, is reached" in refused(daemon, "DF423", forced=True)
    pipeline.do("SELECT dataflow.set_concurrency('global', 5)")
    pipeline.do("SELECT dataflow.pause('job:clean_orders')")
    assert "job:clean_orders is paused" in refused(daemon, "DF423", forced=True)
    pipeline.do("SELECT dataflow.pause('job:clean_orders', false)")
    pipeline.as_framework("UPDATE dataflow.dataset SET environment = 'prod' WHERE datasetid = 'clean'")
    assert "belongs to environment prod" in refused(daemon, "DF409", forced=True)


def test_an_order_describes_also_the_inputs_of_which_a_forced_run_was_given_nothing(pipeline: World) -> None:
    daemon = pipeline.daemon()
    [(attempt, inputs)] = claim_run(daemon, forced=True)
    assert inputs == {}
    order = pipeline.value(
        "SELECT dataflow.work_order(attempt, token) FROM dataflow.attempt WHERE attempt = %s", attempt
    )
    assert order["forced"] is True
    assert order["inputs"]["raw"]["chunks"] == []
    assert order["inputs"]["raw"]["dataset"]["location"] == "/data/raw/{dataid}"
    preview = pipeline.value("SELECT dataflow.preview_order('clean_orders', %s)", DAY)
    assert preview["inputs"]["raw"]["chunks"][0]["location"] == f"/data/raw/{DAY}"


def test_a_jobs_own_limit_and_the_daemons_hold_also_by_force(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.ready("raw", DAY, "2026-01-02")
    pipeline.as_framework("UPDATE dataflow.job SET max_running = 1 WHERE jobid = 'clean_orders'")
    running = daemon.claim_one()
    for forced in (False, True):
        with pytest.raises(psycopg.Error, match="limit of job:clean_orders, 1 attempt, is reached"):
            claim_run(daemon, "2026-01-02", forced=forced)
    daemon.finish(running)
    pipeline.do("SELECT dataflow.set_concurrency('daemon:alpha', 0)")
    with pytest.raises(psycopg.Error, match="limit of daemon:alpha, 0 attempts, is reached"):
        claim_run(daemon, "2026-01-02")


def test_what_is_being_read_is_not_rewritten_also_not_by_force(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.ready("raw", DAY)
    daemon.finish(daemon.claim_one())
    [reader] = daemon.claim()
    assert reader.run == ("sum_orders", DAY)
    said = refused(daemon, "DF423", forced=True)
    assert said == f"clean/{DAY} is being read by job sum_orders (dataid {DAY})"
    assert pipeline.status("clean", DAY) == "READY"
    daemon.finish(reader)
    assert len(claim_run(daemon, forced=True)) == 1


def test_a_retired_job_is_not_run_also_not_by_force(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.as_framework("UPDATE dataflow.job SET retired = now() WHERE jobid = 'clean_orders'")
    assert "is retired" in refused(daemon, "DF409", forced=True)
