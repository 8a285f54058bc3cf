"""Watches the demo's database until nothing is left to do, and shows each moment of it.

The frames show what the SQL functions behind `dataflowctl status` and `dataflowctl chunks --map` return. A Cue gives a command
while everything runs, when a job has done a given number of chunks. A failure becomes a note at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dataflowd.cli.ask import call
from dataflowd.cli.demo.frame import ABSENT, BOLD, Bar, Chunks, Moment, Note, clock
from dataflowd.cli.demo.programs import StoryError
from dataflowd.cli.demo.screen import Screen
from dataflowd.cli.show import RED, YELLOW, cell
from dataflowd.database import db

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from dataflowd.cli.demo.programs import Command, Daemon, Started

REDRAW_SECONDS = 0.3
LATEST_REDRAW_SECONDS = 1.0  # a clock on the screen should move
# Spark needs ten seconds to start, and many times that on a loaded machine. Longer silence is an error.
STALLED_SECONDS = 600.0


@dataclass(frozen=True)
class Cue:
    """A command that is given when a job has `done` chunks, and the reason that is shown with it."""

    job: str
    done: int
    command: Command
    why: str


@dataclass(frozen=True)
class Plan:
    """What the story expects: each job with the number of its runs, each dataset with its dataids."""

    title: str
    jobs: dict[str, int]
    datasets: dict[str, Sequence[str]]


@dataclass
class Watch:
    connection: psycopg.Connection
    daemon: Daemon
    plan: Plan
    began: float
    notes: list[Note] = field(default_factory=list)
    _known_failures: set[tuple[str, str, bool]] = field(default_factory=set)
    _cues: list[Cue] = field(default_factory=list)
    _given: Started | None = None

    def note(self, text: str, colour: str = "") -> None:
        self.notes.append(Note(clock(time.monotonic() - self.began), text, colour))

    def until_idle(self, cues: Sequence[Cue] = ()) -> dict[str, Any]:
        """Shows what happens until nothing runs and nothing waits; returns the last overview."""
        self.connection.execute(db.query("status_listen"))
        self._cues = list(cues)
        try:
            with Screen() as screen:
                return self._until_idle(screen)
        finally:
            if self._given is not None:
                self._given.stop()
                self._given = None

    def _until_idle(self, screen: Screen) -> dict[str, Any]:
        before, changed = None, time.monotonic()
        while True:
            self.daemon.require_alive()
            found = self.overview()
            self._note_failures(found["causes"])
            is_idle = not found["running"] and not found["waiting"]
            self._advance(found, is_idle=is_idle)
            is_over = is_idle and not self._cues and self._given is None
            now = self._moment(found)
            screen.show(now, is_last=is_over)
            if is_over:
                return found
            state = (found["running"], found["waiting"], now.bars)
            if state != before:
                before, changed = state, time.monotonic()
            elif time.monotonic() - changed > STALLED_SECONDS:
                raise StoryError(
                    f"nothing has happened for {STALLED_SECONDS:.0f} s",
                    "the machine may be overloaded; see the log",
                )
            self._wait()

    def overview(self) -> dict[str, Any]:
        found: dict[str, Any] = call("status", jobid=None, ignored=[]).send(self.connection)[0]["overview"]
        return found

    def _wait(self) -> None:
        drawn = time.monotonic()
        heard = list(self.connection.notifies(timeout=LATEST_REDRAW_SECONDS, stop_after=1))
        remaining = drawn + REDRAW_SECONDS - time.monotonic()
        if heard and remaining > 0:
            # Later notices until then are covered by the same redraw.
            list(self.connection.notifies(timeout=remaining))

    def _advance(self, found: dict[str, Any], *, is_idle: bool) -> None:
        """Gives one command at a time, each in a process of its own, so that the screen is drawn meanwhile."""
        if self._given is not None:
            if not self._given.has_ended:
                return
            self._given.text()
            self._given = None
        done = {job["jobid"]: job["done"] for job in found["jobs"]}
        if self._cues and (is_idle or done[self._cues[0].job] >= self._cues[0].done):
            cue = self._cues.pop(0)
            self._given = cue.command.started()
            self.note(f"$ {cue.command.shown}    {cue.why}", BOLD)

    def _note_failures(self, causes: list[dict[str, Any]]) -> None:
        for cause in causes:
            is_retried = cause["retrying"] == cause["runs"]
            failure = (cause["code"], f"{cause['example_jobid']} {cause['example_dataid']}", is_retried)
            if failure not in self._known_failures:
                self._known_failures.add(failure)
                fate = "and is tried again" if is_retried else "and waits for a person"
                self.note(
                    f"{cell(failure[1])} has failed ({cell(failure[0])}) {fate}",
                    YELLOW if is_retried else RED,
                )

    def _moment(self, found: dict[str, Any]) -> Moment:
        jobs = {job["jobid"]: job for job in found["jobs"]}
        return Moment(
            title=self.plan.title,
            seconds=time.monotonic() - self.began,
            running=found["running"],
            limit=found["limit"],
            bars=[_bar(jobs[name], total) for name, total in self.plan.jobs.items()],
            chunks=[
                Chunks(name, self._letters(name, dataids)) for name, dataids in self.plan.datasets.items()
            ],
            notes=list(self.notes),
        )

    def _letters(self, dataset: str, dataids: Sequence[str]) -> str:
        """The letter of each chunk. A map of width 1 has one line a chunk, so that missing chunks are known."""
        lines = call("chunk_map", datasetid=dataset, width=1, first=None, last=None).send(self.connection)
        letters = {line["first"]: line["map"] for line in lines}
        return "".join(letters.get(dataid, ABSENT) for dataid in dataids)


def _bar(job: dict[str, Any], total: int) -> Bar:
    return Bar(
        job["jobid"],
        total,
        done=job["done"],
        running=job["running"],
        failed=job["failed"] - job["retry_later"],
        retrying=job["retry_later"],
    )
