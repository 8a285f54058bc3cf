"""The checks of a chunk from outside are judged once for each version, and question 4 gives the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fix_world import Attempt, World

DAY = "2026-01-01"


def verdict(*, passed: bool, said: str = "") -> list[dict[str, Any]]:
    return [{"dataset": "raw", "dataid": DAY, "passed": passed, "said": said}]


def judged(world: World, attempt: Attempt) -> Any:
    """The verdict on the input in the attempt's work order. None: no attempt has judged it yet."""
    document = world.value("SELECT dataflow.attempt_order(%s, %s)", attempt.attempt, attempt.token)
    [chunk] = document["inputs"]["raw"]["chunks"]
    return chunk.get("judged")


def test_a_version_that_passed_is_not_judged_again_and_a_new_one_is(world: World) -> None:
    world.job("clean_orders", "raw", "clean")
    world.job("count_orders", "raw", "counts")
    world.ready("raw", DAY)
    daemon = world.daemon()
    first, second = daemon.claim()
    assert (judged(world, first), judged(world, second)) == (None, None)
    # The verdict counts although the attempt that gave it has failed.
    daemon.fail(first, judged=verdict(passed=True))
    assert judged(world, second) is True
    daemon.finish(second)
    assert world.rows("SELECT passed, attempt, judged_by FROM dataflow.judgement") == [
        (True, first.attempt, "alpha")
    ]
    world.ready("raw", DAY)
    world.resubmit(job="clean_orders")
    assert judged(world, daemon.claim_one()) is None


def test_a_version_that_failed_is_not_read_until_a_person_vouches_or_a_new_one_comes(world: World) -> None:
    world.job("clean_orders", "raw", "clean", max_attempts=3)
    world.job("count_orders", "raw", "counts")
    world.ready("raw", DAY)
    daemon = world.daemon()
    attempt = daemon.claim_one()
    said = "not_null(id): observed 1 of 4 rows, expected no NULL"
    daemon.fail(attempt, code="NOT_VALIDATED", judged=verdict(passed=False, said=said))
    reason = f"raw/{DAY} has arrived, but is not validated: {said}"
    assert world.no("count_orders", DAY) == {"NOT_VALIDATED": reason}
    assert world.no("clean_orders", DAY) == {"NOT_VALIDATED": reason}
    world.later()
    assert daemon.claim() == []
    world.do("SELECT dataflow.validated('raw', %s)", DAY)
    again = {one.job: one for one in daemon.claim()}
    assert again.keys() == {"clean_orders", "count_orders"}
    assert judged(world, again["count_orders"]) is True
    # A late verdict does not override validated(), which a person has called.
    daemon.fail(again["clean_orders"], code="NOT_VALIDATED", judged=verdict(passed=False, said=said))
    assert world.value(
        "SELECT validated FROM dataflow.datastatus WHERE datasetid = 'raw' AND locktype = 'OUT'"
    )
    daemon.finish(again["count_orders"])
    world.ready("raw", DAY)
    world.later()
    assert judged(world, daemon.claim_one()) is None


def test_a_verdict_on_an_older_version_does_not_touch_the_new_one(world: World) -> None:
    world.job("clean_orders", "raw", "clean")
    world.ready("raw", DAY)
    daemon = world.daemon()
    attempt = daemon.claim_one()
    world.ready("raw", DAY)
    daemon.fail(attempt, code="NOT_VALIDATED", judged=verdict(passed=False, said="bad"))
    assert world.value(
        "SELECT validated FROM dataflow.datastatus WHERE datasetid = 'raw' AND locktype = 'OUT'"
    )
    world.do("SELECT * FROM dataflow.unregister('raw', %s, 'keep')", [DAY])
    assert world.value("SELECT count(*) FROM dataflow.judgement") == 0
