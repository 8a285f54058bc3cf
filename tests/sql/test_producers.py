"""A dataset changes hands: from the outside world to a job, from one job to another, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    assert daemon.finish(attempts["better"]) == "accepted"
    world.set_status("other", DAY, "RESUBMIT")
    assert daemon.work_off() == [("better", DAY)]
    assert world.status("orders", DAY) == "READY"
