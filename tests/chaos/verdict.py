"""The checks of the data itself after the faults are over. Each violation has a name.

An intent demands one production. Intents are the first arrival of a run's inputs, an operator's RESUBMIT, a deletion (the run
is made again), and a forced attempt. Each intent has exactly one published version, made by an attempt that was DONE. Its rows
are those of a direct computation from the versions that the attempt was given. These versions were READY when the attempt was
claimed, and were not rewritten while it read them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.chaos.pipeline import computed, step_of
from tests.chaos.stage import HAND
from tests.chaos.steps import Rows, raw, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tests.chaos.history import Attempt, Chunk, Control, Event, History, Manifest

DAEMON = "dataflowd "
# dataflowctl changes a limit at any moment; a claim that began before may still use the old limit.
UNORDERED = timedelta(seconds=10)
NEVER = datetime.max.replace(tzinfo=UTC)
# The rows of a dataset from outside, by dataid. Hours and periods have none.
OUTSIDE: dict[str, Callable[[str], Rows]] = {
    "raw": lambda dataid: raw(int(dataid)),
    "rates": lambda _: reference(),
    "hours": lambda _: [],
    "clock": lambda _: [],
}


@dataclass(frozen=True)
class Violation:
    kind: str
    what: str


def productions(history: History) -> Iterator[Violation]:
    """Every intent has one publication, and no publication is without one."""
    made = {dataset for datasets in history.written.values() for dataset in datasets}
    for chunk, events in history.by_chunk.items():
        if chunk[0] in made:
            yield from _produced(history, chunk, events)


def _produced(history: History, chunk: Chunk, events: list[Event]) -> Iterator[Violation]:
    is_owed = True
    for event in events:
        if event.was == "RUNNING" and event.now == "READY":
            attempt = history.attempts.get(event.attempt or 0)
            if not is_owed and not (attempt is not None and attempt.forced):
                yield Violation(
                    "published_twice", f"{_name(chunk)} by attempt {event.attempt}, which nobody asked for"
                )
            is_owed = False
        elif event.now in {"RESUBMIT", "FAILED", None}:
            if event.was == "READY" and event.application.startswith(DAEMON):
                yield Violation(
                    "taken_back",
                    f"{_name(chunk)} was READY, and {event.application} made it {event.now}",
                )
            is_owed = True
        elif event.now == "READY" and event.was not in {"HOLD", "PENDING"}:
            yield Violation("published_by_nobody", f"{_name(chunk)} became READY from {event.was}")
    # completeness() reports a chunk that is missing.
    if is_owed and events[-1].now is not None:
        yield Violation("never_published", _name(chunk))


def pointers(history: History) -> Iterator[Violation]:
    """The versions of each chunk have no gap, each has one DONE attempt, and the pointer names the last."""
    versions: dict[Chunk, list[Manifest]] = defaultdict(list)
    made: Counter[tuple[int, str]] = Counter()
    for manifest in history.manifests:
        versions[manifest.chunk].append(manifest)
        made[manifest.attempt, manifest.datasetid] += 1
        attempt = history.attempts.get(manifest.attempt)
        if attempt is None or attempt.outcome != "DONE" or attempt.dataid != manifest.dataid:
            how = attempt.outcome if attempt else "unknown"
            yield Violation(
                "published_by_other",
                f"{_name(manifest.chunk)} version {manifest.version} is of attempt {manifest.attempt}, which is {how}",
            )
    for attempt in history.attempts.values():
        for dataset in history.written.get(attempt.attempt, set()) if attempt.outcome == "DONE" else ():
            if made[attempt.attempt, dataset] != 1:
                yield Violation(
                    "published_twice",
                    f"attempt {attempt.attempt} published {made[attempt.attempt, dataset]} versions of {dataset}/{attempt.dataid}",
                )
    for chunk, found in versions.items():
        numbers = [manifest.version for manifest in found if manifest.deleted is None]
        if not numbers:
            continue
        status = history.statuses.get(chunk)
        # Versions never repeat: after a deletion the count goes on.
        first = 1 + max((manifest.version for manifest in found if manifest.deleted is not None), default=0)
        if numbers != list(range(first, first + len(numbers))):
            yield Violation("versions_broken", f"{_name(chunk)} has the versions {numbers}")
        if status is None or status.version != numbers[-1] or status.manifest != numbers[-1]:
            yield Violation("pointer_astray", f"{_name(chunk)} has {len(numbers)} versions and is {status}")


def completeness(history: History, expected: Iterable[Chunk]) -> Iterator[Violation]:
    for chunk in sorted(expected):
        status = history.statuses.get(chunk)
        if status is None or status.status != "READY":
            yield Violation("not_ready", f"{_name(chunk)} is {status or 'not there'}")


def intents(history: History, confirmed: Mapping[Chunk, datetime]) -> Iterator[Violation]:
    """Every RESUBMIT that the server confirmed is followed by a production that was claimed after it."""
    claimed: dict[Chunk, datetime] = {}
    for attempt in history.attempts.values():
        for dataset in history.written.get(attempt.attempt, set()) if attempt.outcome == "DONE" else ():
            chunk = dataset, attempt.dataid
            claimed[chunk] = max(attempt.claimed, claimed.get(chunk, attempt.claimed))
    for chunk, moment in confirmed.items():
        last = claimed.get(chunk)
        if last is None or last < moment:
            yield Violation(
                "intent_lost", f"{_name(chunk)} was resubmitted at {moment}, and last made at {last}"
            )


class Straight:
    """The rows of any published version, computed in one thread from the chunks from outside."""

    def __init__(self, history: History, version_of: Callable[[str, str | None], int | None]) -> None:
        self._history = history
        self._version_of = version_of
        self._manifests: dict[tuple[str, str, int], list[Manifest]] = defaultdict(list)
        for manifest in history.manifests:
            self._manifests[*manifest.chunk, manifest.version].append(manifest)
        self._made: dict[int, dict[str, Rows]] = {}  # attempt -> output -> rows

    def read(self, dataset: str, dataid: str, version: int, claimed: datetime) -> Rows:
        """The rows of a version as an attempt claimed at that time was given them: the last manifest before the claim counts."""
        name = dataset.partition("_")[2]
        if name in OUTSIDE:
            return OUTSIDE[name](dataid)
        known = self._manifests[dataset, dataid, version]
        [*before] = [each for each in known if each.published is None or each.published <= claimed]
        if not before:
            raise LookupError(f"nobody published {dataset}/{dataid} version {version} before {claimed}")
        return self.rows(before[-1])

    def rows(self, manifest: Manifest) -> Rows:
        attempt = self._history.attempts[manifest.attempt]
        if attempt.attempt not in self._made:
            given: dict[str, dict[str, Rows]] = defaultdict(dict)
            for key, used in attempt.inputs.items():
                source, _, number = key.partition("/")
                given[source.partition("_")[2]][number] = self.read(source, number, used, attempt.claimed)
            code = self._version_of(attempt.jobid, attempt.code_hash)
            if code is None:
                raise LookupError(f"attempt {attempt.attempt} ran unknown code {attempt.code_hash}")
            self._made[attempt.attempt] = computed(step_of(attempt.jobid), given, code)
        return self._made[attempt.attempt][manifest.datasetid.partition("_")[2]]


def contents(
    history: History,
    version_of: Callable[[str, str | None], int | None],
    read: Callable[[Manifest], Rows | None],
) -> Iterator[Violation]:
    """Compares every version whose rows still exist, row by row, also superseded ones. `read` returns None if they do not exist."""
    straight = Straight(history, version_of)
    for manifest in history.manifests:
        if manifest.location is None or manifest.is_collected or manifest.deleted is not None:
            continue
        name = f"{_name(manifest.chunk)} version {manifest.version} of attempt {manifest.attempt}"
        try:
            wanted = sorted(straight.rows(manifest))
            there = read(manifest)
        except (LookupError, ValueError, OSError) as error:
            yield Violation("unreadable", f"{name}: {error!r}")
            continue
        if there is None:
            continue
        found = sorted(there)
        if found != wanted:
            yield Violation(
                "wrong_content", f"{name} has {found[:3]}..., straight computation gives {wanted[:3]}..."
            )
        if manifest.rows is not None and manifest.rows != len(wanted):
            yield Violation("wrong_count", f"{name} counts {manifest.rows} rows, there are {len(wanted)}")


def inputs(history: History) -> Iterator[Violation]:
    """The inputs of an attempt were READY in that version at its claim, and were not rewritten while it read them."""
    lines: dict[Chunk, tuple[list[datetime], list[str | None], list[int]]] = {}
    for chunk, events in history.by_chunk.items():
        counts, count = [], 0
        for event in events:
            count = 0 if event.now is None else count + (event.was == "RUNNING" and event.now == "READY")
            counts.append(count)
        lines[chunk] = [event.at for event in events], [event.now for event in events], counts
    for attempt in history.attempts.values():
        for key, version in attempt.inputs.items():
            dataset, _, dataid = key.partition("/")
            times, states, counts = lines.get((dataset, dataid), ([], [], []))
            place = bisect_right(times, attempt.claimed) - 1
            what = f"attempt {attempt.attempt} of {_name(attempt.run)} was given {key} version {version}"
            if place < 0 or states[place] != "READY":
                yield Violation(
                    "input_not_ready", f"{what}, which was {states[place] if place >= 0 else 'not there'}"
                )
            elif counts[place] and counts[place] != version:
                yield Violation("input_not_current", f"{what}, and version {counts[place]} was published")
            if attempt.outcome == "DONE" and attempt.ended is not None:
                until = bisect_right(times, attempt.ended)
                if "RUNNING" in states[place + 1 : until]:
                    yield Violation("input_rewritten", f"{what}, and it was being rewritten meanwhile")


def limits(history: History, declared: Mapping[str, int]) -> Iterator[Violation]:
    """At each claim the number of running attempts, including the new one, is within every limit. `declared`: limits of jobs."""
    controls: dict[str, list[Control]] = defaultdict(list)
    for control in history.controls:
        controls[control.scope].append(control)
    live: Counter[str] = Counter()
    ends: list[tuple[datetime, int, list[str]]] = []
    for attempt in sorted(history.attempts.values(), key=lambda each: each.claimed):
        while ends and ends[0][0] <= attempt.claimed:
            live.subtract(heapq.heappop(ends)[2])
        scopes = ["global", f"job:{attempt.jobid}", f"daemon:{attempt.daemon}"]
        live.update(scopes)
        heapq.heappush(ends, (attempt.ended or NEVER, attempt.attempt, scopes))
        for scope in scopes:
            in_force = _in_force(controls[scope], attempt.claimed)
            if in_force and all(control.is_paused for control in in_force):
                yield Violation(
                    "claimed_while_paused", f"attempt {attempt.attempt} of {_name(attempt.run)}, {scope}"
                )
            known = [
                declared.get(scope) if each.concurrency is None else each.concurrency for each in in_force
            ]
            known = known or [declared.get(scope)]
            if None not in known and live[scope] > max(each for each in known if each is not None):
                yield Violation(
                    "limit_exceeded",
                    f"attempt {attempt.attempt} was the {live[scope]}th in {scope}, whose limit was {known}",
                )


def _in_force(controls: list[Control], moment: datetime) -> list[Control]:
    """The limit that was set last, and the limit before if the claim may have seen either of them."""
    place = bisect_right([control.at for control in controls], moment)
    found: list[Control] = []
    while place > 0:
        place -= 1
        found.append(controls[place])
        is_ordered = controls[place].application == HAND
        if is_ordered or controls[place].at < moment - UNORDERED:
            break
    return found


def overlaps(history: History) -> Iterator[Violation]:
    """A run never has two live attempts."""
    runs: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for attempt in history.attempts.values():
        runs[attempt.run].append(attempt)
    for run, attempts in runs.items():
        attempts.sort(key=lambda each: each.attempt)
        numbers = [(each.number, each.deleted) for each in attempts]
        before: list[tuple[int, datetime | None]] = [(0, None), *numbers]
        # A deleted run counts from 1 again.
        if any(now != was + 1 and not (gone and now == 1) for (was, gone), (now, _) in pairwise(before)):
            yield Violation("history_broken", f"{_name(run)} has the attempts {numbers}")
        for one, other in pairwise(attempts):
            if one.ended is None or other.claimed < one.ended:
                yield Violation("two_at_once", f"{_name(run)}: attempts {one.attempt} and {other.attempt}")


def transitions(history: History) -> Iterator[Violation]:
    """Each transition starts at the status where the one before ended, and the last one ends at the stored status."""
    for chunk, events in history.by_chunk.items():
        status = history.statuses.get(chunk)
        if events[0].was is not None:
            yield Violation("history_broken", f"{_name(chunk)} begins with {events[0]}")
        if events[-1].now != (status.status if status else None):
            yield Violation("history_broken", f"{_name(chunk)} is {status}, history says {events[-1].now}")
        for one, other in pairwise(events):
            if other.was != one.now:
                yield Violation("history_broken", f"{_name(chunk)}: {one} is followed by {other}")
    for chunk in history.statuses.keys() - history.by_chunk.keys():
        yield Violation("history_broken", f"{_name(chunk)} has no history")


def stories(history: History) -> Iterator[Violation]:
    """The history of each output has the begin and the end of every attempt."""
    began = {(event.attempt, event.datasetid) for event in history.events if event.now == "RUNNING"}
    ended = {(event.attempt, event.datasetid) for event in history.events if event.was == "RUNNING"}
    for attempt in history.attempts.values():
        for dataset in {*history.outputs[attempt.jobid], *history.written.get(attempt.attempt, set())}:
            what = f"attempt {attempt.attempt} ({attempt.outcome}) of {_name(attempt.run)} on {dataset}"
            if (attempt.attempt, dataset) not in began:
                yield Violation("history_broken", f"no beginning of {what}")
            if attempt.outcome and (attempt.attempt, dataset) not in ended:
                yield Violation("history_broken", f"no end of {what}")


def _name(parts: tuple[str, str]) -> str:
    return "/".join(parts)
