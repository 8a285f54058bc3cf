"""Partitionings: a source may have several splits, stored as data, and the work order describes the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import World

HALVES = [
    {"dataid": "size_5.1", "bounds": {"low": None, "high": ["5"]}, "items": 5},
    {"dataid": "size_5.2", "bounds": {"low": ["5"], "high": None}, "items": 3},
]

MANY, PAGES_A_BATCH = 1000, 20


def create(pipeline: World, name: str = "size_5", *, held: bool = False, dataset: str = "raw") -> Any:
    batches = [batch | {"dataid": f"{name}.{number}"} for number, batch in enumerate(HALVES, start=1)]
    return pipeline.value(
        "SELECT dataflow.create_partitioning(%s, %s, ARRAY['id'], 'size', 5, %s, %s)",
        dataset,
        name,
        Jsonb(batches),
        held,
    )


def test_batches_become_chunks_and_the_order_says_which_records_they_are(pipeline: World) -> None:
    assert create(pipeline) == 2
    daemon = pipeline.daemon()
    first, second = daemon.claim()
    assert [first.dataid, second.dataid] == ["size_5.1", "size_5.2"]
    order = pipeline.value("SELECT dataflow.work_order(%s, %s)", second.attempt, second.token)
    assert isinstance(order, dict)
    [chunk] = order["inputs"]["raw"]["chunks"]
    assert chunk["batch"] == {"columns": ["id"], "bounds": {"low": ["5"], "high": None}}
    daemon.finish(first)
    assert pipeline.rows(
        "SELECT partitioning, batches, items, ready, held, consumed FROM dataflow.partitionings('raw')"
    ) == [("size_5", 2, 8, 2, 0, 1)]


def test_a_split_that_was_just_made_is_listed_by_key_although_no_statistics_know_it(pipeline: World) -> None:
    many = [{"dataid": f"many.{number}", "bounds": {}, "items": 1} for number in range(MANY)]
    # One transaction: no autovacuum can come between and correct the statistics.
    with pipeline.connection.transaction():
        pipeline.do(
            "SELECT dataflow.create_partitioning('raw', 'many', ARRAY['id'], 'size', 1, %s)", Jsonb(many)
        )
        [plan] = pipeline.value(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM dataflow.partitionings('raw')"
        )
    assert plan["Plan"]["Shared Hit Blocks"] < MANY * PAGES_A_BATCH


def test_several_live_side_by_side_and_one_on_hold_starts_nothing(pipeline: World) -> None:
    create(pipeline, held=True)
    create(pipeline, "test1")
    assert {attempt.dataid for attempt in pipeline.daemon().claim()} == {"test1.1", "test1.2"}
    pipeline.do("SELECT dataflow.release('raw', 'size_5.1')")
    assert pipeline.status("raw", "size_5.1") == "READY"


def test_a_batch_on_hold_can_be_tried_and_another_held_chunk_cannot(pipeline: World) -> None:
    create(pipeline, held=True)
    order = pipeline.value("SELECT dataflow.trial_order('clean_orders', 'size_5.2')")
    assert isinstance(order, dict)
    [chunk] = order["inputs"]["raw"]["chunks"]
    assert chunk["batch"] == {"columns": ["id"], "bounds": {"low": ["5"], "high": None}}
    pipeline.ready("raw", "d1")
    pipeline.do("SELECT dataflow.hold('raw', 'd1')")
    refused = pipeline.value("SELECT dataflow.trial_order('clean_orders', 'd1') ->> 'code'")
    assert refused == "LOCKED"


def test_a_name_is_taken_once_and_a_made_dataset_is_not_split(pipeline: World) -> None:
    create(pipeline)
    with pytest.raises(psycopg.Error, match="has a partitioning size_5 already"):
        create(pipeline)
    with pytest.raises(psycopg.Error, match="is made by job clean_orders"):
        create(pipeline, dataset="clean")


def test_delete_forgets_the_chunks_and_is_refused_while_one_is_read(pipeline: World) -> None:
    create(pipeline)
    daemon = pipeline.daemon()
    attempts = daemon.claim()
    with pytest.raises(psycopg.Error, match="is being written or read"):
        pipeline.value("SELECT dataflow.delete_partitioning('raw', 'size_5')")
    daemon.finish(*attempts)
    assert pipeline.value("SELECT dataflow.delete_partitioning('raw', 'size_5', true)") == 2
    assert pipeline.status("raw", "size_5.1") == "READY"
    assert pipeline.value("SELECT dataflow.delete_partitioning('raw', 'size_5')") == 2
    assert pipeline.status("raw", "size_5.1") is None
    with pytest.raises(psycopg.Error, match="has no partitioning size_5"):
        pipeline.value("SELECT dataflow.delete_partitioning('raw', 'size_5')")
