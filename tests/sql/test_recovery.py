"""Resubmitting with everything downstream, versions and staleness, holding and releasing."""

from __future__ import annotations

import pytest

from tests.fix_world import World  # noqa: TC001 - pytest shows the type of a fixture

DAY = "2026-01-01"
DAYS = [f"2026-01-{day:02}" for day in range(1, 6)]


@pytest.fixture
def made(pipeline: World) -> World:
    """Raw -> clean -> sums -> report. The last step is wide: all days of the week make one report."""
    pipeline.job("report_orders", {"sums": {"kind": "all", "dataids": DAYS}}, "report")
    pipeline.ready("raw", *DAYS)
    pipeline.daemon().work_off()
    return pipeline


def test_a_resubmit_reaches_only_what_it_names(made: World) -> None:
    assert made.resubmit(job="clean_orders", dataid=DAY) == [("clean_orders", DAY, "READY")]
    assert made.daemons[0].work_off() == [("clean_orders", DAY)]


def test_a_resubmit_downstream_resets_every_consumer_and_runs_in_order_of_dependency(made: World) -> None:
    assert made.resubmit(job="clean_orders", dataid=DAY, downstream=True) == [
        ("clean_orders", DAY, "READY"),
        ("sum_orders", DAY, "READY"),
        ("report_orders", "all", "READY"),
    ]
    assert made.daemons[0].work_off() == [
        ("clean_orders", DAY),
        ("sum_orders", DAY),
        ("report_orders", "all"),
    ]
    assert made.rows("SELECT * FROM dataflow.stale") == []


def test_a_dry_run_shows_the_same_and_changes_nothing(made: World) -> None:
    before = made.everything()
    shown = made.rows(
        'SELECT jobid, dataid, was FROM dataflow.resubmit(\'{"dataid": "2026-01-0[12]", "job": "clean_orders"}\', true, true)'
    )
    assert shown == []
    shown = made.rows(
        'SELECT depth, jobid, dataid FROM dataflow.resubmit(\'{"dataid": "2026-01-01..2026-01-02", "job": "clean_orders"}\', true, true)'
    )
    assert shown == [
        (0, "clean_orders", DAYS[0]),
        (0, "clean_orders", DAYS[1]),
        (1, "sum_orders", DAYS[0]),
        (1, "sum_orders", DAYS[1]),
        (2, "report_orders", "all"),
    ]
    assert made.everything() == before


def test_a_cascade_fences_a_running_consumer_before_its_input_is_rewritten(made: World) -> None:
    daemon = made.daemons[0]
    made.resubmit(job="sum_orders", dataid=DAY)
    running = daemon.claim_one()
    made.resubmit(job="clean_orders", dataid=DAY, downstream=True)
    assert daemon.finish(running) == "fenced"
    made.later()
    assert daemon.work_off() == [("clean_orders", DAY), ("sum_orders", DAY), ("report_orders", "all")]


