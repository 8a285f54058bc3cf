"""A short chaos run with a fixed seed, and tests of the checks: each check finds its violation.

`make chaos` is the long form. The tests of the checks use small histories, each with one mistake.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos import schedule, steps, verdict
from tests.chaos.history import Attempt, Control, Event, History, Manifest, Status
from tests.chaos.stage import HAND

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 1500
SEED = 7
START = datetime(2026, 1, 1, tzinfo=UTC)
OUTPUTS = {"f_clean": ["f_clean", "f_odd"], "f_join": ["f_joined"]}


@pytest.mark.alone
def test_a_chaos_run_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--seed", str(SEED), "--minutes", "0.4", "--pause", "0.25", "--report", str(report)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.chaos", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        except BaseException:
            process.terminate()  # it removes its server, its daemons and its disk
            raise
    assert process.returncode == 0, said
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["violations"] == []
    assert found["fault_kinds"] >= 15


def test_a_seed_decides_the_whole_schedule() -> None:
    once, again, other = (list(islice(schedule.steps(seed), 500)) for seed in (1, 1, 2))
    assert once == again
    assert once != other
    assert {step.kind for step in once[: len(schedule.WEIGHTS)]} == set(schedule.WEIGHTS)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def attempt(attempt: int, job: str, second: float, **changes: object) -> Attempt:
    """An attempt that ran for a second on dataid 3 and was DONE."""
    plain = Attempt(attempt, job, "3", 1, "files1", {}, at(second), at(second + 1), "DONE", "hash")
    return replace(plain, **changes)  # type: ignore[arg-type]


def transition(
    number: int, dataset: str, way: str, of: int | None = None, by: str = "dataflowd files1"
) -> Event:
    """A transition one second before the number."""
    was, _, now = way.partition(" ")
    return Event(number, at(number - 1), by, dataset, "3", of, was.strip("-") or None, now)


def sound() -> History:
    """A correct history: raw 3 arrives, is cleaned and joined; clean is resubmitted once."""
    clean, odd = steps.clean(steps.raw(3), 1)
    events = [
        transition(1, "f_raw", "- READY", by=HAND),
        *(transition(2, name, "- RUNNING", 1) for name in OUTPUTS["f_clean"]),
        *(transition(3, name, "RUNNING READY", 1) for name in OUTPUTS["f_clean"]),
        transition(4, "f_joined", "- RUNNING", 2),
        transition(5, "f_joined", "RUNNING READY", 2),
        *(transition(6, name, "READY RESUBMIT", 1, HAND) for name in OUTPUTS["f_clean"]),
        *(transition(7, name, "RESUBMIT RUNNING", 3) for name in OUTPUTS["f_clean"]),
        *(transition(8, name, "RUNNING READY", 3) for name in OUTPUTS["f_clean"]),
    ]
    attempts = [
        attempt(1, "f_clean", 1, inputs={"f_raw/3": 1}),
        attempt(2, "f_join", 3, inputs={"f_clean/3": 1, "f_odd/3": 1}),
        attempt(3, "f_clean", 6, inputs={"f_raw/3": 1}, number=2),
    ]
    rows = {"f_clean": len(clean), "f_odd": len(odd), "f_joined": len(clean)}
    manifests = [
        *(Manifest(name, "3", 1, 1, f"/{name}", [], rows[name], False) for name in OUTPUTS["f_clean"]),
        Manifest("f_joined", "3", 1, 2, "/f_joined", [], rows["f_joined"], False),
        *(Manifest(name, "3", 2, 3, f"/{name}", [], rows[name], False) for name in OUTPUTS["f_clean"]),
    ]
    statuses = [
        Status("f_raw", "3", "READY", 1, None, None, None),
        *(Status(name, "3", "READY", 2, 2, None, None) for name in OUTPUTS["f_clean"]),
        Status("f_joined", "3", "READY", 1, 1, None, None),
    ]
    controls = [Control(at(-1), HAND, "global", 4, False)]
    return History(
        OUTPUTS,
        {each.attempt: each for each in attempts},
        manifests,
        events,
        controls,
        {each.chunk: each for each in statuses},
    )


def judged(history: History) -> set[str]:
    def read(manifest: Manifest) -> steps.Rows:
        clean, odd = steps.clean(steps.raw(3), 1)
        joined = steps.join(clean, odd, 1)
        return {"f_clean": clean, "f_odd": odd, "f_joined": joined}[manifest.datasetid]

    found = [
        *verdict.completeness(history, [("f_joined", "3")]),
        *verdict.productions(history),
        *verdict.pointers(history),
        *verdict.intents(history, {("f_clean", "3"): at(5)}),
        *verdict.contents(
            history, lambda _, code: 1 if code == "hash" else 2 if code == "new" else None, read
        ),
        *verdict.inputs(history),
        *verdict.limits(history, {}),
        *verdict.overlaps(history),
        *verdict.transitions(history),
        *verdict.stories(history),
    ]
    return {each.kind for each in found}


def without(history: History, *numbers: int) -> History:
    return replace(
        history,
        events=[each for each in history.events if each.event not in numbers],
        by_chunk={},
        written={},
    )


def with_attempt(history: History, changed: Attempt) -> History:
    return replace(history, attempts=history.attempts | {changed.attempt: changed}, by_chunk={}, written={})


def with_controls(history: History, *more: Control) -> History:
    return replace(history, controls=[*history.controls, *more], by_chunk={}, written={})


def test_a_sound_history_is_not_complained_about() -> None:
    assert judged(sound()) == set()


BROKEN: dict[str, Callable[[History], History]] = {
    "published_twice": lambda h: replace(
        h,
        events=[replace(each, now="HOLD") if each.event == 6 else each for each in h.events],
        by_chunk={},
        written={},
    ),
    "never_published": lambda h: without(h, 8),
    "published_by_other": lambda h: with_attempt(h, replace(h.attempts[3], outcome="LOST")),
    "versions_broken": lambda h: replace(
        h, manifests=[each for each in h.manifests if each.attempt != 1], by_chunk={}, written={}
    ),
    "pointer_astray": lambda h: replace(
        h,
        statuses=h.statuses | {("f_odd", "3"): Status("f_odd", "3", "READY", 2, 1, None, None)},
        by_chunk={},
        written={},
    ),
    "intent_lost": lambda h: with_attempt(h, replace(h.attempts[3], claimed=at(4.5))),
    "taken_back": lambda h: replace(
        h,
        events=[replace(each, application="dataflowd files1") for each in h.events],
        by_chunk={},
        written={},
    ),
    "wrong_content": lambda h: with_attempt(h, replace(h.attempts[1], code_hash="new")),
    "unreadable": lambda h: with_attempt(h, replace(h.attempts[1], code_hash="unknown")),
    "wrong_count": lambda h: replace(
        h, manifests=[replace(each, rows=1) for each in h.manifests], by_chunk={}, written={}
    ),
    "input_not_ready": lambda h: with_attempt(h, replace(h.attempts[2], claimed=at(1.5))),
    "input_not_current": lambda h: with_attempt(h, replace(h.attempts[2], claimed=at(8), ended=at(9))),
    "input_rewritten": lambda h: with_attempt(h, replace(h.attempts[2], ended=at(6.5))),
    "limit_exceeded": lambda h: with_controls(h, Control(at(0.5), HAND, "job:f_clean", 0, False)),
    "claimed_while_paused": lambda h: with_controls(h, Control(at(5.5), HAND, "global", 4, True)),
    "two_at_once": lambda h: with_attempt(h, replace(h.attempts[1], ended=at(6.5))),
    "history_broken": lambda h: without(h, 7),
    "not_ready": lambda h: replace(
        h,
        statuses={key: each for key, each in h.statuses.items() if key != ("f_joined", "3")},
        by_chunk={},
        written={},
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_each_check_finds_its_violation(kind: str) -> None:
    assert kind in judged(BROKEN[kind](sound()))
