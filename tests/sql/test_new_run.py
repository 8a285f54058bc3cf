"""Runs of jobs without inputs: a person asks for such a run, and then it is a run like any other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.fix_world import World

DAY = "2026-01-01"
ASK = "SELECT dataflow.new_run('fetch')"


@pytest.fixture
def fetching(world: World) -> World:
    """No input -> fetch -> rates -> use_rates -> uses."""
    world.job("fetch", [], "rates")
    world.job("use_rates", "rates", "uses")
    return world


def claim_new(world: World, job: str = "fetch") -> list[Any]:
    daemon = world.daemons[0] if world.daemons else world.daemon()
    return daemon.connection.execute(
        "SELECT jobid, dataid, inputs FROM dataflow.claim_new(%s, %s, %s)",
        [daemon.name, daemon.incarnation, job],
    ).fetchall()


def test_a_run_that_is_asked_for_is_claimed_by_a_daemon_and_read_by_others(fetching: World) -> None:
    assert fetching.queue() == fetching.rebuilt_queue() == set()
    dataid = fetching.value(ASK)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d-\d\d-\d\d[.]\d{3}", dataid)
    assert fetching.queue() == fetching.rebuilt_queue() == {("fetch", dataid)}
    assert fetching.daemon().work_off() == [("fetch", dataid), ("use_rates", dataid)]
    assert fetching.status("uses", dataid) == "READY"


@pytest.mark.parametrize(
    ("ordering", "form"),
    [("number", r"20\d{15}"), ("date", r"20\d\d-\d\d-\d\d"), ("text", r"20\d\d-\d\d-\d\dT[-0-9.]{12}")],
)
def test_the_dataid_is_of_the_ordering_and_of_utc(fetching: World, ordering: str, form: str) -> None:
    fetching.connection.execute(
        "UPDATE dataflow.dataset SET ordering = %s WHERE datasetid = 'rates'", [ordering]
    )
    fetching.do("SET TimeZone = 'Pacific/Kiritimati'")
    today = fetching.value("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
    dataid = fetching.value(ASK)
    assert re.fullmatch(form, dataid)
    assert dataid.replace("-", "").startswith(today)


def test_a_dataid_may_be_named_once(fetching: World) -> None:
    assert fetching.value("SELECT dataflow.new_run('fetch', %s)", DAY) == DAY
    before = fetching.everything()
    with pytest.raises(psycopg.Error, match=f"rates/{DAY} is RESUBMIT already"):
        fetching.do("SELECT dataflow.new_run('fetch', %s)", DAY)
    assert fetching.everything() == before


def test_a_run_is_asked_for_and_claimed_in_one_call(fetching: World) -> None:
    [(job, dataid, inputs)] = claim_new(fetching)
    assert (job, inputs, fetching.status("rates", dataid)) == ("fetch", {}, "RUNNING")
    assert fetching.queue() == set()
    fetching.do("SELECT dataflow.set_concurrency('job:fetch', 1)")
    before = fetching.everything()
    with pytest.raises(psycopg.Error, match="the limit of job:fetch, 1 attempt, is reached"):
        claim_new(fetching)
    assert fetching.everything() == before


def test_a_run_that_was_asked_for_is_retried_resubmitted_and_deleted_as_any_other(fetching: World) -> None:
    fetching.as_framework("UPDATE dataflow.job SET max_attempts = 2 WHERE jobid = 'fetch'")
    fetching.do("SELECT dataflow.new_run('fetch', %s)", DAY)
    daemon = fetching.daemon()
    daemon.fail(daemon.claim_one())
    fetching.later()
    daemon.fail(daemon.claim_one())
    fetching.later()
    assert fetching.status("rates", DAY) == "FAILED"
    assert daemon.runs() == set()
    assert fetching.resubmit(job="fetch") == [("fetch", DAY, "FAILED")]
    daemon.finish(daemon.claim_one())
    fetching.as_framework(f"SELECT dataflow.delete_chunk('rates', '{DAY}')")
    # The request went with the chunk, so that nothing queues the run again.
    assert fetching.queue() == fetching.rebuilt_queue() == set()
    assert fetching.no("fetch", DAY) == {
        "WRONG_DATA": "the job has no inputs, and nobody has asked for this run"
    }


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT dataflow.new_run('use_rates')", "job use_rates has inputs, and they say which runs it has"),
        ("SELECT dataflow.new_run('nobody')", "there is no job nobody"),
        ("SELECT dataflow.new_run('fetch', '../x')", "not a dataid"),
        (
            "SELECT dataflow.new_run('numbered', 'x')",
            "x is no number, and the outputs of job numbered are ordered so",
        ),
    ],
)
def test_what_cannot_be_asked_for_is_refused_and_changes_nothing(
    fetching: World, statement: str, message: str
) -> None:
    fetching.dataset("numbers", ordering="number")
    fetching.job("numbered", [], "numbers")
    before = fetching.everything()
    with pytest.raises(psycopg.Error, match=message):
        fetching.connection.execute(statement.encode())
    assert fetching.everything() == before


def test_two_concurrent_requests_get_two_runs(fetching: World) -> None:
    with fetching.session() as first, fetching.session() as second:
        [one] = first.execute(ASK).fetchone() or ("",)
        [other] = second.execute("SELECT dataflow.new_run('fetch', %s || 'b')", [one]).fetchone() or ("",)
        first.commit()
        second.commit()
    fetching.do("SELECT dataflow.settle()")
    assert fetching.queue() == {("fetch", one), ("fetch", other)}
