"""Checks what a flow declares: mappings, strict order, calendars, validation of chunks. verdict.py has the other checks.

An attempt that an operator forced is exempt from the rules that force overrides. A claim locks its chunks, so their history
is exact by the time of each event. The earlier runs of a strict order are not locked: there the time of the commit counts,
and a claim may have missed a commit within SLACK before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tests.chaos import shape
from tests.chaos.pipeline import step_of
from tests.chaos.verdict import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.chaos.history import Attempt, Chunk, Event, History

SLACK = timedelta(seconds=1)


def mapped(history: History, forms: Mapping[str, list[shape.Job]]) -> Iterator[Violation]:
    """The inputs of an attempt are those that the mappings of a version of its job require. `forms`: the versions by job."""
    for attempt in history.attempts.values():
        was_given = {_short(key) for key in attempt.inputs}
        wanted = [shape.given(form, attempt.dataid) for form in forms[attempt.jobid]]
        # A forced run gets those of its inputs that are READY.
        is_right = any(was_given <= each if attempt.forced else was_given == each for each in wanted)
        if not is_right:
            yield Violation(
                "wrong_inputs",
                f"attempt {attempt.attempt} of {'/'.join(attempt.run)} was given {sorted(attempt.inputs)}",
            )


def _short(key: str) -> Chunk:
    dataset, _, dataid = key.partition("/")
    return step_of(dataset), dataid


def vouched(history: History) -> Iterator[Violation]:
    """No attempt was given a chunk that was not validated at that moment."""
    lines: dict[Chunk, tuple[list[datetime], list[bool]]] = defaultdict(lambda: ([], []))
    for each in history.vouched:
        moments, states = lines[each.datasetid, each.dataid]
        moments.append(each.at)
        states.append(each.is_valid)
    for attempt in history.attempts.values():
        for key in attempt.inputs if not attempt.forced else ():
            dataset, _, dataid = key.partition("/")
            moments, states = lines.get((dataset, dataid), ([], []))
            place = bisect_right(moments, attempt.claimed) - 1
            if place >= 0 and not states[place]:
                yield Violation(
                    "input_not_validated",
                    f"attempt {attempt.attempt} of {'/'.join(attempt.run)} was given {key}",
                )


def order(history: History, strict: Mapping[str, tuple[str, list[str]]]) -> Iterator[Violation]:
    """At each claim every earlier run that was known was READY in all outputs. `strict`: job -> its driving input, its outputs."""
    for job, (driver, outputs) in strict.items():
        runs = sorted({int(dataid) for dataset, dataid in history.by_chunk if dataset in {driver, *outputs}})
        for attempt in history.attempts.values():
            if attempt.jobid != job or attempt.forced:
                continue
            for earlier in (run for run in runs if run < int(attempt.dataid)):
                chunks = [(dataset, str(earlier)) for dataset in (driver, *outputs)]
                if _is_open(history, chunks, attempt):
                    yield Violation(
                        "out_of_order",
                        f"attempt {attempt.attempt} of {'/'.join(attempt.run)} was claimed while {earlier} was open",
                    )


def _is_open(history: History, chunks: list[Chunk], attempt: Attempt) -> bool:
    """Whether the run was known, and not READY in some output, during the whole time in which the claim can have looked."""
    driver, *outputs = (
        _seen(history.by_chunk.get(chunk, []), attempt.claimed - SLACK, attempt.claimed) for chunk in chunks
    )
    is_known = None not in driver or any(None not in seen for seen in outputs)
    return is_known and any("READY" not in seen for seen in outputs)


def _seen(events: list[Event], since: datetime, until: datetime) -> set[str | None]:
    """The statuses that a claim may have seen: the last one that was committed before, and all later ones."""
    found: set[str | None] = set()
    last: str | None = None
    for event in events:
        moment = event.committed or event.at
        if moment <= since:
            last = event.now
        elif moment <= until:
            found.add(event.now)
    return found | {last}


def calendars(history: History, due: Mapping[str, Iterable[str]]) -> Iterator[Violation]:
    """Every period that is over became READY once, and no other period did. `due`: the periods that are over, by calendar."""
    for dataset, periods in due.items():
        wanted = set(periods)
        found = {dataid for name, dataid in history.by_chunk if name == dataset}
        for dataid in sorted(wanted - found):
            yield Violation("period_missing", f"{dataset}/{dataid} is over, and was never registered")
        for dataid in sorted(found - wanted):
            yield Violation("period_too_many", f"{dataset}/{dataid} was registered, and is not due")
        for dataid in sorted(found):
            arrived = [event for event in history.by_chunk[dataset, dataid] if event.now == "READY"]
            if len(arrived) != 1:
                yield Violation("period_twice", f"{dataset}/{dataid} became READY {len(arrived)} times")


def unexpected(history: History, datasets: Iterable[str], expected: set[Chunk]) -> Iterator[Violation]:
    """The chunks that no run can make."""
    made = set(datasets)
    for chunk in sorted(history.statuses.keys() - expected):
        if chunk[0] in made:
            yield Violation("unexpected_chunk", f"{'/'.join(chunk)} is {history.statuses[chunk]}")
