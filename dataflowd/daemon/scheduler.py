"""Claims as many runs as there are free places, as soon as runs are ready.

- A turn: the scheduler clears its wake, then claims as many runs as there are free places. So a notification that arrives
  during the claim causes another turn, and none is lost. If the claim got all that it asked for, the next turn follows at
  once. Otherwise the scheduler looks whether anything is left.
- The claim itself reads the limits and obeys them. The daemon only computes how many runs to ask for: of jobs that need a Spark
  application, no more than would find one soon.
- Between turns the scheduler sleeps until it is woken, until a retry is due, or until the poll.
- Some runs are ready and cannot be taken now: another transaction holds a row, or another daemon has the last place. The
  scheduler looks for these again soon, and later each time while nothing changes, but every WAITING_MOST_SECONDS at least,
  because no notification says that another daemon has freed a place. Runs of a paused job are not among them: the
  notification of the resumption wakes the scheduler.

With --once the daemon stops when nothing runs and nothing more is ready. It waits for retries that are due while its patience
lasts. The patience is a sum over all waits, because a run may ask for another try without end. The log says what is left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from dataflowd.daemon import pool
from dataflowd.daemon.state import Which
from dataflowd.daemon.wake import Wake
from dataflowd.database import answers, calls, db
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.engine import SizedEngine
from dataflowd.host import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskGroup

    from dataflowd.daemon.state import State
    from dataflowd.model.attempt import Attempt

WAITING_MOST_SECONDS = 1.0
ONCE_PATIENCE = 6  # fruitless turns, each twice as late as the one before

_log = log.logger(__name__)


@dataclass(eq=False)
class Turns:
    patience: float  # seconds that --once may still wait for retries
    made: int = 0
    claimed: int = 0  # runs, by all turns
    is_claiming: bool = False  # a claim is on its way: its attempts are not among the running ones yet
    idle_since: float | None = None  # monotonic: since when --once waits for a retry
    wake: Wake = field(default_factory=Wake)  # look for work
    ended: Wake = field(default_factory=Wake)  # a turn was made

    def end_idling(self) -> None:
        """Takes the time that --once has waited for a retry from its patience."""
        if self.idle_since is not None:
            self.patience -= time.monotonic() - self.idle_since
            self.idle_since = None


async def run(state: State, tasks: TaskGroup) -> None:
    """Claims for ever. The attempts run in `tasks`, because they outlive the services."""
    turns, fruitless = state.turns, 0
    while True:
        turns.wake.clear()
        claimed, seconds = await _turn(state, tasks, fruitless)
        turns.made += 1
        turns.ended.set()
        was_woken = await turns.wake.wait(seconds) if seconds else False
        fruitless = 0 if claimed or was_woken or turns.idle_since is not None else fruitless + 1


async def _turn(state: State, tasks: TaskGroup, fruitless: int) -> tuple[int, float]:
    """Returns how many runs were claimed, and how many seconds to sleep."""
    if not state.claims.link.is_up:
        return 0, state.poll_seconds
    claimed = 0
    try:
        wanted = _wanted(state)
        if not wanted and _places(state):
            return 0, state.poll_seconds  # the engine calls `on_room` when it has room again
        if wanted:
            claimed = await _claim(state, tasks, wanted)
        is_full = wanted > 0 and claimed == wanted
        return claimed, 0 if is_full else await _pause(state, 0 if claimed else fruitless)
    except LostLinkError:
        return claimed, state.poll_seconds
    except psycopg.Error as error:
        if state.assignment.wanted is not None and error.sqlstate in db.RAISED_BY_FUNCTIONS:
            state.ending.refuse(db.translate(error))
            return claimed, state.poll_seconds
        if error.sqlstate == db.SQLSTATE_REFUSED:
            state.lease.refuse_session()
        _log.warning(
            "claim.failed", error=error.diag.message_primary or str(error).strip(), sqlstate=error.sqlstate
        )
        return claimed, backoff(fruitless, most=state.settings.poll)


def _places(state: State) -> int:
    """How many more attempts this daemon may run."""
    if state.limits.paused or state.ending.is_stopping or _is_sated(state):
        return 0
    return max(0, state.limits.limit - len(state.attempts.running))


def _is_sated(state: State) -> bool:
    """Whether a person who wants one run has got it."""
    wanted = state.assignment.wanted
    return wanted is not None and wanted.which is not Which.EVERY and state.turns.claimed > 0


def _scarce(state: State) -> tuple[frozenset[str], int]:
    """The jobs whose attempts need a process of the engine's, and how many more attempts would find one soon."""
    if not isinstance(state.engine, SizedEngine):
        return frozenset(), 0
    room = state.engine.room()
    needy = room.jobs | room.likes
    running = state.attempts.running.values()
    taken = sum(not each.ended and each.attempt.jobid in needy for each in running)
    return room.jobs, max(0, room.attempts - taken)


