"""Makes the periods of calendar datasets READY at the moment when they are due, and periods that were missed at once.

The database knows which periods are due and when the next one will be. Several daemons may ask at the same time; one of
them makes the periods READY. The database passes over a calendar whose row somebody has locked. Its periods stay due, so
the service asks again, a little later each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import psycopg

from dataflowd.database import calls
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.host import log

if TYPE_CHECKING:
    from dataflowd.daemon.state import State

_log = log.logger(__name__)


async def run(state: State) -> None:
    fruitless = 0
    while True:
        due, periods = await _turn(state)
        if periods:
            fruitless = 0
            _log.info("calendar.ticked", periods=periods)
            state.turns.wake.set()
            continue
        fruitless = fruitless + 1 if due is not None and due <= 0 else 0
        # Somebody may declare a calendar at any time, so the service sleeps for one poll at most.
        poll = state.poll_seconds
        if fruitless:
            await anyio.sleep(backoff(fruitless, most=poll))
        else:
            await anyio.sleep(poll if due is None else min(due, poll))


async def _turn(state: State) -> tuple[float | None, int]:
    """Returns the seconds until the next period is due (None: unknown), and how many periods became READY."""
    try:
        due = await calls.next_tick(state.link)
        return due, await calls.tick(state.link) if due is not None and due <= 0 else 0
    except (psycopg.Error, LostLinkError):
        return None, 0
