"""Keeps running attempts and their rows in step.

- When a notification says that somebody cancelled something, and at every poll, the service asks the database which of
  this daemon's attempts were cancelled. It stops these; each then reports that it has stopped, and its run is free.
- The database learns that the code of an attempt runs from the daemon alone, as the number of seconds since it began
  (`Running.ran`). The engine's `on_start` sets that moment. This service tells it once the code has run for half of
  EVERY_SECONDS, with what the host found before. The finisher tells it with the result, for attempts that were shorter.
- The service reports an attempt that has waited that long for a Spark application as waiting, and reports it again when
  the attempt has got one.
- The service asks for how long the run of each started attempt had been ready. That time, plus the time from the claim
  to the start, is the metric of how long people wait.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import psycopg

from dataflowd.daemon.wake import Wake
from dataflowd.database import calls
from dataflowd.database.session import LostLinkError
from dataflowd.host import log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from dataflowd.daemon.pool import Running
    from dataflowd.daemon.state import State
    from dataflowd.database.session import Link
    from dataflowd.model.attempt import Attempt

EVERY_SECONDS = 1.0
TOLD_AFTER_SECONDS = EVERY_SECONDS / 2
MEASURED_AT_ONCE = 1000

Fact = TypeVar("Fact")
Begun = tuple[float, dict[str, Any] | None]  # seconds that the code has run; what the host found before

_log = log.logger(__name__)


@dataclass(eq=False)
class Watch:
    begun: list[tuple[int, float]] = field(default_factory=list)  # attempts, and seconds from claim to start
    wake: Wake = field(default_factory=Wake)  # attempts were cancelled

    def measure(self, attempt: int, seconds: float) -> None:
        """Notes a started attempt, whose time of waiting the service will ask for."""
        self.begun.append((attempt, seconds))


async def run(state: State) -> None:
    asked = time.monotonic()
    while True:
        was_told = await state.watch.wake.wait(EVERY_SECONDS)
        state.watch.wake.clear()
        try:
            await _tell(state, _waiting(state), calls.waits, _note_waiting)
            await _tell(state, _begun(state), _send_begun, _note_begun)
            await _measure_waiting(state)
            if was_told or time.monotonic() - asked > state.poll_seconds:
                await _stop_cancelled(state)
                asked = time.monotonic()
        except (psycopg.Error, LostLinkError):
            # The service that opens the link again logs the error.
            if was_told:
                state.watch.wake.set()
            await anyio.sleep(EVERY_SECONDS)


async def _stop_cancelled(state: State) -> None:
    numbers = [number for number, running in state.attempts.running.items() if not running.ended]
    if not numbers:
        return
    for number in await calls.cancelled(state.link, state.claims, numbers):
        running = state.attempts.running.get(number)
        if running is not None and not running.ended:
            _log.info(
                "attempt.cancelled", job=running.attempt.jobid, dataid=running.attempt.dataid, attempt=number
            )
            running.stop("it was cancelled")


async def _measure_waiting(state: State) -> None:
    begun = state.watch.begun
    while begun:
        chosen = begun[:MEASURED_AT_ONCE]
        waited = await calls.waited(state.link, [attempt for attempt, _ in chosen])
        del begun[: len(chosen)]
        for attempt, started in chosen:
            if attempt in waited:
                state.metrics.wait_seconds.observe(waited[attempt] + started)


async def _tell(
    state: State,
    facts: Sequence[tuple[Running, Fact]],
    send: Callable[[Link, Sequence[tuple[Attempt, Fact]]], Awaitable[list[int]]],
    note: Callable[[Running, Fact], None],
) -> None:
    """Sends facts about attempts, stops the attempts that are no longer ours, and notes that the facts were told."""
    if not facts:
        return
    for number in await send(state.link, [(running.attempt, fact) for running, fact in facts]):
        if number in state.attempts.running:
            state.attempts.running[number].stop("it is no longer ours")
    for running, fact in facts:
        note(running, fact)


def _waiting(state: State) -> list[tuple[Running, int | None]]:
    """Attempts that began or stopped waiting for a Spark application, which the database does not know yet."""
    latest = time.monotonic() - TOLD_AFTER_SECONDS
    return [
        (running, running.waits)
        for running in state.attempts.running.values()
        if not running.ended
        and running.waits != running.waits_told
        and (running.waits is None or running.waits_since < latest)
    ]


def _note_waiting(running: Running, waits: int | None) -> None:
    running.waits_told = waits


def _begun(state: State) -> list[tuple[Running, Begun]]:
    """Attempts whose code has run for a moment, which the database does not know yet."""
    return [
        (running, (ran, running.found))
        for running in state.attempts.running.values()
        if not running.ended
        and not running.start_told
        and (ran := running.ran) is not None
        and ran > TOLD_AFTER_SECONDS
    ]


async def _send_begun(link: Link, facts: Sequence[tuple[Attempt, Begun]]) -> list[int]:
    return await calls.began(link, [(attempt, seconds, found) for attempt, (seconds, found) in facts])


def _note_begun(running: Running, _begun: Begun) -> None:
    running.start_told = True