def _wanted(state: State) -> int:
    """How many runs to ask for. Runs that could not start soon here are left to other daemons."""
    scarce, room = _scarce(state)
    served = state.assignment.serves()
    is_all_scarce = bool(scarce) and served is not None and scarce.issuperset(served)
    places = min(_places(state), room) if is_all_scarce else _places(state)
    return min(answers.CLAIM_AT_MOST, places)


async def _claim(state: State, tasks: TaskGroup, wanted: int) -> int:
    began = time.perf_counter()
    state.turns.is_claiming = True
    try:
        attempts = await _taken(state, wanted)
        _require_new(state, attempts)
        pool.start(state, tasks, attempts)
    except psycopg.Error as error:
        if error.sqlstate not in db.RAISED_BY_FUNCTIONS:
            # The session keeps the locks that the failed claim took, and they would keep other daemons from these runs.
            # A new session retakes only the locks of the running attempts.
            await state.claims.link.close()
        raise
    finally:
        state.turns.is_claiming = False
        state.attempts.emptied.set()
    state.turns.claimed += len(attempts)
    if attempts:
        state.turns.end_idling()
    state.metrics.claim_seconds.observe(time.perf_counter() - began)
    return len(attempts)


def _require_new(state: State, attempts: list[Attempt]) -> None:
    """Refuses an attempt that is claimed twice: it would be counted once, and the daemon would exceed its limit."""
    numbers = {attempt.attempt for attempt in attempts}
    if len(numbers) < len(attempts) or not numbers.isdisjoint(state.attempts.running):
        raise answers.wrong("daemon_claim", "has an attempt that runs already")


async def _taken(state: State, at_most: int) -> list[Attempt]:
    wanted = state.assignment.wanted
    if wanted is None or wanted.which is Which.EVERY:
        scarce, room = _scarce(state)
        return await state.claims.claim(at_most, sorted(scarce), room)
    match wanted.which:
        case Which.NEXT:
            return await state.claims.claim(1)
        case Which.NEW:
            return await state.claims.claim_new(wanted.jobid)
        case Which.NAMED | Which.FORCED:
            is_forced = wanted.which is Which.FORCED
            return await state.claims.claim_run(
                wanted.jobid, wanted.dataid, forced=is_forced, reason=wanted.reason
            )


async def _pause(state: State, fruitless: int) -> float:
    poll = state.poll_seconds
    is_full = _places(state) > 0 and not _wanted(state)  # the engine calls `on_room` when it has room again
    if state.ending.is_stopping or is_full:
        return poll
    if not _places(state):
        if state.assignment.once and (state.limits.paused or not state.limits.limit or _is_sated(state)):
            _end_once(state, await calls.look(state.claims.link, state.assignment.serves()))
        return poll
    seen = await calls.look(state.claims.link, _startable(state))
    if state.assignment.once:
        _wait_or_end(state, seen, fruitless)
    if seen.waiting or seen.recheck or (seen.due is not None and seen.due <= 0):
        return backoff(fruitless, most=min(poll, WAITING_MOST_SECONDS))
    return poll if seen.due is None else min(poll, seen.due)


def _startable(state: State) -> Sequence[str] | None:
    """The jobs to look for. Without room in the engine, jobs that need it are left out: `on_room` will wake the scheduler.

    With --once they count, because the daemon must not stop before these runs were made.
    """
    served = state.assignment.serves()
    scarce, room = _scarce(state)
    if served is None or room or state.assignment.once:
        return served
    return [jobid for jobid in served if jobid not in scarce]


def _wait_or_end(state: State, seen: calls.Look, fruitless: int) -> None:
    turns = state.turns
    if state.attempts.running or seen.waiting or seen.recheck:
        turns.end_idling()
        if fruitless >= ONCE_PATIENCE:
            _end_once(state, seen)
        return
    now = time.monotonic()
    since = now if turns.idle_since is None else turns.idle_since
    if seen.due is not None and max(seen.due, 0.0) < turns.patience - (now - since):
        turns.idle_since = since
    else:
        _end_once(state, seen)


def _end_once(state: State, seen: calls.Look) -> None:
    if state.attempts.running or state.ending.is_stopping:
        return
    if seen.queued and state.assignment.wanted is None:
        _log.warning(
            "once.left",
            runs=seen.queued,
            retries=seen.later,
            **({} if seen.due is None else {"next_retry_seconds": max(0, round(seen.due))}),
            remedy="--wait 1h waits for retries that long; `dataflowctl status` and `dataflowctl why JOB` say what keeps the others"
            if seen.later
            else "`dataflowctl status` and `dataflowctl why JOB` say what keeps them",
        )
    state.ending.stop("nothing is ready that this daemon could run")
