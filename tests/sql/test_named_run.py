"""A person names one run: it is claimed by the usual rules, or forced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest

from tests.fix_world import Attempt

if TYPE_CHECKING:
    from tests.fix_world import Daemon, World

DAY = "2026-01-01"


def claim_run(
    daemon: Daemon, dataid: str = DAY, *, job: str = "clean_orders", forced: bool = False
) -> list[tuple[Any, ...]]:
    return daemon.connection.execute(
        "SELECT attempt, inputs FROM dataflow.claim_run(%s, %s, %s, %s, %s)",
        [daemon.name, daemon.incarnation, job, dataid, forced],
    ).fetchall()


def force(daemon: Daemon, job: str, dataid: str) -> None:
    """Claims the run by force, and finishes it."""
    [attempt] = daemon.connection.execute(
        "SELECT * FROM dataflow.claim_run(%s, %s, %s, %s, true)",
        [daemon.name, daemon.incarnation, job, dataid],
    ).fetchall()
    assert daemon.finish(Attempt(*attempt)) == "accepted"


@pytest.fixture
def months(world: World) -> World:
    """Three days make a month. The first month was made by force, of its first day alone."""
    world.job("sum_month", {"days": {"kind": "window", "size": 3}}, "months")
    world.job("copy_month", "months", "copies")
    world.ready("days", "0")
    force(world.daemon(), "sum_month", "0")
    return world


STALE = "SELECT datasetid, dataid, because, input FROM dataflow.stale"


def test_a_month_made_by_force_of_one_day_is_stale_when_another_day_arrives(months: World) -> None:
    assert months.rows(STALE) == []
    daemon = months.daemons[0]
    assert daemon.work_off() == [("copy_month", "0")]
    months.ready("days", "2")
    assert months.rows(STALE) == [("months", "0", ["INPUT"], "days/2")]
    assert months.rows("SELECT dataid, stale FROM dataflow.chunks('months', only_stale => true)") == [
        ("0", ["INPUT"])
    ]
    months.ready("days", "1")
    assert months.resubmit(job="sum_month", stale=True) == [("sum_month", "0", "READY")]
    assert daemon.work_off() == [("sum_month", "0")]
    # The month is complete now. Its copy was made of the forced version, which is an old one.
    assert months.rows(STALE) == [("copies", "0", ["INPUT"], "months/0")]
    assert months.rows("SELECT * FROM dataflow.forced") == []


def test_an_input_that_is_not_ready_makes_no_forced_version_stale(months: World) -> None:
    months.do("SELECT dataflow.hold('days', '1')")
    months.set_status("days", "0", "FAILED")
    assert months.rows(STALE) == []
    months.set_status("days", "0", "READY")
    assert months.rows(STALE) == [("months", "0", ["INPUT"], "days/0")]


def test_what_was_forced_with_all_its_inputs_is_not_made_stale_by_one_that_is_declared_later(
    months: World,
) -> None:
    months.ready("days", "1", "2", "3")
    force(months.daemons[0], "sum_month", "0")
    months.as_framework(
        """UPDATE dataflow.job_input SET mapping = '{"kind": "window", "size": 4}' WHERE jobid = 'sum_month'"""
    )
    assert months.rows("SELECT datasetid FROM dataflow.stale WHERE datasetid = 'months'") == []
    assert months.rows("SELECT dataid, missing FROM dataflow.forced") == [("0", None)]


def test_a_version_that_was_made_by_force_bears_the_mark_wherever_it_is_shown(months: World) -> None:
    daemon = months.daemons[0]
    assert daemon.work_off() == [("copy_month", "0")]
    missing = ["days/1", "days/2"]
    marks = "SELECT forced, missing, forced_inputs FROM dataflow.chunks(%s)"
    assert months.rows(marks, "months") == [(True, missing, None)]
    assert months.rows(marks, "copies") == [(False, None, ["months/0"])]
    assert months.rows(marks, "days") == [(False, None, None)]
    evidence = "SELECT forced, inputs, missing, forced_inputs FROM dataflow.attempts(%s, '0')"
    assert months.rows(evidence, "sum_month") == [(True, {"days/0": 1}, missing, None)]
    assert months.rows(evidence, "copy_month") == [(False, {"months/0": 1}, None, ["months/0"])]
    lineage = "SELECT datasetid, dataid, forced, missing FROM dataflow.lineage('copies', '0') WHERE depth < 2"
    assert months.rows(lineage) == [("copies", "0", False, None), ("months", "0", True, missing)]
    assert months.rows("SELECT datasetid, dataid, jobid, version, missing FROM dataflow.forced") == [
        ("months", "0", "sum_month", 1, missing)
    ]


def test_why_tells_of_force_missing_inputs_and_staleness(months: World) -> None:
    why = "SELECT number, code, detail, remedy FROM dataflow.why(%s, '0') WHERE number IN (5, 11, 12, 13)"
    again = "dataflowctl resubmit sum_month --dataid 0 --status READY"
    locked = "months/0 is published already (version 1); RESUBMIT rewrites it"
    told = "attempt 1 was forced, and had 1 of 3 inputs: not days/1 (and 1 more)"
    assert months.rows(why, "sum_month") == [
        (5, "LOCKED", locked, "nothing to do"),
        (11, "FORCED", told, f"when they are there: {again}"),
    ]
    stand = months.value("SELECT detail FROM dataflow.why('sum_month', '0') WHERE number = 0")
    assert stand.startswith("attempt 1 on alpha made version 1 by force, finished ")
    months.daemons[0].work_off()
    assert months.rows(why, "copy_month")[1:] == [
        (12, "FORCED_INPUT", "months/0 v1 was made by force", "dataflowctl why sum_month 0")
    ]
    months.ready("days", "1")
    # A resubmit would wait for days/2, which is still missing.
    renewal = (
        "dataflowctl force sum_month 0 makes it again of what is there now;"
        " when days/2 is READY, dataflowctl resubmit sum_month --dataid 0 --stale makes it of all"
    )
    assert months.rows(why, "sum_month") == [
        (5, "LOCKED", locked, renewal),
        (11, "FORCED", told, renewal),
        (13, "STALE", "days/1 was not there then", renewal),
    ]
    months.ready("days", "0", "2")
    [*_, (_, _, detail, remedy)] = months.rows(why, "sum_month")
    assert detail == "days/0 was published again since"
    assert remedy == "dataflowctl resubmit sum_month --dataid 0 --stale makes it again"


def test_status_counts_what_was_forced_and_asks_for_a_hand_where_inputs_were_missing(months: World) -> None:
    overview = months.value("SELECT dataflow.overview()")
    assert {job["jobid"]: job["forced"] for job in overview["jobs"]} == {"copy_month": 0, "sum_month": 1}
    [partial] = [each for each in overview["needs_hand"] if each["code"] == "PARTIAL"]
    assert partial == {
        "code": "PARTIAL",
        "count": 1,
        "detail": "1 chunk of sum_month made by force, without all inputs",
        "remedy": "dataflowctl why sum_month 0",
    }
    assert "PARTIAL" not in str(months.value("SELECT dataflow.overview('copy_month')"))
    months.ready("days", "1", "2")
    force(months.daemons[0], "sum_month", "0")
    overview = months.value("SELECT dataflow.overview()")
    assert "PARTIAL" not in str(overview["needs_hand"])
    assert {job["jobid"]: job["forced"] for job in overview["jobs"]} == {"copy_month": 0, "sum_month": 1}


def refused(daemon: Daemon, sqlstate: str, *, forced: bool) -> str:
    with pytest.raises(psycopg.Error) as error:
        claim_run(daemon, forced=forced)
    assert error.value.sqlstate == sqlstate
    return str(error.value.diag.message_primary)


def test_a_run_that_may_not_start_is_not_given(pipeline: World) -> None:
    daemon = pipeline.daemon()
    assert claim_run(daemon) == []
    pipeline.ready("raw", DAY, "2026-01-02")
    [(attempt, inputs)] = claim_run(daemon, "2026-01-02")
    assert inputs == {"raw/2026-01-02": 1}
    assert pipeline.value("SELECT forced FROM dataflow.attempt WHERE attempt = %s", attempt) is False
    assert pipeline.queue() == {("clean_orders", DAY)}


def test_force_does_not_start_a_second_writer(pipeline: World) -> None:
    daemon, other = pipeline.daemon(), pipeline.daemon("beta")
    pipeline.ready("raw", DAY)
    daemon.claim_one()
    assert "attempt 1 of daemon alpha is at it" in refused(other, "DF423", forced=True)
    assert pipeline.outcomes("clean_orders", DAY) == [None]


def test_a_forced_run_replaces_what_was_published_and_its_consumers_wait(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.ready("raw", DAY)
    daemon.work_off()
    assert pipeline.no("clean_orders", DAY).keys() == {"LOCKED"}
    [(attempt, _)] = claim_run(daemon, forced=True)
    assert pipeline.no("sum_orders", DAY).keys() == {"DATA_NOT_READY", "LOCKED"}
    answers = pipeline.value("SELECT answers FROM dataflow.attempt WHERE attempt = %s", attempt)
    assert [name for name, answer in answers.items() if not answer] == ["safe"]
    token = pipeline.value("SELECT token FROM dataflow.attempt WHERE attempt = %s", attempt)
    finished = daemon.connection.execute(
        "SELECT verdict FROM dataflow.finish(jsonb_build_array(jsonb_build_object("
        "'attempt', %s::bigint, 'token', %s::text, 'outcome', 'DONE')))",
        [attempt, str(token)],
    ).fetchall()
    assert finished == [("accepted",)]
    assert pipeline.version("clean", DAY) == 2
    assert pipeline.queue() == pipeline.rebuilt_queue()


def test_limits_pauses_and_environments_hold_also_by_force(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.ready("raw", DAY)
    pipeline.do("SELECT dataflow.set_concurrency('global', 0)")
    assert "the limit of global, 0 attempts, is reached" in refused(daemon, "DF423", forced=True)
    pipeline.do("SELECT dataflow.set_concurrency('global', 5)")
    pipeline.do("SELECT dataflow.pause('job:clean_orders')")
    assert "job:clean_orders is paused" in refused(daemon, "DF423", forced=True)
    pipeline.do("SELECT dataflow.pause('job:clean_orders', false)")
    pipeline.as_framework("UPDATE dataflow.dataset SET environment = 'prod' WHERE datasetid = 'clean'")
    assert "belongs to environment prod" in refused(daemon, "DF412", forced=True)


def test_an_order_describes_also_the_inputs_of_which_a_forced_run_was_given_nothing(pipeline: World) -> None:
    daemon = pipeline.daemon()
    [(attempt, inputs)] = claim_run(daemon, forced=True)
    assert inputs == {}
    order = pipeline.value(
        "SELECT dataflow.work_order(attempt, token) FROM dataflow.attempt WHERE attempt = %s", attempt
    )
    assert order["forced"] is True
    assert order["inputs"]["raw"]["chunks"] == []
    assert order["inputs"]["raw"]["dataset"]["location"] == "/data/raw/{dataid}"
    preview = pipeline.value("SELECT dataflow.preview_order('clean_orders', %s)", DAY)
    assert preview["inputs"]["raw"]["chunks"][0]["location"] == f"/data/raw/{DAY}"


def test_a_jobs_own_limit_and_the_daemons_hold_also_by_force(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.ready("raw", DAY, "2026-01-02")
    pipeline.as_framework("UPDATE dataflow.job SET max_running = 1 WHERE jobid = 'clean_orders'")
    running = daemon.claim_one()
    for forced in (False, True):
        with pytest.raises(psycopg.Error, match="limit of job:clean_orders, 1 attempt, is reached"):
            claim_run(daemon, "2026-01-02", forced=forced)
    daemon.finish(running)
    pipeline.do("SELECT dataflow.set_concurrency('daemon:alpha', 0)")
    with pytest.raises(psycopg.Error, match="limit of daemon:alpha, 0 attempts, is reached"):
        claim_run(daemon, "2026-01-02")


def test_what_is_being_read_is_not_rewritten_also_not_by_force(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.ready("raw", DAY)
    daemon.finish(daemon.claim_one())
    [reader] = daemon.claim()
    assert reader.run == ("sum_orders", DAY)
    said = refused(daemon, "DF423", forced=True)
    assert said == f"clean/{DAY} is being read by job sum_orders (dataid {DAY})"
    assert pipeline.status("clean", DAY) == "READY"
    daemon.finish(reader)
    assert len(claim_run(daemon, forced=True)) == 1


def test_a_retired_job_is_not_run_also_not_by_force(pipeline: World) -> None:
    daemon = pipeline.daemon()
    pipeline.as_framework("UPDATE dataflow.job SET retired = now() WHERE jobid = 'clean_orders'")
    assert "is retired" in refused(daemon, "DF409", forced=True)


@pytest.mark.parametrize(
    ("claim", "orders"),
    [
        ("SELECT * FROM dataflow.claim(%(daemon)s, %(incarnation)s, 10)", 0),
        ("SELECT * FROM dataflow.claim_run(%(daemon)s, %(incarnation)s, 'clean_orders', '2026-01-01')", 0),
        (
            "SELECT * FROM dataflow.claim_run(%(daemon)s, %(incarnation)s, 'clean_orders', '2026-01-01', true)",
            0,
        ),
        ("SELECT * FROM dataflow.begin_instead('clean_orders', '2026-01-01')", 1),
        ("SELECT * FROM dataflow.begin_instead('clean_orders')", 1),
    ],
)
def test_a_claim_judges_once_and_composes_an_order_at_most_once(
    pipeline: World, claim: LiteralString, orders: int
) -> None:
    """All that needs the answers under the claim lock, the evidence of a forced attempt too, uses one judgement."""
    pipeline.ready("raw", DAY, "2026-01-02")
    daemon = pipeline.daemon()
    counted = "SELECT calls FROM pg_stat_xact_user_functions WHERE schemaname = 'dataflow' AND funcname = %s"
    with daemon.connection.transaction():
        daemon.connection.execute("SET LOCAL track_functions = 'all'")
        named = {"daemon": daemon.name, "incarnation": daemon.incarnation}
        assert daemon.connection.execute(claim, named).fetchall()
        assert daemon.connection.execute(counted, ["_evaluate"]).fetchall() == [(1,)]
        assert daemon.connection.execute(counted, ["_order"]).fetchall() == [(orders,)] * bool(orders)


def test_what_a_host_refused_is_kept_as_evidence_of_a_forced_attempt(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.fail(daemon.claim_one(), code="WRONG_DATA", retry=False)
    [(attempt, _)] = claim_run(daemon, forced=True)
    [told] = pipeline.rows("SELECT told -> 'forced' FROM dataflow.evidence WHERE attempt = %s", attempt)[0]
    assert told == {
        "WRONG_DATA": "attempt 1 found: no such file",
        "LOCKED": f"clean/{DAY} has FAILED (WRONG_DATA) and waits for RESUBMIT",
    }
    reason = pipeline.value("SELECT reason FROM dataflow.event WHERE code = 'FORCED'")
    assert reason == "; ".join(f"{code}: {told[code]}" for code in ("WRONG_DATA", "LOCKED"))