def test_a_cascade_does_not_add_runs_that_never_ran(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    assert pipeline.resubmit(job="clean_orders", downstream=True) == [("clean_orders", DAY, "READY")]


def test_a_cascade_passes_over_what_an_operator_holds(made: World) -> None:
    made.do("SELECT dataflow.hold('sums', %s)", DAY)
    made.resubmit(job="clean_orders", dataid=DAY, downstream=True)
    assert made.status("sums", DAY) == "HOLD"
    assert made.status("report", "all") == "RESUBMIT"


def test_a_cascade_follows_a_job_that_continues_its_own_output(world: World) -> None:
    days = 150
    world.dataset("balance")
    yesterday = {"kind": "offset", "by": -1, "unit": "number"}
    world.job("carry", {"balance": yesterday, "raw": {"kind": "identity"}}, "balance")
    world.ready("balance", "0")
    world.ready("raw", *[str(day) for day in range(1, days + 1)])
    daemon = world.daemon()
    daemon.work_off()
    assert world.counts()["balance", "carry", "READY"] == days + 1
    again = world.resubmit(job="carry", dataid="1", downstream=True)
    assert [int(dataid) for _, dataid, _ in again] == list(range(1, days + 1))
    assert len(daemon.work_off()) == days


def test_a_cascade_ends_where_jobs_run_in_a_circle(world: World) -> None:
    world.dataset("a", "b")
    world.job("there", "a", "b")
    world.job("back", "b", "a")
    world.ready("a", "1")
    daemon = world.daemon()
    daemon.work_off()
    assert {job for job, _, _ in world.resubmit(job="there", downstream=True)} == {"there", "back"}


def test_selectors_narrow_by_status_error_and_pattern(pipeline: World) -> None:
    pipeline.ready("raw", *DAYS)
    daemon = pipeline.daemon()
    first, second, *rest = daemon.claim()
    daemon.fail(first, code="OUT_OF_MEMORY")
    daemon.fail(second, code="NO_SUCH_FILE")
    daemon.finish(*rest)
    assert pipeline.resubmit(error="NO_SUCH_FILE") == [("clean_orders", DAYS[1], "FAILED")]
    assert pipeline.resubmit(status=["failed"]) == [("clean_orders", DAYS[0], "FAILED")]
    assert pipeline.resubmit(dataset="clean", dataid=["2026-01-*"], status="READY") == [
        ("clean_orders", day, "READY") for day in DAYS[2:]
    ]
    assert pipeline.resubmit(since="2999-01-01") == []


def test_a_consumer_records_which_version_of_each_input_it_used(made: World) -> None:
    daemon = made.daemons[0]
    made.resubmit(job="clean_orders", dataid=DAY)
    daemon.work_off()
    made.resubmit(job="sum_orders", dataid=DAY)
    assert daemon.claim_one().inputs == {f"clean/{DAY}": 2}
    assert (
        made.value(
            "SELECT version FROM dataflow.datastatus WHERE datasetid = 'clean' AND dataid = %s AND locktype = 'IN'",
            DAY,
        )
        == 2
    )


def test_a_chunk_whose_input_was_published_again_is_stale(made: World) -> None:
    made.resubmit(job="clean_orders", dataid=DAY)
    made.daemons[0].work_off()
    assert made.rows("SELECT datasetid, dataid, because, input FROM dataflow.stale") == [
        ("sums", DAY, ["INPUT"], f"clean/{DAY}")
    ]
    assert made.resubmit(stale=True, downstream=True) == [
        ("sum_orders", DAY, "READY"),
        ("report_orders", "all", "READY"),
    ]
    made.daemons[0].work_off()
    assert made.rows("SELECT * FROM dataflow.stale") == []


def test_a_new_version_of_a_source_makes_its_consumer_stale(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.daemon().work_off()
    pipeline.ready("raw", DAY)
    assert pipeline.rows("SELECT datasetid, because FROM dataflow.stale") == [("clean", ["INPUT"])]


@pytest.mark.parametrize(("column", "because"), [("code_hash", "CODE"), ("config_hash", "CONFIGURATION")])
def test_a_chunk_made_by_other_code_or_configuration_is_stale(
    world: World, column: str, because: str
) -> None:
    world.job("clean_orders", "raw", "clean", code_hash="one", config_hash="one")
    world.ready("raw", DAY)
    daemon = world.daemon()
    daemon.finish(daemon.claim_one(), code_hash="one", config_hash="one")
    assert world.rows("SELECT * FROM dataflow.stale") == []
    world.do(
        "UPDATE dataflow.job SET code_hash = CASE %s WHEN 'code_hash' THEN 'two' ELSE 'one' END,"
        " config_hash = CASE %s WHEN 'config_hash' THEN 'two' ELSE 'one' END",
        *(column, column),
    )
    assert world.rows("SELECT datasetid, because FROM dataflow.stale") == [("clean", [because])]


def test_a_held_chunk_keeps_its_consumers_waiting_and_is_released_as_it_was(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.finish(daemon.claim_one())
    assert pipeline.value("SELECT dataflow.hold('clean', %s, 'bad feed')", DAY) == "READY"
    assert pipeline.no("sum_orders", DAY) == {"LOCKED": f"clean/{DAY} is HOLD: bad feed"}
    answers = "SELECT number, answer, code, remedy FROM dataflow.why('sum_orders', %s) WHERE number IN (1, 5) ORDER BY 1"
    release = f"dataflowctl release --dataset clean --dataid {DAY}"
    assert pipeline.rows(answers, DAY) == [(1, True, None, None), (5, False, "LOCKED", release)]
    assert daemon.claim() == []
    assert pipeline.value("SELECT dataflow.release('clean', %s)", DAY) == "READY"
    assert daemon.runs() == {("sum_orders", DAY)}
    assert pipeline.version("clean", DAY) == 1


def test_a_chunk_that_never_existed_can_be_held_and_released(pipeline: World) -> None:
    assert pipeline.value("SELECT dataflow.hold('clean', %s, 'not yet')", DAY) == "NONE"
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    assert daemon.claim() == []
    assert pipeline.no("clean_orders", DAY) == {"LOCKED": f"clean/{DAY} is HOLD: not yet"}
    assert pipeline.value("SELECT dataflow.release('clean', %s)", DAY) == "NONE"
    assert pipeline.status("clean", DAY) is None
    assert daemon.runs() == {("clean_orders", DAY)}


def test_a_source_chunk_can_be_held_before_it_arrives(pipeline: World) -> None:
    pipeline.do("SELECT dataflow.hold('raw', %s, 'known to be broken')", DAY)
    assert pipeline.value("SELECT status FROM dataflow.datastatus") == "HOLD"
    pipeline.do("SELECT dataflow.release('raw', %s)", DAY)
    pipeline.ready("raw", DAY)
    assert pipeline.queue() == {("clean_orders", DAY)}


def test_holding_twice_restores_the_first_status(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.do("SELECT dataflow.hold('raw', %s, 'one')", DAY)
    assert pipeline.value("SELECT dataflow.hold('raw', %s, 'two')", DAY) == "HOLD"
    pipeline.set_status("raw", DAY, "PENDING")
    assert pipeline.value("SELECT dataflow.release('raw', %s)", DAY) == "READY"
