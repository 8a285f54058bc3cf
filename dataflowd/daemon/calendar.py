"""Makes the periods of calendar datasets READY at the moment when they are due, and those that were missed at once.

The database knows which are due and when the next one will be; several daemons may ask at once, and one does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import psycopg

from dataflowd import log
from dataflowd.daemon import calls
from dataflowd.daemon.link import LostLinkError

if TYPE_CHECKING:
    from dataflowd.daemon.state import State

_log = log.logger(__name__)


async def run(state: State) -> None:
    while True:
        try:
            due = await calls.next_tick(state.link)
            if due is not None and due <= 0:
                periods = await calls.tick(state.link)
                _log.info("calendar.ticked", periods=periods)
                state.work.set()
                continue
        except (psycopg.Error, LostLinkError):
            due = None
        # A calendar may be declared at any time, so the poll bounds the sleep.
        await anyio.sleep(state.poll_seconds if due is None else min(due, state.poll_seconds))
