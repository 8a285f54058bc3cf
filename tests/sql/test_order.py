"""The work order: what it tells a runner about an attempt, and what it leaves out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from dataflowd.model.work_order import Dataset

if TYPE_CHECKING:
    from tests.fix_world import Attempt, World

DAY = "2026-01-01"


def order(world: World, attempt: Attempt, token: UUID | None = None) -> Any:
    return world.value("SELECT dataflow.work_order(%s, %s)", attempt.attempt, token or attempt.token)


def test_an_external_chunk_is_where_its_dataset_says(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    found = order(pipeline, pipeline.daemon().claim_one())
    [chunk] = found["inputs"]["raw"]["chunks"]
    assert (chunk["dataid"], chunk["location"], chunk["files"]) == (DAY, f"/data/raw/{DAY}", None)
    assert found["outputs"]["clean"]["location"] == "/data/clean/{dataid}"
    assert Dataset.parse(found["outputs"]["clean"]["dataset"]).name == "clean"


def test_a_published_chunk_is_what_the_manifest_of_the_claimed_version_says(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    files = [{"path": "part-0.parquet", "bytes": 10, "rows": 1}]
    manifest = {"location": "/data/clean/attempt=1", "files": files, "rows": 1, "bytes": 10}
    daemon.finish(daemon.claim_one(), outputs={"clean": manifest})
    [chunk] = order(pipeline, daemon.claim_one())["inputs"]["clean"]["chunks"]
    assert chunk == {
        "dataid": DAY,
        "version": 1,
        "location": "/data/clean/attempt=1",
        "files": files,
        "rows": 1,
        "validated": True,
        "batch": None,
    }


def test_all_chunks_of_a_fan_in_come_in_order(world: World) -> None:
    world.job("total", {"raw": {"kind": "all", "dataids": ["10", "9", "1"]}}, "sums")
    world.ready("raw", "10", "9", "1")
    chunks = order(world, world.daemon().claim_one())["inputs"]["raw"]["chunks"]
    assert [chunk["dataid"] for chunk in chunks] == ["1", "9", "10"]


def test_only_the_token_opens_an_order_and_it_is_not_in_it(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    attempt = daemon.claim_one()
    assert order(pipeline, attempt, uuid4()) is None
    assert str(attempt.token) not in json.dumps(order(pipeline, attempt))
    daemon.finish(attempt)
    assert order(pipeline, attempt) is None
