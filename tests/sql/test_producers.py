"""A dataset changes its producer: from outside to a job, from one job to another, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.fix_world import World

DAY = "2026-01-01"


def test_a_job_may_take_over_a_dataset_that_came_from_outside(world: World) -> None:
    world.job("check", "orders", "checked")
    world.ready("orders", DAY)
    world.job("clean", "raw", "orders")
    world.ready("raw", DAY, "2026-01-02")
    daemon = world.daemon()
    assert daemon.runs() == {("check", DAY), ("clean", "2026-01-02")}
    assert world.rows("SELECT ready, running FROM dataflow.status() WHERE jobid = 'clean'") == [(1, 1)]


def test_a_chunk_from_outside_can_be_made_again_by_the_job_that_took_over(world: World) -> None:
    world.dataset("orders")
    world.ready("orders", DAY)
    world.job("clean", "raw", "orders")
    world.ready("raw", DAY)
    assert world.set_status("orders", DAY, "RESUBMIT") == 1
    assert world.daemon().work_off() == [("clean", DAY)]
    assert world.version("orders", DAY) == 2


def test_what_a_retired_producer_was_writing_has_failed_and_its_attempt_is_fenced(world: World) -> None:
    world.job("clean", "raw", "orders")
    world.ready("raw", DAY)
    daemon = world.daemon()
    attempt = daemon.claim_one()
    world.as_framework("DELETE FROM dataflow.job_output")
    assert world.status("orders", DAY) == "FAILED"
    assert daemon.finish(attempt) == "fenced"


def test_another_producer_makes_again_what_the_first_was_writing(world: World) -> None:
    world.job("clean", "raw", "orders")
    world.job("better", "raw", "other")
    world.ready("raw", DAY)
    daemon = world.daemon()
    attempts = {attempt.job: attempt for attempt in daemon.claim()}
    world.as_framework("UPDATE dataflow.job_output SET jobid = 'better' WHERE jobid = 'clean'")
    assert daemon.finish(attempts["clean"]) == "fenced"
    # A run makes all its outputs together: the attempt that was claimed without this output is made again.
    assert daemon.finish(attempts["better"]) == "fenced"
    assert daemon.work_off() == [("better", DAY)]
    assert world.status("orders", DAY) == "READY"


def test_what_a_job_has_made_is_not_registered_over_it(world: World) -> None:
    world.job("clean", "raw", "orders")
    world.ready("raw", DAY)
    world.daemon().work_off()
    with pytest.raises(psycopg.DatabaseError, match=f"chunk orders/{DAY} is made by job clean") as caught:
        world.ready("orders", DAY)
    assert "dataflowctl resubmit clean --dataid 2026-01-01" in str(caught.value.diag.message_hint)
    assert world.version("orders", DAY) == 1
    world.set_status("orders", DAY, "FAILED")
    with pytest.raises(psycopg.DatabaseError, match=f"chunk orders/{DAY} is made by job clean"):
        world.ready("orders", DAY)
    assert world.status("orders", DAY) == "FAILED"


def test_what_a_retired_producer_left_is_ready_again_as_its_last_version_or_not_at_all(world: World) -> None:
    world.job("clean", "raw", "orders")
    world.ready("raw", DAY, "2026-01-02")
    daemon = world.daemon()
    first, second = sorted(daemon.claim(), key=lambda attempt: attempt.dataid)
    daemon.finish(first, outputs={"orders": {"location": "/data/orders/attempt=1"}})
    daemon.fail(second)
    world.as_framework("DELETE FROM dataflow.job_output")
    world.set_status("orders", DAY, "FAILED")
    world.set_status("orders", DAY, "READY")
    location = world.value("SELECT location FROM dataflow.data_location('orders', %s)", DAY)
    assert location == "/data/orders/attempt=1"
    with pytest.raises(psycopg.DatabaseError, match="there is no published version of it") as refused:
        world.set_status("orders", "2026-01-02", "READY")
    assert refused.value.diag.message_hint == (
        "dataflowctl ready orders 2026-01-02 registers data that was brought from outside"
    )


def test_a_chunk_whose_data_was_brought_from_outside_is_a_directory_of_its_own(world: World) -> None:
    world.job("clean", "raw", "orders")
    world.ready("raw", DAY)
    daemon = world.daemon()
    daemon.fail(daemon.claim_one())
    world.ready("orders", DAY)
    world.as_framework("UPDATE dataflow.dataset SET location = '/data/orders/'")
    location = world.value("SELECT location FROM dataflow.data_location('orders', %s)", DAY)
    assert location == f"/data/orders/dataid={DAY}"
    detail = world.value("SELECT detail FROM dataflow.why('clean', %s) WHERE number = 0", DAY)
    assert detail.startswith("version 1 was registered by hand")


def test_failed_chunks_of_a_retired_job_are_listed_by_dataset_and_deleted_with_the_job(world: World) -> None:
    world.job("clean", "raw", "orders")
    world.ready("raw", DAY)
    daemon = world.daemon()
    daemon.fail(daemon.claim_one())
    world.as_framework("DELETE FROM dataflow.job_output")
    world.as_framework("UPDATE dataflow.job SET retired = now()")
    causes = "SELECT code, runs, jobs, example_jobid, reason FROM dataflow.causes()"
    assert world.rows(causes) == [("NO_PRODUCER", 1, 0, None, "1 chunk of orders: no job makes them")]
    world.as_framework("UPDATE dataflow.dataset SET retired = now() WHERE datasetid = 'orders'")
    assert world.rows(causes) == []
    assert "its flow no longer declares the job" in world.value(
        "SELECT detail FROM dataflow.why('clean', %s) WHERE number = 0", DAY
    )
    assert world.rows("SELECT dataid, chunks, attempts FROM dataflow.delete_runs('clean')") == [(DAY, 1, 1)]
    assert world.rows("SELECT FROM dataflow.datastatus WHERE datasetid = 'orders'") == []
