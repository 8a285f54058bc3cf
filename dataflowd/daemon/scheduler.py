"""Claims what fits, as soon as it may.

One turn: clear the flag, then claim as many runs as there are free places; so a notification that arrives during the claim
causes another turn, and none is lost. A claim that got all it asked for is followed by the next one at once; after one that
got less, a look says whether anything is left. The limits that count are read inside the claim; the daemon's own
arithmetic only says how much to ask for: of jobs that need a Spark application no more than would find one soon. Between turns it sleeps until it is woken, until a retry is due, or until the poll.
Runs that could not be taken although they wait (somebody holds a row, another daemon has the last place) are looked at
again soon, and ever later while that does not change, but every second at least: nobody tells that another daemon has left
a place free. Those of a paused job are not among them: the notice of the resumption is a reason to look.

With --once the daemon stops when nothing runs and nothing more is ready. Retries that are due while its patience lasts are
waited for: in all as long as it was told, for a run may ask for another try without end. What is left is said.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from dataflowd.daemon import pool
from dataflowd.database import answers, calls, db
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.host import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.daemon.state import State
    from dataflowd.model.attempt import Attempt

WAITING_MOST_SECONDS = 1.0
ONCE_PATIENCE = 6  # fruitless turns, each twice as late as the one before

_log = log.logger(__name__)


async def run(state: State) -> None:
    fruitless = 0
    while True:
        state.work.clear()
        claimed, seconds = await _turn(state, fruitless)
        state.turns += 1
        state.turned.set()
        was_woken = await state.work.wait(seconds) if seconds else False
        fruitless = 0 if claimed or was_woken or state.idle_since is not None else fruitless + 1


async def _turn(state: State, fruitless: int) -> tuple[int, float]:
    """How many runs were claimed, and how long to sleep."""
    if not state.claims.link.is_up:
        return 0, state.poll_seconds
    claimed = 0
    try:
        wanted = _wanted(state)
        if not wanted and state.places:
            return 0, state.poll_seconds  # the engine tells when it has room again
        if wanted:
            claimed = await _claim(state, wanted)
        is_full = wanted > 0 and claimed == wanted
        return claimed, 0 if is_full else await _pause(state, 0 if claimed else fruitless)
    except LostLinkError:
        return claimed, state.poll_seconds
    except psycopg.Error as error:
        if state.wanted is not None and error.sqlstate in db.RAISED_BY_FUNCTIONS:
            state.refusal = db.translate(error)
            state.stop("what was wanted is refused")
            return claimed, state.poll_seconds
        if error.sqlstate == db.SQLSTATE_REFUSED:
            state.is_session_refused = True
            state.lease.set()
        _log.warning(
            "claim.failed", error=error.diag.message_primary or str(error).strip(), sqlstate=error.sqlstate
        )
        return claimed, backoff(fruitless, most=state.settings.poll)


def _wanted(state: State) -> int:
    """What could not start soon is left to other daemons."""
    scarce, room = state.scarce()
    served = state.serves()
    is_all_scarce = bool(scarce) and served is not None and scarce.issuperset(served)
    places = min(state.places, room) if is_all_scarce else state.places
    return min(answers.CLAIM_AT_MOST, places)


async def _claim(state: State, wanted: int) -> int:
    began = time.perf_counter()
    state.claiming = True
    try:
        attempts = await _taken(state, wanted)
        _require_new(state, attempts)
        pool.start(state, attempts)
    except psycopg.Error as error:
        if error.sqlstate not in db.RAISED_BY_FUNCTIONS:
            # The locks that it took outlive its transaction, and would keep others from these runs for as long as this
            # session lives. A new one retakes those of what runs.
            await state.claims.link.close()
        raise
    finally:
        state.claiming = False
        state.emptied.set()
    state.claimed += len(attempts)
    if attempts:
        _end_idling(state)
    state.metrics.claim_seconds.observe(time.perf_counter() - began)
    return len(attempts)


def _require_new(state: State, attempts: list[Attempt]) -> None:
    """An attempt that is claimed twice would be counted once: there would be no limit."""
    numbers = {attempt.attempt for attempt in attempts}
    if len(numbers) < len(attempts) or not numbers.isdisjoint(state.running):
        raise answers.wrong("daemon_claim", "has an attempt that runs already")


async def _taken(state: State, at_most: int) -> list[Attempt]:
    wanted = state.wanted
    if wanted is not None and wanted.is_new:
        return await state.claims.claim_new(wanted.jobid)
    if wanted is None or wanted.every:
        scarce, room = state.scarce()
        return await state.claims.claim(at_most, sorted(scarce), room)
    if wanted.dataid is None:
        return await state.claims.claim(1)
    return await state.claims.claim_run(
        wanted.jobid, wanted.dataid, forced=wanted.forced, reason=wanted.reason
    )


async def _pause(state: State, fruitless: int) -> float:
    poll = state.poll_seconds
    is_full = state.places > 0 and not _wanted(state)  # the engine tells when it has room again
    if state.draining or is_full:
        return poll
    if not state.places:
        if state.once and (state.paused or not state.limit or state.is_sated):
            _end_once(state, await calls.look(state.claims.link, state.serves()))
        return poll
    seen = await calls.look(state.claims.link, _startable(state))
    if state.once:
        _wait_or_end(state, seen, fruitless)
    if seen.waiting or seen.recheck or (seen.due is not None and seen.due <= 0):
        return backoff(fruitless, most=min(poll, WAITING_MOST_SECONDS))
    return poll if seen.due is None else min(poll, seen.due)


def _startable(state: State) -> Sequence[str] | None:
    """Whoever looks for runs that have no place would look again and again; `on_room` is a reason to look.

    With --once, what has no place yet is a reason to stay.
    """
    served = state.serves()
    scarce, room = state.scarce()
    return (
        served if served is None or room or state.once else [jobid for jobid in served if jobid not in scarce]
    )


def _wait_or_end(state: State, seen: calls.Look, fruitless: int) -> None:
    if state.running or seen.waiting or seen.recheck:
        _end_idling(state)
        if fruitless >= ONCE_PATIENCE:
            _end_once(state, seen)
        return
    now = time.monotonic()
    since = now if state.idle_since is None else state.idle_since
    if seen.due is not None and max(seen.due, 0.0) < state.patience - (now - since):
        state.idle_since = since
    else:
        _end_once(state, seen)


def _end_idling(state: State) -> None:
    if state.idle_since is not None:
        state.patience -= time.monotonic() - state.idle_since
        state.idle_since = None


def _end_once(state: State, seen: calls.Look) -> None:
    if state.running or state.shutdown.is_set():
        return
    if seen.queued and state.wanted is None:
        _log.warning(
            "once.left",
            runs=seen.queued,
            retries=seen.later,
            **({} if seen.due is None else {"next_retry_seconds": max(0, round(seen.due))}),
            remedy="--wait 1h waits for retries that long; `dataflowctl status` and `dataflowctl why JOB` say what keeps the others"
            if seen.later
            else "`dataflowctl status` and `dataflowctl why JOB` say what keeps them",
        )
    state.stop("nothing is ready that this daemon could run")
