"""Removes what dead and superseded attempts left on this host's disks, once an interval: see dataflowd.storage.gc.

Every daemon walks the directories that its host can see; two daemons on one host do no harm. Disks are slow, and the event
loop must not wait for them. So a thread walks and removes, one batch at a time.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import anyio
import psycopg

from dataflowd.database import calls
from dataflowd.database.session import LostLinkError
from dataflowd.host import log, scratch
from dataflowd.storage import gc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.daemon.state import State

_log = log.logger(__name__)


async def run(state: State) -> None:
    while True:
        interval = state.settings.gc_interval
        # The interval comes first, so that a daemon which is restarted often does not walk the disk at each start.
        await anyio.sleep(interval or state.settings.poll)
        if not interval or state.ending.is_stopping:
            continue
        try:
            await collect(state)
        except (psycopg.Error, LostLinkError) as error:
            _log.info("gc.postponed", error=str(error).strip())


async def collect(state: State) -> None:
    settings = state.settings
    for path in await anyio.to_thread.run_sync(scratch.remove, settings):
        _log.info("gc.leftover", path=str(path))
    rows = await calls.gc_places(state.link, settings.environment)
    places = await anyio.to_thread.run_sync(_places, rows, settings.effective_allowed_roots)
    batches = gc.walk(places)
    removed = total = 0
    while batch := await anyio.to_thread.run_sync(_next, batches):
        said = await calls.gc_collect(state.link, gc.asked(batch), settings.gc_grace, settings.gc_retention)
        for garbage in gc.judged(batch, said):
            done = await anyio.to_thread.run_sync(gc.remove, garbage)
            removed, total = removed + done.is_removed, total + done.bytes
            if not done.is_removed and done.why_not != gc.GONE:
                _log.warning("gc.kept", path=str(garbage.found.path), why=done.why_not)
    _log.info("gc.done", removed=removed, bytes=total)


def _places(rows: list[tuple[str, str]], allowed_roots: list[str]) -> list[gc.Place]:
    found = (gc.places(dataset, location, allowed_roots) for dataset, location in rows)
    return [each for several in found if not isinstance(several, gc.Skipped) for each in several]


def _next(batches: Iterator[list[gc.Found]]) -> list[gc.Found]:
    return next(chain(batches, [[]]))
