"""Statistics of a job count each batch in one state, each attempt once, and each record once, also when it was made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import Attempt, Daemon, World


@pytest.fixture
def shop(world: World) -> World:
    world.dataset(
        "customers", format="postgres", location=None, hostname="db7", database="crm", tablename="people"
    )
    world.job("load", "customers", "loaded", max_attempts=3, retry_delay="0s", description="All customers")
    for name, held in (("size_5", False), ("test1", True)):
        bounds = {"low": None, "high": None}
        batches = [{"dataid": f"{name}.{number}", "bounds": bounds, "items": 5} for number in (1, 2, 3)]
        world.do(
            "SELECT dataflow.create_partitioning('customers', %s, ARRAY['id'], 'size', 5, %s, %s)",
            *(name, Jsonb(batches), held),
        )
    return world


def stats(shop: World) -> dict[str, Any]:
    found = shop.value("SELECT dataflow.job_stats('load')")
    assert isinstance(found, dict)
    return found


def done(daemon: Daemon, attempt: Attempt, rows: int = 4, **details: Any) -> None:
    nodes = [
        {"node": "read", "items": 5, "successes": rows, "failures": 5 - rows, "seconds": 0.5},
        {
            "node": "write",
            "parent": "read",
            "sources": ["read"],
            "items": rows,
            "successes": rows,
            "seconds": 1,
        },
    ]
    made = {"loaded": {"rows": rows, "bytes": 100}}
    usage = {"cpu_seconds": 2.5, "seconds": 1.0}
    assert daemon.finish(attempt, outputs=made, nodes=nodes, usage=usage, **details) == "accepted"


def test_every_batch_of_every_partitioning_is_in_one_state(shop: World) -> None:
    daemon = shop.daemon()
    first, second, _ = daemon.claim()
    done(daemon, first)
    daemon.fail(second, retry=False)
    [source] = stats(shop)["sources"]
    assert (source["datasetid"], source["format"], source["hostname"], source["place"]) == (
        *("customers", "postgres", "db7"),
        "crm.people",
    )
    assert [
        (split["partitioning"], split["batches"], split["items"]) for split in source["partitionings"]
    ] == [
        ("size_5", 3, 15),
        ("test1", 3, 15),
    ]
    assert [split["states"] for split in source["partitionings"]] == [
        {"READY": 1, "FAILED": 1, "RUNNING": 1},
        {"HOLD": 3},
    ]
    shop.do("SELECT dataflow.release('customers', 'test1.1')")
    assert stats(shop)["sources"][0]["partitionings"][1]["states"] == {"HOLD": 2, "WAITING": 1}


def test_attempts_times_items_and_retries_are_counted_once(shop: World) -> None:
    daemon = shop.daemon()
    first, second, third = daemon.claim()
    done(daemon, first)
    daemon.fail(second)
    shop.later()
    [again] = daemon.claim()
    done(daemon, again)
    daemon.crash()
    shop.rows("SELECT FROM dataflow.rescue()")
    other = shop.daemon("beta")
    [rescued] = other.claim()
    assert rescued.dataid == third.dataid
    done(other, rescued, rows=5)

    found = stats(shop)
    execution = found["execution"]
    assert {key: execution[key] for key in ("attempts", "done", "failed", "lost", "retries", "items")} == {
        "attempts": 5,
        "done": 3,
        "failed": 1,
        "lost": 1,
        "retries": 2,
        "items": 13,
    }
    assert execution["cpu_seconds"] == pytest.approx(7.5)
    seconds = execution["seconds"]
    assert 0 < seconds["busy"] <= seconds["total"] + 0.01
    assert execution["items_per_second"] == pytest.approx(13 / seconds["busy"])
    in_order = [seconds[key] for key in ("least", "median", "p90", "p95", "p99", "most")]
    assert in_order == sorted(in_order)
    assert len(execution["slowest"]) == 4  # a lost attempt has no known duration
    assert execution["slowest"][0]["seconds"] == seconds["most"]
    assert found["description"] == "All customers"
    assert {(each["code"], each["attempts"]) for each in found["exceptions"]} == {
        ("JOB_FAILED", 1),
        ("LOST", 1),
    }


def test_a_batch_that_is_made_again_is_counted_once_among_the_nodes(shop: World) -> None:
    daemon = shop.daemon()
    for attempt in daemon.claim():
        done(daemon, attempt)
    shop.resubmit(job="load", dataid="size_5.2", status=["READY"])
    [again] = daemon.claim()
    assert [node["items"] for node in stats(shop)["nodes"]] == [15, 12]
    done(daemon, again, rows=5)
    assert stats(shop)["nodes"] == [
        {
            "node": "read",
            "parent": None,
            "sources": [],
            "attempts": 3,
            "items": 15,
            "successes": 13,
            "failures": 2,
            "seconds": 1.5,
        },
        {
            "node": "write",
            "parent": "read",
            "sources": ["read"],
            "attempts": 3,
            "items": 13,
            "successes": 13,
            "failures": 0,
            "seconds": 3,
        },
    ]
    assert stats(shop)["published"]["rows"] == 13
    assert stats(shop)["execution"]["items"] == 17
    [[own]] = shop.rows(
        "SELECT nodes FROM dataflow.attempts('load', 'size_5.2') ORDER BY attempt DESC LIMIT 1"
    )
    assert [(node["node"], node["items"]) for node in own] == [("read", 5), ("write", 5)]


def test_exceptions_are_counted_as_present_resolved_and_not_yet_applied(shop: World) -> None:
    daemon = shop.daemon()
    attempts = daemon.claim()
    bad = [{"item": item, "reason": "no name", "details": {"mark": item}} for item in ("a", "b", "c")]
    done(daemon, attempts[0], quarantine=bad)
    shop.do("SELECT dataflow.resolve('load', 'size_5.1', ARRAY['a', 'b'])")
    assert stats(shop)["quarantine"] == {"open": 1, "resolved": 2, "unapplied": 2}


def test_a_job_that_has_done_nothing_has_statistics_too(shop: World) -> None:
    execution = stats(shop)["execution"]
    assert (execution["attempts"], execution["items"], execution["slowest"]) == (0, 0, [])
    assert execution["items_per_second"] is None


@pytest.mark.parametrize("told", ['"read"', "{}", "null", "[null, 1]"])
def test_sources_of_a_node_that_are_no_list_of_names_do_no_harm(shop: World, told: str) -> None:
    [[found]] = shop.rows("SELECT dataflow._node_sources(%s::jsonb)", told)
    assert found in ([], ["1"])
