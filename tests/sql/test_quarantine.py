"""Bad records: a person's resolutions are stored, given to the next attempt, and counted as applied when it publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import Attempt, World

DAY = "2026-01-01"


def bad(item: str, mark: str = "M") -> dict[str, Any]:
    return {"item": item, "reason": "no amount", "details": {"record": {"id": item}, "mark": mark + item}}


def published(pipeline: World, *items: str) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one(), quarantine=[bad(item) for item in items])


def take_back(pipeline: World, **resolutions: dict[str, Any]) -> Any:
    records = [
        {"dataid": DAY, "itemid": item, "resolution": resolution} for item, resolution in resolutions.items()
    ]
    return pipeline.value("SELECT dataflow.resolve_records('clean_orders', %s)", Jsonb(records))


def replay(pipeline: World, *, with_open: bool = False) -> list[Any]:
    return pipeline.rows("SELECT * FROM dataflow.replay('clean_orders', with_open => %s)", with_open)


def order(pipeline: World, attempt: Attempt) -> dict[str, Any]:
    document = pipeline.value("SELECT dataflow.work_order(%s, %s)", attempt.attempt, attempt.token)
    assert isinstance(document, dict)
    return document


def records(pipeline: World) -> list[Any]:
    return pipeline.rows(
        "SELECT itemid, is_resolved, applied IS NOT NULL FROM dataflow.quarantine ORDER BY itemid"
    )


def test_resolutions_go_into_the_next_order_and_are_replayed_once(pipeline: World) -> None:
    published(pipeline, "a", "b", "c")
    assert replay(pipeline) == []
    assert take_back(pipeline, a={"repaired": {"id": 7}}, b={"reason": "a test"}) == 2
    assert take_back(pipeline, a={"repaired": {"id": 7}}) == 0
    assert replay(pipeline) == [(DAY, "READY", 2, 1)]
    daemon = pipeline.daemon("beta")
    attempt = daemon.claim_one()
    assert order(pipeline, attempt)["resolved"] == [
        {"mark": "Ma", "repaired": {"id": 7}},
        {"mark": "Mb", "repaired": None},
    ]
    assert daemon.finish(attempt, applied=True, quarantine=[bad("c")]) == "accepted"
    assert records(pipeline) == [("a", True, True), ("b", True, True), ("c", False, False)]
    assert replay(pipeline) == []
    assert replay(pipeline, with_open=True) == [(DAY, "READY", 0, 1)]


def test_a_resolution_that_comes_while_an_attempt_runs_waits_for_the_next_attempt(pipeline: World) -> None:
    published(pipeline, "a", "b")
    take_back(pipeline, a={"reason": "a test"})
    replay(pipeline)
    daemon = pipeline.daemon("beta")
    attempt = daemon.claim_one()
    take_back(pipeline, b={"reason": "a test"})
    daemon.finish(attempt, applied=True)
    assert records(pipeline) == [("a", True, True), ("b", True, False)]
    assert replay(pipeline) == [(DAY, "READY", 1, 0)]


def test_a_record_that_is_bad_again_after_its_repair_is_open_again(pipeline: World) -> None:
    published(pipeline, "a")
    take_back(pipeline, a={"repaired": {"id": -1}})
    replay(pipeline)
    daemon = pipeline.daemon("beta")
    daemon.finish(daemon.claim_one(), applied=True, quarantine=[bad("a", mark="N")])
    assert records(pipeline) == [("a", False, False)]
    assert pipeline.value("SELECT resolution FROM dataflow.quarantine") is None
    earlier = pipeline.value("SELECT details -> 'earlier' FROM dataflow.quarantine")
    assert isinstance(earlier, dict)
    assert (earlier["record"], earlier["resolution"]) == ({"id": "a"}, {"repaired": {"id": -1}})


def test_every_later_rerun_gets_what_was_resolved_and_replaces_what_is_open(pipeline: World) -> None:
    published(pipeline, "a", "b", "c")
    take_back(pipeline, a={"repaired": {"id": 7}})
    replay(pipeline)
    daemon = pipeline.daemon("beta")
    daemon.finish(daemon.claim_one(), applied=True, quarantine=[bad("b"), bad("c")])
    for _ in range(2):
        pipeline.resubmit(job="clean_orders", status=["READY"])
        attempt = daemon.claim_one()
        assert order(pipeline, attempt)["resolved"] == [{"mark": "Ma", "repaired": {"id": 7}}]
        daemon.finish(attempt, applied=True, quarantine=[bad("c"), bad("d")])
        assert records(pipeline) == [("a", True, True), ("c", False, False), ("d", False, False)]
    pipeline.resubmit(job="clean_orders", status=["READY"])
    daemon.fail(daemon.claim_one(), quarantine=[bad("e")])
    assert [item for item, *_ in records(pipeline)] == ["a", "c", "d"]


def test_a_record_that_was_not_set_aside_is_named_and_nothing_is_resolved(pipeline: World) -> None:
    published(pipeline, "a")
    with pytest.raises(psycopg.Error, match="has set aside no record z"):
        take_back(pipeline, a={}, z={})
    assert records(pipeline) == [("a", False, False)]


def test_groups_are_by_reason_and_have_an_example(pipeline: World) -> None:
    published(pipeline, "a", "b")
    assert pipeline.rows(
        "SELECT jobid, code, reason, open, chunks, example_itemid, example FROM dataflow.quarantine_groups()"
    ) == [("clean_orders", "BAD_RECORD", "no amount", 2, 1, "a", {"id": "a"})]


def test_a_resolution_can_be_withdrawn_and_replay_undoes_it(pipeline: World) -> None:
    published(pipeline, "a", "b")
    take_back(pipeline, a={"reason": "a test"}, b={"reason": "a test"})
    replay(pipeline)
    daemon = pipeline.daemon("beta")
    daemon.finish(daemon.claim_one(), applied=True)
    assert records(pipeline) == [("a", True, True), ("b", True, True)]
    unresolve = "SELECT dataflow.unresolve('clean_orders', %s, %s)"
    assert pipeline.value(unresolve, DAY, ["a"]) == 1
    assert pipeline.value(unresolve, DAY, ["a"]) == 0
    with pytest.raises(psycopg.Error, match="no record nix"):
        pipeline.value(unresolve, DAY, ["b", "nix"])
    assert records(pipeline) == [("a", False, True), ("b", True, True)]
    earlier = "SELECT details -> 'earlier' -> 'resolution' FROM dataflow.quarantine WHERE itemid = 'a'"
    assert pipeline.value(earlier) == {"reason": "a test"}
    assert replay(pipeline) == [(DAY, "READY", 0, 1)]
    attempt = daemon.claim_one()
    assert [each["mark"] for each in order(pipeline, attempt)["resolved"]] == ["Mb"]
    daemon.finish(attempt, quarantine=[bad("a")], applied=True)
    assert records(pipeline) == [("a", False, False), ("b", True, True)]
    assert replay(pipeline) == []


def test_groups_tell_how_many_are_resolved_also_when_only_open_ones_are_shown(pipeline: World) -> None:
    published(pipeline, "a", "b", "c")
    take_back(pipeline, a={"reason": "a test"})
    groups = "SELECT open, resolved, example_itemid FROM dataflow.quarantine_groups()"
    assert pipeline.rows(groups) == [(2, 1, "b")]
    take_back(pipeline, b={"reason": "a test"}, c={"reason": "a test"})
    assert pipeline.rows(groups) == []
