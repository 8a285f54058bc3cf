"""Makes the periods of calendar datasets READY at the moment when they are due, and those that were missed at once.

The database knows which are due and when the next one will be; several daemons may ask at once, and one does it. A
calendar whose row somebody has locked is passed over. Its periods stay due, so the next look is a little later each time.
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
            state.work.set()
            continue
        fruitless = fruitless + 1 if due is not None and due <= 0 else 0
        # A calendar may be declared at any time, so the poll bounds the sleep.
        poll = state.poll_seconds
        if fruitless:
            await anyio.sleep(backoff(fruitless, most=poll))
        else:
            await anyio.sleep(poll if due is None else min(due, poll))


async def _turn(state: State) -> tuple[float | None, int]:
    """Seconds until the next period is due (None: nobody knows), and how many were made READY."""
    try:
        due = await calls.next_tick(state.link)
        return due, await calls.tick(state.link) if due is not None and due <= 0 else 0
    except (psycopg.Error, LostLinkError):
        return None, 0
