"""Keeps running attempts and their rows in step.

When a notification says that something was cancelled, and at every poll, the database is asked which of our attempts
are no longer ours; those are stopped, and then reported as stopped, which lets their runs go. An attempt that has run for
a moment is reported as started, with what its host had found; shorter ones say so in their result. One that has waited for a Spark application for a
moment is reported as waiting, once, and once more when it has got one. Of every attempt whose code has begun it is asked for
how long its run had been ready: that is the time which somebody waited for us.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from dataflowd.database import calls
from dataflowd.database.session import LostLinkError
from dataflowd.host import log

if TYPE_CHECKING:
    from dataflowd.daemon.state import State

EVERY_SECONDS = 1.0
MEASURED_AT_ONCE = 1000

_log = log.logger(__name__)


async def run(state: State) -> None:
    asked = time.monotonic()
    while True:
        was_told = await state.cancel.wait(EVERY_SECONDS)
        state.cancel.clear()
        try:
            await _tell_waiting(state)
            await _tell_started(state)
            await _measure_waiting(state)
            if was_told or time.monotonic() - asked > state.poll_seconds:
                await _stop_cancelled(state)
                asked = time.monotonic()
        except (psycopg.Error, LostLinkError):
            # Whoever keeps the link says what is wrong with it.
            if was_told:
                state.cancel.set()
            await state.shutdown.wait(EVERY_SECONDS)


async def _stop_cancelled(state: State) -> None:
    numbers = [number for number, running in state.running.items() if not running.ended]
    if not numbers:
        return
    for number in await calls.cancelled(state.link, state.claims, numbers):
        running = state.running.get(number)
        if running is not None and not running.ended:
            _log.info(
                "attempt.cancelled", job=running.attempt.jobid, dataid=running.attempt.dataid, attempt=number
            )
            running.stop("it was cancelled")


async def _measure_waiting(state: State) -> None:
    while state.begun:
        chosen = state.begun[:MEASURED_AT_ONCE]
        waited = await calls.waited(state.link, [attempt for attempt, _ in chosen])
        del state.begun[: len(chosen)]
        for attempt, started in chosen:
            if attempt in waited:
                state.metrics.wait_seconds.observe(waited[attempt] + started)


async def _tell_waiting(state: State) -> None:
    now = time.monotonic()
    changed = [
        (running, running.waits)
        for running in state.running.values()
        if running.waits != running.waits_told
        and not running.ended
        and (running.waits is None or now - running.waits_since > EVERY_SECONDS / 2)
    ]
    if not changed:
        return
    for number in await calls.waits(state.link, [(running.attempt, waits) for running, waits in changed]):
        if number in state.running:
            state.running[number].stop("it is no longer ours")
    for running, waits in changed:
        running.waits_told = waits


async def _tell_started(state: State) -> None:
    now = time.monotonic()
    begun = [
        (running, now - running.started_at)
        for running in state.running.values()
        if not running.start_told
        and not running.ended
        and running.started_at is not None
        and now - running.started_at > EVERY_SECONDS / 2
    ]
    if not begun:
        return
    told = [(running.attempt, seconds, running.found) for running, seconds in begun]
    for number in await calls.started(state.link, told):
        if number in state.running:
            state.running[number].stop("it is no longer ours")
    for running, _ in begun:
        running.start_told = True
