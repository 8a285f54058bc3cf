"""Tests of the checks of rules.py and of the host: each history has one mistake, and its check finds it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.chaos import patience, remains, rules, shape, verdict, witness
from tests.chaos.history import Attempt, Event, History, Manifest, Status, Vouched
from tests.chaos.patience import Patience
from tests.chaos.witness import Script, Witness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START = datetime(2026, 1, 1, tzinfo=UTC)
STRICT = {"f_ledger": ("f_total", ["f_ledger", "f_audit"])}
FORMS = {f"f_{step}": forms for step, forms in shape.every_job("process").items()}
MADE = ["f_ledger", "f_audit"]


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def attempt(number: int, dataid: str, second: float, **changes: object) -> Attempt:
    """An attempt of the job `ledger` that ran for a second and was DONE."""
    given = {f"f_total/{dataid}": 1, "f_rates/v1": 1}
    plain = Attempt(
        number, "f_ledger", dataid, 1, "files1", given, at(second), at(second + 1), "DONE", "hash"
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def event(second: float, dataset: str, dataid: str, way: str, of: int | None = None) -> Event:
    was, _, now = way.partition(" ")
    by = "dataflowd files1" if of else "chaos hand"
    return Event(
        int(second * 10), at(second), by, dataset, dataid, of, was.strip("-") or None, now.strip("-") or None
    )


def sound() -> History:
    """A correct history: the reference, a period and two totals arrive; both totals go into the ledger, in order."""
    events = [
        event(0, "f_rates", "v1", "- READY"),
        event(0, "f_clock", "2026-01-01", "- READY"),
        event(0, "f_total", "0", "- READY"),
        event(0, "f_total", "1", "- READY"),
    ]
    for number, second in ((1, 2.0), (2, 6.0)):
        run = str(number - 1)
        events += [event(second, name, run, "- RUNNING", number) for name in MADE]
        events += [event(second + 1, name, run, "RUNNING READY", number) for name in MADE]
    attempts = {1: attempt(1, "0", 2), 2: attempt(2, "1", 6)}
    statuses = {
        (name, run): Status(name, run, "READY", 1, 1, None, None) for name in MADE for run in ("0", "1")
    }
    vouched = [Vouched(at(0), "f_total", "1", False), Vouched(at(5), "f_total", "1", True)]
    return History({"f_ledger": MADE}, attempts, [], events, [], statuses, vouched)


def judged(history: History) -> set[str]:
    expected = {(name, run) for name in MADE for run in ("0", "1")}
    found = [
        *rules.mapped(history, FORMS),
        *rules.vouched(history),
        *rules.order(history, STRICT),
        *rules.calendars(history, {"f_clock": ["2026-01-01"]}),
        *rules.unexpected(history, MADE, expected),
        *verdict.productions(history),
        *verdict.overlaps(history),
    ]
    return {each.kind for each in found}


def with_attempt(history: History, changed: Attempt) -> History:
    return replace(history, attempts=history.attempts | {changed.attempt: changed}, by_chunk={}, written={})


def with_events(history: History, *more: Event) -> History:
    events = sorted([*history.events, *more], key=lambda each: each.at)
    return replace(history, events=events, by_chunk={}, written={})


def test_a_sound_history_is_not_complained_about() -> None:
    assert judged(sound()) == set()


BROKEN: dict[str, Callable[[History], History]] = {
    "wrong_inputs": lambda h: with_attempt(h, replace(h.attempts[2], inputs={"f_total/1": 1})),
    "input_not_validated": lambda h: with_attempt(h, replace(h.attempts[2], claimed=at(4))),
    "out_of_order": lambda h: with_events(
        h, *(event(4, name, "0", "READY RESUBMIT") for name in MADE), event(8, "f_audit", "0", "- READY")
    ),
    "period_missing": lambda h: replace(
        h, events=[each for each in h.events if each.datasetid != "f_clock"], by_chunk={}, written={}
    ),
    "period_too_many": lambda h: with_events(h, event(1, "f_clock", "2026-01-02", "- READY")),
    "period_twice": lambda h: with_events(
        h, event(1, "f_clock", "2026-01-01", "READY -"), event(2, "f_clock", "2026-01-01", "- READY")
    ),
    "unexpected_chunk": lambda h: replace(
        h,
        statuses=h.statuses | {("f_audit", "7"): Status("f_audit", "7", "READY", 1, 1, None, None)},
        by_chunk={},
        written={},
    ),
    "published_twice": lambda h: with_events(
        h, event(8, "f_audit", "1", "READY RUNNING", 2), event(9, "f_audit", "1", "RUNNING READY", 2)
    ),
    "never_published": lambda h: with_events(h, event(8, "f_audit", "1", "READY RESUBMIT")),
    "history_broken": lambda h: with_attempt(h, attempt(3, "1", 9)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_each_check_finds_its_violation(kind: str) -> None:
    assert kind in judged(BROKEN[kind](sound()))


def test_a_forced_attempt_is_an_intent_and_exempt_from_the_rules_that_force_overrides() -> None:
    history = BROKEN["published_twice"](sound())
    assert judged(with_attempt(history, replace(history.attempts[2], forced=True))) == set()
    for kind in ("wrong_inputs", "input_not_validated", "out_of_order"):
        history = BROKEN[kind](sound())
        assert kind not in judged(with_attempt(history, replace(history.attempts[2], forced=True)))


def test_a_deletion_is_an_intent() -> None:
    again = with_events(
        sound(),
        *(event(8, name, "1", "READY -") for name in MADE),
        *(event(9, name, "1", "- RUNNING", 3) for name in MADE),
        *(event(10, name, "1", "RUNNING READY", 3) for name in MADE),
    )
    deleted = with_attempt(again, replace(again.attempts[2], deleted=at(8)))
    assert judged(with_attempt(deleted, attempt(3, "1", 9))) == set()
    assert judged(with_attempt(again, attempt(3, "1", 9))) == {"history_broken"}


def test_a_version_is_the_one_that_was_there_at_the_claim() -> None:
    """If a chunk has two versions 1, the time of the claim says which of them was read."""
    made = {
        1: Attempt(1, "f_total", "1", 1, "d", {"f_joined/5": 1}, at(4), at(5), "DONE", "one"),
        2: Attempt(2, "f_trend", "5", 1, "d", {}, at(0), at(1), "DONE", "one"),
        3: Attempt(3, "f_trend", "5", 1, "d", {}, at(8), at(9), "DONE", "two"),
    }
    manifests = [
        Manifest("f_trend", "5", 1, 2, "/", [], None, False, at(1), at(6)),
        Manifest("f_trend", "5", 1, 3, "/", [], None, False, at(9)),
    ]
    history = History({}, made, manifests, [], [], {})
    straight = verdict.Straight(history, lambda _, code: {"one": 1, "two": 2}[code or ""])
    assert straight.read("f_trend", "5", 1, at(4)) == [(0, 0, 1)]
    assert straight.read("f_trend", "5", 1, at(10)) == [(0, 0, 2)]
    with pytest.raises(LookupError):
        straight.read("f_trend", "5", 1, at(0))


def test_the_mappings_of_the_flow_are_those_of_the_documentation() -> None:
    assert shape.required(shape.SIZED, "2") == ["10", "11", "12", "13", "14"]
    assert shape.required(shape.BEFORE, "3") == ["2"]
    assert shape.required(shape.BEFORE, "0") == []
    assert shape.required({"kind": "window", "last": 3, "unit": "number"}, "1") == ["0", "1"]
    assert len(shape.required(shape.DAY, (shape.FIRST_DAY + timedelta(days=1)).isoformat())) == 23
    assert shape.hours_of(date(2026, 1, 1))[0] == "2025-12-31T23"


def test_the_versions_of_a_flow_change_its_shape() -> None:
    versions = [{job.step: job for job in shape.jobs("process", number)} for number in range(1, 8)]
    assert ["late" in jobs for jobs in versions[:4]] == [False, True, True, False]
    assert {"side" in jobs["left"].outputs for jobs in versions} == {True, False}
    assert all(("side" in jobs["left"].outputs) != ("side" in jobs["right"].outputs) for jobs in versions)
    assert len({str(jobs["trend"].inputs) for jobs in versions}) == 2
    assert len({str(jobs["summary"].inputs) for jobs in versions}) == 2


# --- on the host ---

ONE = Script(11, 1, "f_clean", "3", "/one")
OTHER = Script(12, 2, "f_clean", "3", "/other")
LONG = witness.TOGETHER_SECONDS * 2


def test_two_processes_of_a_run_are_reported() -> None:
    seen = Witness()
    seen.judge([ONE, OTHER], 100)
    assert seen.found == []  # a killed process may need a moment to end
    seen.judge([ONE, OTHER], 100 + LONG)
    seen.judge([ONE, OTHER], 100 + 2 * LONG)
    assert len(seen.found) == 1


def test_a_frozen_daemon_is_excused_until_a_moment_after_it_wakes() -> None:
    seen = Witness()
    seen.look([(ONE.host, True)], 100)
    for second in (100, 100 + LONG, 100 + witness.SETTLE_SECONDS):
        seen.judge([ONE, OTHER], second)
    assert seen.found == []
    for second in (100 + witness.SETTLE_SECONDS + LONG, 100 + witness.SETTLE_SECONDS + 2 * LONG):
        seen.judge([ONE, OTHER], second)
    assert len(seen.found) == 1


def test_runs_of_different_chunks_may_run_side_by_side() -> None:
    seen = Witness()
    for second in (100, 100 + LONG):
        seen.judge([ONE, replace(OTHER, dataid="4")], second)
    assert seen.found == []


def test_a_run_that_could_run_and_is_not_queued_for_long_is_reported() -> None:
    watched = Patience()
    run = ("f_clean", "3")
    watched.judge({run}, 0)
    watched.judge(set(), patience.FORGOTTEN_SECONDS / 2)  # it was queued meanwhile
    watched.judge({run}, patience.FORGOTTEN_SECONDS)
    assert watched.found == []
    watched.judge({run}, 2 * patience.FORGOTTEN_SECONDS + 1)
    watched.judge({run}, 3 * patience.FORGOTTEN_SECONDS)
    assert [each.kind for each in watched.found] == ["forgotten"]


def test_a_fixed_path_that_leads_elsewhere_is_reported(tmp_path: Path) -> None:
    old, new = (tmp_path / "f_joined" / ".attempts" / "dataid=3" / f"attempt={n}" for n in (1, 2))
    old.mkdir(parents=True)
    new.mkdir()
    link = tmp_path / "f_joined" / "dataid=3"
    assert remains.astray(tmp_path, [("f_joined", "3", str(new))])
    link.symlink_to(old)
    assert remains.astray(tmp_path, [("f_joined", "3", str(new))])
    link.unlink()
    link.symlink_to(new)
    assert not remains.astray(tmp_path, [("f_joined", "3", f"file://{new}")])


def test_a_daemon_that_stops_attempts_without_a_fault_is_reported() -> None:
    line = '{"timestamp": "2026-01-01T00:01:00Z", "event": "lease.ending"}'
    moment = at(60).timestamp()
    assert list(remains.unexcused([line, "{}"], [], 12)) == [line]
    assert list(remains.unexcused([line], [(moment - 100, moment - 13)], 12)) == [line]
    assert list(remains.unexcused([line], [(moment - 100, moment - 11)], 12)) == []
