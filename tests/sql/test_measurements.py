"""A chunk from outside is measured once for each version, and the work order tells the attempt what to expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import Attempt, World

DAY, NEXT_DAY = "2026-01-01", "2026-01-02"
FOUND = {"files": 1, "bytes": 3, "modified": "2026-01-01T05:00:00.000+00:00"}


def chunk(world: World, attempt: Attempt, dataset: str = "raw") -> Any:
    document = world.value("SELECT dataflow.attempt_order(%s, %s)", attempt.attempt, attempt.token)
    [found] = document["inputs"][dataset]["chunks"]
    return found


def note(world: World, dataset: str, **found: Any) -> int:
    return int(world.value("SELECT dataflow.note_found(%s, %s)", dataset, Jsonb(found)))


def seen(dataid: str, **more: Any) -> dict[str, Any]:
    """What a host found, in the form in which it comes with a result."""
    return {"inputs": {"raw": {"listed": [{"dataid": dataid, "location": "/data", **FOUND, **more}]}}}


def test_a_registered_chunk_is_found_as_it_was_measured_and_a_new_version_is_measured_anew(
    pipeline: World,
) -> None:
    pipeline.ready("raw", DAY)
    assert note(pipeline, "raw", **{DAY: FOUND, NEXT_DAY: FOUND}) == 1
    assert note(pipeline, "raw", **{DAY: FOUND | {"bytes": 4}}) == 0
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    assert chunk(pipeline, attempt)["measured"] == FOUND
    daemon.finish(attempt)
    pipeline.ready("raw", DAY)
    pipeline.resubmit(job="clean_orders", status="READY")
    assert "measured" not in chunk(pipeline, daemon.claim_one())


def test_an_unmeasured_chunk_is_measured_by_the_first_run_that_succeeds(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.fail(daemon.claim_one(), found=seen(DAY))
    pipeline.resubmit(job="clean_orders")
    attempt = daemon.claim_one()
    assert "measured" not in chunk(pipeline, attempt)
    daemon.finish(attempt, found=seen(DAY, version=9))
    pipeline.resubmit(job="clean_orders", status="READY")
    again = daemon.claim_one()
    assert chunk(pipeline, again)["measured"] == FOUND
    daemon.finish(again, found=seen(DAY, bytes=4))
    assert pipeline.rows("SELECT found, measured_by FROM dataflow.measurement") == [(FOUND, "alpha")]


def test_a_location_that_chunks_share_and_a_format_without_files_are_not_measured(world: World) -> None:
    world.dataset("raw", location="/data/raw")
    world.dataset("lake", format="delta")
    world.job("clean_orders", ["raw", "lake"], "clean")
    for dataset in ("raw", "lake"):
        assert world.rows("SELECT * FROM dataflow.measures(%s)", dataset) == [(False, False)]
        world.ready(dataset, DAY)
        assert note(world, dataset, **{DAY: FOUND}) == 0


def test_what_is_withdrawn_and_registered_again_is_measured_anew(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    note(pipeline, "raw", **{DAY: FOUND})
    pipeline.do("SELECT * FROM dataflow.unregister('raw', %s)", [DAY])
    pipeline.ready("raw", DAY)
    assert "measured" not in chunk(pipeline, pipeline.daemon().claim_one())


def test_a_dataset_says_whether_digests_and_times_count(world: World) -> None:
    world.dataset("raw", digest=True, expect_newer=True)
    world.job("clean_orders", "raw", "clean")
    world.ready("raw", DAY)
    attempt = world.daemon().claim_one()
    assert chunk(world, attempt)["not_older"] == "2026-01-01T00:00:00.000+00:00"
    document = world.value("SELECT dataflow.attempt_order(%s, %s)", attempt.attempt, attempt.token)
    assert document["inputs"]["raw"]["dataset"]["digest"] is True
    assert "digest" not in document["outputs"]["clean"]["dataset"]
    # Hosts of release 0.1 refuse an order with unknown keys.
    old = world.value("SELECT dataflow.work_order(%s, %s)", attempt.attempt, attempt.token)
    assert old["inputs"]["raw"]["chunks"][0].keys().isdisjoint({"measured", "not_older"})


@pytest.mark.parametrize("found", ["[]", '{"2026-01-01": 1}', '{"2026-01-01": {"files": "1", "bytes": 2}}'])
def test_a_malformed_measurement_is_refused(pipeline: World, found: str) -> None:
    pipeline.ready("raw", DAY)
    before = pipeline.everything()
    with pytest.raises(psycopg.Error, match="no measurements") as refused:
        pipeline.value("SELECT dataflow.note_found('raw', %s::jsonb)", found)
    assert refused.value.sqlstate == "DF400"
    assert pipeline.everything() == before
