"""Registering chunks from outside: which dataids are refused, which are reported as odd, and how a wrong registration is withdrawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.fix_world import Row, World

DAY, NEXT = "2026-01-01", "2026-01-02"
WITHDRAW = "SELECT deed, jobid, dataset, dataid, status FROM dataflow.unregister('raw', %s::text[], %s, %s)"
ODD = "SELECT dataid, code FROM dataflow.preview_ready('raw', %s::text[]) WHERE code IS NOT NULL"

# Without `blocked`: the number of these events depends on how many calls registered the chunks.
EVENTS = (
    "SELECT DISTINCT kind, jobid, dataid, datasetid, actor, application, to_status, code, reason FROM dataflow.event"
    " WHERE kind <> 'blocked' ORDER BY 1, 2, 3, 4"
)


@pytest.mark.parametrize(
    ("ordering", "good", "bad"),
    [
        ("date", ["2028-02-29", "2026-01-31T05", "2026-W05", "2026-01", "2026"], "2026-02-30"),
        ("date", [DAY], "2026-1-1"),
        ("date", [DAY], "2026-01-01T24"),
        ("date", [DAY], "today"),
        ("number", ["0", "007", "99999999999999999999"], "1.5"),
        ("number", ["1"], "x1"),
    ],
)
def test_one_dataid_that_does_not_fit_the_ordering_refuses_the_whole_call(
    world: World, ordering: str, good: list[str], bad: str
) -> None:
    world.dataset("raw", ordering=ordering)
    world.ready("raw", *good)
    before = world.everything()
    with pytest.raises(
        psycopg.Error, match=f"{bad} is no {ordering}, and the ordering of dataset raw"
    ) as refused:
        world.ready("raw", good[0], bad)
    assert refused.value.sqlstate == "DF400"
    assert world.everything() == before


def test_a_natural_or_textual_ordering_takes_any_dataid(world: World) -> None:
    world.dataset("raw")
    world.dataset("words", ordering="text")
    world.ready("raw", "2026-02-30", "x")
    world.ready("words", "2026-02-30", "x")


def test_dataids_that_a_person_should_look_at_twice_are_named(world: World) -> None:
    world.dataset("raw")
    assert world.rows(ODD, ["2026-02-30", "2019-05-05", "9999-01-01", "7"]) == [
        ("2026-02-30", "NO_DATE"),
        ("9999-01-01", "FAR_AWAY"),
    ]
    world.ready("raw", DAY, NEXT)
    assert world.rows(ODD, ["2024-12-30", "2025-01-01", "2026-06-01", "2015-01-01", "2015-W01", DAY]) == [
        ("2015-01-01", "FAR_AWAY"),
        ("2015-W01", "FAR_AWAY"),
        ("2024-12-30", "FAR_AWAY"),
    ]
    world.dataset("numbered", ordering="number")
    world.ready("numbered", "1", "500")
    odd = "SELECT dataid, detail FROM dataflow.preview_ready('numbered', '{501,6000,60000}') WHERE code = 'FAR_AWAY'"
    assert world.rows(odd) == [("60000", "it is more than ten times the greatest that is known, 500")]


def test_of_very_many_dataids_the_first_and_the_last_are_checked(world: World) -> None:
    world.dataset("raw")
    looked_at = "SELECT dataid, location FROM dataflow.preview_ready('raw', ARRAY(SELECT i::text FROM generate_series(1, 5000) i), 4)"
    assert world.rows(looked_at) == [(n, f"/data/raw/{n}") for n in ("1", "2", "4999", "5000")]


def test_a_registration_of_which_nothing_was_made_is_withdrawn_alone(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT)
    assert pipeline.rows(WITHDRAW, [DAY], None, False) == [("withdraw", None, "raw", DAY, "READY")]
    assert (pipeline.status("raw", DAY), pipeline.status("raw", NEXT)) == (None, "READY")
    assert pipeline.queue() == pipeline.rebuilt_queue() == {("clean_orders", NEXT)}
    pipeline.ready("raw", DAY)
    assert pipeline.version("raw", DAY) == 2


def test_a_withdrawal_lists_what_was_made_and_changes_nothing_until_a_person_decides(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.daemon().work_off()
    before = pipeline.everything()
    shown = pipeline.rows(WITHDRAW, [DAY], None, True)
    assert shown == [
        ("withdraw", None, "raw", DAY, "READY"),
        ("undecided", "clean_orders", "clean", DAY, "READY"),
        ("undecided", "sum_orders", "sums", DAY, "READY"),
    ]
    with pytest.raises(
        psycopg.Error, match="2 runs have read raw/2026-01-01: nothing is withdrawn"
    ) as refused:
        pipeline.rows(WITHDRAW, [DAY], None, False)
    assert refused.value.sqlstate == "DF409"
    assert pipeline.everything() == before


def test_what_is_kept_is_stale_when_the_chunk_is_registered_again(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    daemon = pipeline.daemon()
    daemon.work_off()
    deeds = [row[0] for row in pipeline.rows(WITHDRAW, [DAY], "keep", False)]
    assert deeds == ["withdraw", "keep", "keep"]
    assert pipeline.status("raw", DAY) is None
    assert pipeline.status("sums", DAY) == "READY"
    assert pipeline.rows("SELECT dataid FROM dataflow.stale") == []
    assert pipeline.queue() == pipeline.rebuilt_queue() == set()
    pipeline.ready("raw", DAY)
    assert pipeline.version("raw", DAY) == 2
    assert pipeline.rows("SELECT datasetid, because FROM dataflow.stale") == [("clean", ["INPUT"])]
    pipeline.resubmit(downstream=True, job="clean_orders")
    assert len(daemon.work_off()) == 2
    assert pipeline.rows("SELECT datasetid FROM dataflow.stale") == []


def test_what_is_deleted_goes_with_all_that_was_made_of_it(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT)
    daemon = pipeline.daemon()
    daemon.work_off()
    pipeline.rows(WITHDRAW, [DAY], "delete", False)
    left = "SELECT datasetid, dataid, locktype FROM dataflow.datastatus WHERE dataid = %s"
    assert pipeline.rows(left, DAY) == []
    assert {pipeline.status(name, NEXT) for name in ("raw", "clean", "sums")} == {"READY"}
    assert pipeline.queue() == pipeline.rebuilt_queue() == set()
    pipeline.ready("raw", DAY)
    assert daemon.work_off() == [("clean_orders", DAY), ("sum_orders", DAY)]


def test_runs_that_failed_or_wait_for_a_retry_count_as_made_of_the_chunk(pipeline: World) -> None:
    pipeline.ready("raw", DAY, NEXT)
    daemon = pipeline.daemon()
    daemon.fail(*daemon.claim())
    pipeline.resubmit(job="clean_orders", dataid=NEXT)
    found = pipeline.rows(WITHDRAW, ["2026-01-*"], "delete", False)
    assert [row[1:] for row in found if row[0] == "delete"] == [
        ("clean_orders", "clean", DAY, "FAILED"),
        ("clean_orders", "clean", NEXT, "RESUBMIT"),
    ]
    assert pipeline.rows("SELECT datasetid FROM dataflow.datastatus") == []


def test_a_job_that_continues_its_own_output_is_followed_to_its_end(world: World) -> None:
    world.dataset("raw")
    world.dataset("book")
    world.job(
        "ledger", {"raw": {"kind": "identity"}, "book": {"kind": "offset", "unit": "day", "by": -1}}, "book"
    )
    days = [f"2026-01-{day:02}" for day in range(1, 31)]
    world.ready("book", days[0])
    world.ready("raw", *days)
    assert len(world.daemon().work_off()) == len(days) - 1
    deleted = world.rows(
        "SELECT dataid FROM dataflow.unregister('book', %s::text[], 'delete') WHERE deed = 'delete'",
        [days[0]],
    )
    assert [dataid for [dataid] in deleted] == days[1:]


@pytest.mark.parametrize(
    ("dataset", "dataid", "sqlstate", "message", "hint"),
    [
        ("clean", DAY, "DF409", "chunk clean/2026-01-01 is made by job clean_orders", "dataflowctl delete clean_orders --dataid 2026-01-01 forgets it"),
        ("raw", NEXT, "DF409", "chunk raw/2026-01-02 is being read by clean_orders 2026-01-02", "dataflowctl cancel clean_orders --dataid 2026-01-02"),
        ("raw", "held", "DF409", "chunk raw/held is on hold, and was never registered", "dataflowctl release --dataset raw --dataid held"),
        ("raw", "2025-*", "DF404", "nothing is registered as raw/2025-", "dataflowctl chunks raw lists what is"),
        ("nosuch", DAY, "DF404", "there is no dataset nosuch", "the datasets are"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_cannot_be_withdrawn_is_refused_with_the_remedy(  # noqa: PLR0913, PLR0917
    pipeline: World, dataset: str, dataid: str, sqlstate: str, message: str, hint: str, *, dry_run: bool
) -> None:
    daemon = pipeline.daemon()
    pipeline.ready("raw", DAY)
    daemon.work_off()
    pipeline.ready("raw", NEXT)
    daemon.claim_one()
    pipeline.do("SELECT dataflow.hold('raw', 'held')")
    before = pipeline.everything()
    with pytest.raises(psycopg.Error, match=message) as refused:
        pipeline.rows(
            "SELECT * FROM dataflow.unregister(%s, ARRAY[%s], 'delete', %s)", dataset, dataid, dry_run
        )
    assert refused.value.sqlstate == sqlstate
    assert hint in (refused.value.diag.message_hint or "")
    assert pipeline.everything() == before


def test_a_held_registration_is_withdrawn(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.do("SELECT dataflow.hold('raw', %s, 'wrong file')", DAY)
    assert pipeline.rows(WITHDRAW, [DAY], None, False) == [("withdraw", None, "raw", DAY, "HOLD")]
    assert pipeline.counts() == {}


def test_an_operator_may_withdraw_but_not_forget_runs(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    pipeline.daemon().work_off()
    with pipeline.connection.transaction(force_rollback=True):
        pipeline.do("SET LOCAL ROLE dataflow_operator")
        assert len(pipeline.rows(WITHDRAW, [DAY], "keep", False)) == 3
    with pipeline.session() as operator:
        operator.execute("SET LOCAL ROLE dataflow_operator")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            operator.execute(WITHDRAW, [[DAY], "delete", False])
        operator.rollback()
    assert pipeline.status("sums", DAY) == "READY"


def test_why_does_not_offer_to_register_what_would_be_refused(world: World) -> None:
    world.dataset("raw", ordering="date")
    world.job("clean_orders", "raw", "clean")
    remedy = "SELECT remedy FROM dataflow.why('clean_orders', %s) WHERE number = 1"
    assert world.value(remedy, "2026-01-31") == "when it has arrived: dataflowctl ready raw 2026-01-31"
    refused = "it cannot arrive: 2026-13-20 is no date, and the ordering of dataset raw is date"
    assert world.value(remedy, "2026-13-20") == refused


def _readers_of_every_sort(world: World) -> None:
    """Jobs for which `raw` is the only input, with and without obstacles, and jobs that need more than one new chunk."""
    world.dataset("words", ordering="text")
    world.dataset("homeless", location=None)
    world.job("sole", "raw", ["a", "b"])
    world.job("sole_by_text", "raw", "words")
    world.job("retired", "raw", "c")
    world.job("nowhere", "raw", "homeless")
    world.job("strict", "raw", "d", strict_order=True)
    world.job("two", ["raw", "other"], "e")
    world.job("shifted", {"raw": {"kind": "offset", "unit": "number", "by": -1}}, "f")
    world.job("windowed", {"raw": {"kind": "window", "size": 4}}, "g")
    world.job("referring", {"raw": {"kind": "fixed", "dataid": "3"}, "other": {"kind": "identity"}}, "h")
    world.do("UPDATE dataflow.job SET retired = now() WHERE jobid = 'retired'")
    world.ready("other", "3", "5")
    world.do("SELECT dataflow.hold('b', '4', 'looked at')")
    world.ready("raw", "11")
    world.do("SELECT dataflow.unregister('raw', ARRAY['11'])")


def _state(world: World) -> list[list[Row]]:
    return [
        world.rows(statement)
        for statement in (
            "SELECT datasetid, dataid, jobid, status, version, sortkey FROM dataflow.datastatus ORDER BY 1, 2, 3",
            "SELECT jobid, dataid, sortkey, not_before FROM dataflow.work ORDER BY 1, 2",
            "SELECT jobid, dataid, sortkey FROM dataflow.open_run ORDER BY 1, 2",
            "SELECT datasetid, jobid, locktype, status, sum(chunks) FROM dataflow.counter GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
            EVENTS,
        )
    ]


@pytest.mark.parametrize("has_company", [False, True])
def test_registering_many_at_once_has_the_effect_of_registering_each_alone(
    world: World, has_company: bool
) -> None:
    _readers_of_every_sort(world)
    dataids = ["2", "3", "4", "5", "6", "7", "10", "11"]
    company = world.session()
    if has_company:
        company.execute("SELECT dataflow.ready('other', '6')")
    with world.connection.transaction(force_rollback=True):
        world.ready("raw", *dataids)
        at_once = _state(world)
        queued = world.queue()
    with world.connection.transaction(force_rollback=True):
        for dataid in dataids:
            world.ready("raw", dataid)
        assert _state(world) == at_once
        assert ("sole", "3") in queued
        assert ("sole", "4") not in queued
        assert ("two", "5") in queued
        assert ("windowed", "1") in queued
    company.rollback()
    company.close()
    world.ready("raw", *dataids)
    assert world.queue() == world.rebuilt_queue() == queued


def test_the_order_of_work_is_that_of_the_outputs_also_where_the_input_has_another(world: World) -> None:
    world.dataset("words", ordering="text")
    world.job("by_text", "raw", "words")
    world.ready("raw", "2", "10")
    assert [run.dataid for run in world.daemon().claim(1)] == ["10"]


def test_the_history_of_a_chunk_that_no_job_makes_goes_by_its_dataset(pipeline: World) -> None:
    told = "SELECT kind, from_status, to_status, reason FROM dataflow.history(%s, %s)"
    pipeline.do("SELECT dataflow.ready('raw', %s, reason => 'by ferry')", DAY)
    pipeline.ready("raw", NEXT)
    pipeline.do("SELECT dataflow.hold('raw', %s, 'wrong file')", DAY)
    pipeline.do("UPDATE dataflow.dataset SET location = '/data/new' WHERE datasetid = 'raw'")
    assert pipeline.rows(told, "raw", DAY) == [
        ("status", None, "READY", "by ferry"),
        ("status", "READY", "HOLD", "wrong file"),
        ("dataset", "/data/raw/{dataid}", "/data/new", None),
    ]
    assert pipeline.rows(told, "raw", "2030-01-01") == []
    with pytest.raises(psycopg.Error, match="clean is a dataset, and job clean_orders makes it") as refused:
        pipeline.rows(told, "clean", DAY)
    assert refused.value.diag.message_hint == f"dataflowctl history clean_orders {DAY}"
    with pytest.raises(psycopg.Error, match="there is no job nothing"):
        pipeline.rows(told, "nothing", DAY)
