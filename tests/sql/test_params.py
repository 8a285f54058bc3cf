"""Parameters for one resubmission: which attempts get them, for how long, and which are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import World

DAY = "2026-01-01"
DECLARED = {
    "least": 5,
    "share": 0.5,
    "currency": "EUR",
    "strict": True,
    "shops": ["a"],
    "rates": {"EUR": 1},
}
KINDS = (
    "its parameters are currency (text), least (a whole number), rates (a table), share (a number),"
    " shops (a list), strict (true or false)"
)
RESUBMIT = "SELECT jobid, dataid FROM dataflow.resubmit_with(%s, %s)"
GIVEN = "SELECT params FROM dataflow.attempt WHERE jobid = %s ORDER BY attempt"


@pytest.fixture
def shop(world: World) -> World:
    """Raw -> clean (with parameters, two outputs, a retry) -> sums; all chunks of one day are made."""
    world.job("clean", "raw", ["good", "bad"], params=Jsonb(DECLARED), max_attempts=2)
    world.job("sums", "good", "totals", params=Jsonb({"least": 1}))
    world.ready("raw", DAY)
    world.daemon().work_off()
    return world


def resubmit(world: World, params: dict[str, Any] | None, **selector: Any) -> list[tuple[Any, ...]]:
    chosen = {"job": "clean", **selector}
    return world.rows(RESUBMIT, Jsonb(chosen), None if params is None else Jsonb(params))


def given(world: World, job: str = "clean") -> list[Any]:
    return [params for [params] in world.rows(GIVEN, job)]


def test_one_resubmission_runs_with_parameters_of_its_own_and_the_next_goes_back(shop: World) -> None:
    daemon = shop.daemons[0]
    assert resubmit(shop, {"least": 0}) == [("clean", DAY)]
    attempt = daemon.claim_one()
    assert attempt.params == DECLARED | {"least": 0}
    assert daemon.finish(attempt) == "accepted"
    assert resubmit(shop, None) == [("clean", DAY)]
    assert daemon.claim_one().params == DECLARED
    assert given(shop) == [None, {"least": 0}, None]


@pytest.mark.parametrize("how", ["failed", "returned", "lost", "cancelled for a hold", "limit lowered"])
def test_every_attempt_of_the_resubmission_gets_its_parameters(shop: World, how: str) -> None:
    daemon = shop.daemons[0]
    resubmit(shop, {"least": 0, "currency": "USD"})
    first = daemon.claim_one()
    if how == "failed":
        daemon.fail(first)
        shop.later()
    elif how == "returned":
        daemon.finish(first, outcome="RETURNED")
    elif how == "lost":
        daemon.crash()
        shop.do("SELECT * FROM dataflow.rescue()")
        daemon = shop.daemon("beta")
    elif how == "limit lowered":
        shop.do("SELECT * FROM dataflow.shed('global', 0)")
        daemon.finish(first)
    else:
        shop.do("SELECT dataflow.hold('raw', %s)", DAY)
        daemon.finish(first)
        shop.do("SELECT dataflow.release('raw', %s)", DAY)
    [second] = [attempt for attempt in daemon.claim() if attempt.job == "clean"]
    assert second.params == DECLARED | {"least": 0, "currency": "USD"}
    assert given(shop)[1:] == [{"least": 0, "currency": "USD"}] * 2


@pytest.mark.parametrize("output", ["good", "bad"])
@pytest.mark.parametrize("before", ["RUNNING", "FAILED"])
def test_a_status_set_to_resubmit_by_hand_goes_back_too(shop: World, output: str, before: str) -> None:
    daemon = shop.daemons[0]
    resubmit(shop, {"least": 0})
    attempt = daemon.claim_one()
    if before == "FAILED":
        daemon.fail(attempt)
    shop.set_status(output, DAY, "RESUBMIT")
    daemon.finish(attempt)
    assert daemon.claim_one().params == DECLARED


@pytest.mark.parametrize("typed", ["RESUBMIT", "rerun"])
def test_a_resubmit_by_hand_drops_the_parameters_of_a_waiting_run_and_a_new_reason_does_not(
    shop: World, typed: str
) -> None:
    resubmit(shop, {"least": 0})
    shop.do("UPDATE dataflow.datastatus SET reason = 'see the ticket' WHERE datasetid = 'good'")
    assert shop.value("SELECT dataflow.preview_order('clean', %s) -> 'params' -> 'least'", DAY) == 0
    shop.set_status("good", DAY, typed)
    assert (
        shop.value("SELECT reason FROM dataflow.datastatus WHERE datasetid = 'good' AND locktype = 'OUT'")
        is None
    )
    assert shop.daemons[0].claim_one().params == DECLARED


def test_the_last_resubmission_decides_the_parameters_of_a_waiting_run(shop: World) -> None:
    resubmit(shop, {"least": 0})
    resubmit(shop, {"least": 1})
    assert shop.value("SELECT dataflow.preview_order('clean', %s) -> 'params' -> 'least'", DAY) == 1
    resubmit(shop, None)
    assert shop.daemons[0].claim_one().params == DECLARED


def test_parameters_are_for_the_selected_runs_and_not_for_their_consumers(shop: World) -> None:
    shop.ready("raw", "2026-01-02")
    daemon = shop.daemons[0]
    shop.do(
        "SELECT dataflow.resubmit_with(%s, %s, downstream => true)",
        *(Jsonb({"job": "clean", "dataid": DAY}), Jsonb({"least": 0})),
    )
    daemon.work_off()
    assert given(shop) == [None, {"least": 0}, None]
    assert given(shop, "sums") == [None, None, None]


def test_parameters_of_a_resubmission_make_nothing_stale(shop: World) -> None:
    daemon = shop.daemons[0]
    resubmit(shop, {"least": 0})
    daemon.work_off()
    assert shop.rows("SELECT datasetid, because FROM dataflow.stale") == [("totals", ["INPUT"])]


def test_another_producer_does_not_get_what_was_given_to_the_first(shop: World) -> None:
    shop.job("better", "raw", "other", params=Jsonb({}))
    resubmit(shop, {"least": 0})
    shop.as_framework("UPDATE dataflow.job_output SET jobid = 'better' WHERE jobid = 'clean'")
    shop.do("SELECT dataflow.rebuild_work()")
    assert {attempt.job: attempt.params for attempt in shop.daemons[0].claim()} == {"better": {}}


def test_parameters_are_shown_wherever_the_run_is_shown(shop: World) -> None:
    daemon = shop.daemons[0]
    stand = "SELECT detail FROM dataflow.why('clean', %s) WHERE number = 0"
    resubmit(shop, {"least": 0, "currency": "USD"})
    told = 'currency = "USD", least = 0'
    assert (
        shop.value(stand, DAY) == f"all its data is there; it is in the queue; its next attempt gets {told}"
    )
    assert shop.value("SELECT reason FROM dataflow.datastatus WHERE datasetid = 'bad'") == f"with {told}"
    attempt = daemon.claim_one()
    assert shop.value(stand, DAY).endswith(f", with {told}")
    daemon.finish(attempt)
    assert shop.value(stand, DAY).endswith(f" v1, with {told}")
    params = {"least": 0, "currency": "USD"}
    assert shop.value("SELECT params FROM dataflow.runs('clean')") == params
    assert shop.value("SELECT params FROM dataflow.chunks('good')") == params
    assert shop.rows("SELECT params FROM dataflow.attempts('clean', %s)", DAY) == [(None,), (params,)]


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ({"least": "-3"}, {"least": -3}),
        ({"share": "1"}, {"share": 1}),
        ({"share": 0.25}, {"share": 0.25}),
        ({"currency": "10"}, {"currency": "10"}),
        ({"strict": "false"}, {"strict": False}),
        ({"shops": '["b", "c"]'}, {"shops": ["b", "c"]}),
        ({"rates": '{"USD": 2}', "least": 1}, {"rates": {"USD": 2}, "least": 1}),
        ({}, None),
    ],
)
def test_text_is_read_as_the_type_that_the_flow_declares(
    shop: World, typed: dict[str, Any], stored: dict[str, Any] | None
) -> None:
    resubmit(shop, typed)
    attempt = shop.daemons[0].claim_one()
    assert attempt.params == DECLARED | (stored or {})
    assert given(shop)[-1] == stored


@pytest.mark.parametrize(
    ("params", "message", "hint"),
    [
        ({"leest": 0}, "job clean has no parameter 'leest'", KINDS),
        ({"least": "many"}, 'parameter least of job clean is a whole number, and not "many"', "in its flow it is 5"),
        ({"least": 0.5}, "parameter least of job clean is a whole number, and not 0.5", "in its flow it is 5"),
        ({"least": None}, "parameter least of job clean is a whole number, and not null", "in its flow it is 5"),
        ({"share": "NaN"}, 'parameter share of job clean is a number, and not "NaN"', "in its flow it is 0.5"),
        ({"currency": 1}, "parameter currency of job clean is text, and not 1", 'in its flow it is "EUR"'),
        ({"strict": "1"}, 'parameter strict of job clean is true or false, and not "1"', "in its flow it is true"),
        ({"shops": "b"}, 'parameter shops of job clean is a list, and not "b"', 'in its flow it is ["a"]'),
        ({"rates": []}, "parameter rates of job clean is a table, and not []", 'in its flow it is {"EUR": 1}'),
        (["least"], "params have to be an object", """{"name": value}, with names of the job's parameters"""),
        ({"currency": "x" * 10001}, "params are longer than 10000 characters", "put large values into a dataset that the job reads"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_parameter_that_the_flow_does_not_declare_is_refused_and_changes_nothing(
    shop: World, params: Any, message: str, hint: str, dry_run: bool
) -> None:
    before = shop.everything()
    with pytest.raises(psycopg.Error) as refused:
        shop.do(
            'SELECT dataflow.resubmit_with(\'{"job": "clean"}\', params => %s, dry_run => %s)',
            Jsonb(params),
            dry_run,
        )
    diagnosis = refused.value.diag
    assert (diagnosis.sqlstate, diagnosis.message_primary, diagnosis.message_hint) == ("DF400", message, hint)
    assert shop.everything() == before


def test_each_job_of_the_selected_runs_has_to_know_the_parameter(shop: World) -> None:
    assert len(shop.rows(RESUBMIT, Jsonb({"dataid": DAY}), Jsonb({"least": 0}))) == 2
    with pytest.raises(psycopg.Error, match="job sums has no parameter 'share'") as refused:
        shop.do(RESUBMIT, Jsonb({"dataid": DAY}), Jsonb({"share": 0.1}))
    assert refused.value.diag.message_hint == "its parameters are least (a whole number)"


def test_parameters_are_not_set_by_a_plain_update(shop: World) -> None:
    with pytest.raises(psycopg.Error, match="only status and reason of good/"):
        shop.do("UPDATE dataflow.datastatus SET params = '{}' WHERE datasetid = 'good'")
