"""A daemon's state goes from serving to ended and never back. It keeps the first reason and the first error."""

from __future__ import annotations

from dataflowd.daemon.ending import Ending, Phase
from dataflowd.model.errors import NotFoundError


def test_the_first_reason_to_stop_counts() -> None:
    ending = Ending()
    assert not ending.is_stopping
    ending.stop("one")
    ending.stop("two")
    assert (ending.phase, ending.reason, ending.begun.is_set()) == (Phase.DRAINING, "one", True)
    assert not ending.hurried.is_set()


def test_a_hurrying_daemon_does_not_go_back_to_draining() -> None:
    ending = Ending()
    ending.stop("one")
    ending.hurry()
    ending.stop("two")
    assert (ending.phase, ending.reason, ending.hurried.is_set()) == (Phase.HURRYING, "one", True)


def test_the_service_that_died_first_is_the_one_that_is_named() -> None:
    ending, first = Ending(), ValueError("no limit")
    ending.die("control", first)
    ending.die("leases", ValueError("no lease"))
    assert ending.died == ("control", first)
    assert ending.reason == "the service control died: no limit"
    assert ending.phase is Phase.HURRYING


def test_a_refusal_stops_the_daemon_and_is_kept() -> None:
    ending, refusal = Ending(), NotFoundError("no such job", "name another")
    ending.refuse(refusal)
    assert (ending.phase, ending.refusal) == (Phase.DRAINING, refusal)
