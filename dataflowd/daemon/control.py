"""Reads the limits from the table `control`, and counts the queue for the status line.

The claim obeys the table by itself, whatever this service has read. The scheduler uses the limits to know how many runs to
ask for; when a limit was raised, this service wakes the scheduler. This service also opens the link for all calls
other than claims again after the link was lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from dataflowd.daemon.wake import Wake
from dataflowd.database import calls
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.engine import SizedEngine
from dataflowd.host import log

if TYPE_CHECKING:
    from dataflowd.daemon.state import State

EVERY_SECONDS = 5.0

_log = log.logger(__name__)


@dataclass(eq=False)
class Limits:
    limit: int = 0
    paused: bool = False
    queued: int = 0  # runs that are ready to start, of all jobs
    wake: Wake = field(default_factory=Wake)  # the table changed, or the link was lost


async def run(state: State) -> None:
    failures = 0
    while True:
        state.limits.wake.clear()
        try:
            await state.link.open()
            await read(state)
            state.limits.queued = await calls.queued(state.link)
            failures = 0
            pause = EVERY_SECONDS
        except (psycopg.Error, LostLinkError, TimeoutError) as error:
            # One warning is enough: the service `leases` logs that the database is away.
            tell = _log.debug if failures else _log.warning
            tell("control.unknown", error=str(error).strip() or "no answer")
            pause = backoff(failures)
            failures += 1
        await state.limits.wake.wait(pause)


async def read(state: State) -> None:
    found = await calls.limits(state.link, state.name)
    if isinstance(state.engine, SizedEngine):
        await state.engine.resize(found.runners, found.slots)
    limits = state.limits
    if (found.limit, found.paused) == (limits.limit, limits.paused):
        return
    _log.info("limit.changed", limit=found.limit, was=limits.limit, paused=found.paused)
    has_grown = found.limit > limits.limit or (limits.paused and not found.paused)
    limits.limit, limits.paused = found.limit, found.paused
    if has_grown:
        state.turns.wake.set()
