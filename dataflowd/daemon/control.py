"""Keeps the limits in step with the table `control`, and counts the queue for those who look.

The claim obeys the table by itself, whatever is known here. Here it is known how many to ask for, and that a raised limit is
a reason to look at once. The link for everything that is no claim is opened again here when it was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from dataflowd.database import calls
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.engine import SizedEngine
from dataflowd.host import log

if TYPE_CHECKING:
    from dataflowd.daemon.state import State

EVERY_SECONDS = 5.0

_log = log.logger(__name__)


async def run(state: State) -> None:
    failures = 0
    while True:
        state.control.clear()
        try:
            await state.link.open()
            await read(state)
            state.queued = await calls.queued(state.link)
            failures = 0
            pause = EVERY_SECONDS
        except (psycopg.Error, LostLinkError, TimeoutError) as error:
            # Once is enough: leases tell of a database that is away.
            tell = _log.debug if failures else _log.warning
            tell("control.unknown", error=str(error).strip() or "no answer")
            pause = backoff(failures)
            failures += 1
        await state.control.wait(pause)


async def read(state: State) -> None:
    found = await calls.limits(state.link, state.name)
    if isinstance(state.engine, SizedEngine):
        await state.engine.resize(found.runners, found.slots)
    if (found.limit, found.paused) == (state.limit, state.paused):
        return
    _log.info("limit.changed", limit=found.limit, was=state.limit, paused=found.paused)
    grown = found.limit > state.limit or (state.paused and not found.paused)
    state.limit, state.paused = found.limit, found.paused
    if grown:
        state.work.set()
