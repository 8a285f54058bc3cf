"""Turns fixed paths to the published directories. dataflowd.storage.fixed_path explains the order of the steps.

The finisher names each chunk that it has published. When the daemon starts, and once an interval, the service looks at all
fixed paths, because the daemon that published a chunk may have died before it turned the path. A path that cannot be turned
now is tried again later.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import psycopg

from dataflowd.daemon.wake import Wake
from dataflowd.database import calls
from dataflowd.database.session import LostLinkError
from dataflowd.host import log
from dataflowd.model.identifiers import DATAID
from dataflowd.storage import fixed_path

if TYPE_CHECKING:
    from dataflowd.daemon.state import State
    from dataflowd.database.calls import Turned

AGAIN_SECONDS = 5.0
TURNED_AT_ONCE = 100_000

_log = log.logger(__name__)


@dataclass(eq=False)
class Paths:
    to_turn: set[tuple[str, str]] = field(default_factory=set)  # (dataset, dataid)
    wake: Wake = field(default_factory=Wake)  # there are paths to turn

    def add(self, dataset: str, dataid: str) -> None:
        """A chunk of a dataset with fixed paths was published."""
        self.to_turn.add((dataset, dataid))
        self.wake.set()


async def run(state: State) -> None:
    due = 0.0
    while True:
        state.paths.wake.clear()
        try:
            if time.monotonic() >= due:
                await _look_at_all(state)
                due = time.monotonic() + (state.settings.gc_interval or state.settings.poll)
            await turn_all(state)
        except (psycopg.Error, LostLinkError) as error:
            _log.info("path.postponed", error=str(error).strip() or "no answer")
            due = max(due, time.monotonic() + AGAIN_SECONDS)
        rest = max(0.0, due - time.monotonic())
        await state.paths.wake.wait(min(rest, AGAIN_SECONDS) if state.paths.to_turn else rest)


async def turn_all(state: State) -> None:
    for dataset, dataid in sorted(state.paths.to_turn):
        if await _turn(state, dataset, dataid):
            state.paths.to_turn.discard((dataset, dataid))


async def _turn(state: State, dataset: str, dataid: str) -> bool:
    """Returns False when another process has locked the path: the path has to be looked at again."""
    if not DATAID.fullmatch(dataid):
        return True
    found = await calls.fixed_path(state.link, dataset, dataid)
    if found is None or not _is_here(state, found):
        return True
    try:
        held = await anyio.to_thread.run_sync(fixed_path.lock, found.location, dataid)
        if held is None:
            return False
        try:
            # Another attempt may have published the chunk before the lock was taken.
            current = await calls.fixed_path(state.link, dataset, dataid)
            if current is not None and _is_here(state, current):
                await anyio.to_thread.run_sync(fixed_path.turn, current.location, dataid, current.current)
        finally:
            os.close(held)
    except (OSError, ValueError) as error:
        # A directory may stand in the way. The next look at all paths logs the error again.
        _log.error("path.failed", dataset=dataset, dataid=dataid, error=str(error))
    return True


async def _look_at_all(state: State) -> None:
    after = ("", "")
    while page := await calls.fixed_paths(state.link, *after):
        here = [found for found in page if _is_here(state, found)]
        wrong = await anyio.to_thread.run_sync(_wrong, here)
        state.paths.to_turn.update(wrong)
        last = page[-1].dataset, page[-1].dataid
        if last <= after or len(state.paths.to_turn) > TURNED_AT_ONCE:
            # The page is out of order, which only a wrong function returns; or there is enough to do. The next look goes on.
            return
        after = last


def _wrong(found: list[Turned]) -> list[tuple[str, str]]:
    return [
        (one.dataset, one.dataid)
        for one in found
        if DATAID.fullmatch(one.dataid) and not fixed_path.leads_to(one.location, one.dataid, one.current)
    ]


def _is_here(state: State, found: Turned) -> bool:
    return fixed_path.is_here(
        found.location, found.dataid, found.current, state.settings.effective_allowed_roots
    )
