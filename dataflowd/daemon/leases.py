"""Keeps this daemon's lease and locks, and rescues the runs of dead daemons.

Only this service opens the claiming session.
- The session begins with `register`.
- After the session was lost, a new one calls `retake`: it takes the locks again, and the answer names the attempts that are
  still ours. These go on. The service stops every other attempt. The answer may name an attempt that this daemon does not
  know, because the answer to its claim was lost: the service gives it back. It also gives back those that somebody has
  cancelled meanwhile, because a cancelled run cannot start again before its daemon has said that nothing of it runs.
- The service renews the lease RENEWALS_PER_LEASE times in the length of one lease. If no renewal succeeded until shortly
  before the lease ends, other daemons may soon take our runs: the service stops all attempts, and they are given back when
  the database answers again.
- `rescue` returns the runs of dead daemons to the queue. It uses the other session, because an advisory lock does not keep out
  the session that holds it. The runs of a daemon on this host whose process is dead are rescued at once. A frozen daemon
  keeps its session and its locks; the database says when this has lasted too long, and this service ends the
  session, if our role may.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import psycopg

from dataflowd.daemon import finisher
from dataflowd.daemon.wake import Wake
from dataflowd.database import calls, db
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.host import log, supervise
from dataflowd.model.endings import returned

if TYPE_CHECKING:
    from dataflowd.daemon.state import State

RENEWALS_PER_LEASE = 3
MARGIN_SHARE = 1 / 6  # of the lease: the time that stopping the attempts may take
RESCUE_SECONDS = 5.0
FOLD_SECONDS = 20.0
CLOCK_TOLERANCE_SECONDS = 5.0
STOPPED_POLL_SECONDS = 0.05

_log = log.logger(__name__)


@dataclass(eq=False)
class Lease:
    proven: float = 0.0  # monotonic: until then nobody else may take our runs
    is_serving_told: bool = False  # the database knows which jobs this daemon starts
    is_session_refused: bool = False  # the database takes another session for the one that claims
    not_ended: set[int] = field(default_factory=set)  # sessions of frozen daemons that our role may not end
    wake: Wake = field(default_factory=Wake)  # renew now, or connect again

    def refuse_session(self) -> None:
        """The database has refused a claim of our session: the service has to retake it."""
        self.is_session_refused = True
        self.wake.set()


async def start(state: State) -> None:
    """Registers this daemon as the only one of its name, and rescues the runs of dead daemons on this host."""
    await state.link.open()
    await expire_dead_neighbours(state)
    await state.claims.link.open()
    await _register(state)
    await rescue(state)


async def run(state: State) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_renew, state)
        group.start_soon(_guard, state)
        group.start_soon(_rescue, state)


async def expire_dead_neighbours(state: State) -> None:
    for neighbour in await calls.neighbours(state.link, state.hostname):
        began = supervise.started_at(neighbour.pid)
        was_ourselves = neighbour.daemon == state.name and neighbour.pid == os.getpid()
        if was_ourselves or began is None or began > neighbour.started + CLOCK_TOLERANCE_SECONDS:
            await calls.expire(state.link, neighbour)


async def rescue(state: State) -> None:
    for attempt, jobid, dataid, daemon, tag in await calls.rescue(state.link):
        _log.warning("attempt.rescued", job=jobid, dataid=dataid, attempt=attempt, lost_by=daemon, tag=tag)


async def end_frozen_sessions(state: State) -> None:
    for daemon, hostname, pid, session_pid, is_ended in await calls.end_frozen(state.link):
        if is_ended:
            _log.warning("session.ended", frozen=daemon, host=hostname, session=session_pid)
        elif session_pid not in state.lease.not_ended:
            state.lease.not_ended.add(session_pid)
            _log.error(
                "session.frozen",
                frozen=daemon,
                host=hostname,
                session=session_pid,
                remedy=f"kill -KILL {pid} on {hostname}; GRANT pg_signal_backend to this role lets daemons end such sessions",
            )


async def _renew(state: State) -> None:
    failures = 0
    while True:
        state.lease.wake.clear()
        try:
            if not state.claims.link.is_up:
                await _restore(state)
            elif state.lease.is_session_refused:
                # A restored backup, or a person, has written another session into the daemon's row.
                state.lease.is_session_refused = False
                await _retake(state)
            else:
                await _prolong(state)
            if failures:
                _log.info("database.back", running=len(state.attempts.running))
            failures = 0
        except (psycopg.Error, LostLinkError, TimeoutError) as error:
            said = str(error).strip() or "no answer"
            if not failures:
                _tell_that_the_database_is_away(state, said)
            _log.warning("lease.unproven", error=said)
            await anyio.sleep(backoff(failures, most=state.settings.lease / 10))
            failures += 1
            continue
        await state.lease.wake.wait(state.settings.lease / RENEWALS_PER_LEASE)


def _tell_that_the_database_is_away(state: State, error: str) -> None:
    _log.error(
        "database.away",
        error=error,
        running=len(state.attempts.running),
        stands_for_seconds=max(0, round(state.lease.proven - time.monotonic())),
        remedy="look after the server and the way to it: `dataflowctl doctor`; what runs goes on until the lease ends",
    )


async def _prolong(state: State) -> None:
    asked = time.monotonic()
    if await state.claims.renew():
        state.lease.proven = asked + state.settings.lease
        if not state.lease.is_serving_told:
            await tell_what_is_served(state)
    else:
        await _begin_again(state)


async def tell_what_is_served(state: State) -> None:
    """If this raises, the next renewal tells the database again."""
    state.lease.is_serving_told = False
    await state.claims.serve(state.served, state.assignment.unserved())
    state.lease.is_serving_told = True


async def _restore(state: State) -> None:
    await state.claims.link.open()
    try:
        await _retake(state)
    except (psycopg.Error, LostLinkError, TimeoutError):
        # A session without its locks must not stay open: the database would refuse its claims, and nothing would retake them.
        await state.claims.link.close()
        raise


async def _retake(state: State) -> None:
    asked = time.monotonic()
    if not await state.claims.renew():
        await _begin_again(state)
        return
    # The renewal counts at once, even if a later call fails and the whole is tried again.
    state.lease.proven = asked + state.settings.lease
    await tell_what_is_served(state)
    # The scheduler claims as soon as there is a session. So nothing is awaited between this answer and the comparison.
    retaken = {one.attempt.attempt: one for one in await state.claims.retake()}
    for number, running in list(state.attempts.running.items()):
        if number not in retaken:
            running.stop("its claim was lost with the connection")
        elif not retaken[number].is_live:
            running.stop("it was cancelled")
    known = {*state.attempts.running, *(offer.result.attempt for offer in state.results.offers)}
    unknown = [one.attempt for number, one in retaken.items() if number not in known]
    for attempt in unknown:
        finisher.offer(state, returned(attempt, "the answer to its claim was lost with the connection"))
    live = sum(one.is_live for one in retaken.values())
    _log.info("lease.retaken", attempts=live, cancelled=len(retaken) - live, unknown=len(unknown))
    state.turns.wake.set()
    state.results.wake.set()
    state.watch.wake.set()


async def _begin_again(state: State) -> None:
    """Another process has taken our name, or a person has stopped this daemon: our attempts are no longer ours.

    The old session keeps its locks until the last attempt has stopped, so that nobody starts the same run beside it. If the
    other process is alive, the database refuses to register us, and this daemon ends.
    """
    _log.error("lease.lost", attempts=len(state.attempts.running))
    state.attempts.stop_all("the daemon's lease was lost")
    with anyio.move_on_after(state.settings.lease):
        while any(not running.ended for running in state.attempts.running.values()):  # noqa: ASYNC110 - too rare for an event
            await anyio.sleep(STOPPED_POLL_SECONDS)
    await state.claims.link.close()
    await state.claims.link.open()
    try:
        await _register(state)
    except psycopg.Error as error:
        if error.sqlstate == db.SQLSTATE_REFUSED:
            raise db.translate(error) from error
        raise
    state.turns.wake.set()
    state.results.wake.set()


async def _register(state: State) -> None:
    asked = time.monotonic()
    settings = state.settings
    await state.claims.register(state.hostname, os.getpid(), settings.lease, settings.environment)
    state.lease.proven = asked + settings.lease
    await tell_what_is_served(state)


async def _guard(state: State) -> None:
    while True:
        left = state.lease.proven - state.settings.lease * MARGIN_SHARE - time.monotonic()
        if left > 0:
            await anyio.sleep(left)
            continue
        if state.attempts.running:
            _log.error("lease.ending", attempts=len(state.attempts.running))
        state.attempts.stop_all("the daemon could not prove its claim before its lease ended")
        await anyio.sleep(state.settings.lease / RENEWALS_PER_LEASE)


async def _rescue(state: State) -> None:
    folded = time.monotonic()
    failures = 0
    while True:
        await anyio.sleep(min(RESCUE_SECONDS, state.settings.lease / RENEWALS_PER_LEASE))
        try:
            await end_frozen_sessions(state)
            await rescue(state)
            if time.monotonic() - folded > FOLD_SECONDS:
                await calls.fold(state.link)
                folded = time.monotonic()
            failures = 0
        except (psycopg.Error, LostLinkError) as error:
            tell = _log.debug if failures else _log.warning
            tell("rescue.failed", error=str(error).strip() or "no answer")
            failures += 1
