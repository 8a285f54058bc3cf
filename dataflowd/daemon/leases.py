"""Keeps the right to what was claimed, and takes over what others lost.

The claiming session is opened here and nowhere else. Its first act is `register`; after it was lost, `retake`: a new
session takes the locks again, and the answer says which attempts are still ours. Those go on; every other is
stopped; one that we know nothing of (the answer to its claim was lost) is given back. So is one of those that somebody
has cancelled since: its run cannot be made again before we say that nothing of it runs. The lease is renewed three times
as often as it ends. If no renewal was confirmed until shortly before its end, others may soon take our runs: all
attempts are stopped, and given back when the database answers again.
`rescue` returns the runs of dead daemons to the queue, on another session than ours, for a session's own locks do not
keep it out. A daemon of this host whose process is dead need not be waited for. One that is frozen keeps its session and
its locks; the database says when that has lasted too long, and its session is ended, if our role may.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import anyio
import psycopg

from dataflowd.daemon import pool
from dataflowd.database import calls, db
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.host import log, supervise
from dataflowd.model.endings import returned

if TYPE_CHECKING:
    from dataflowd.daemon.state import State

RENEWALS_PER_LEASE = 3
MARGIN_SHARE = 1 / 6  # of the lease: what stopping the attempts may take
RESCUE_SECONDS = 5.0
FOLD_SECONDS = 20.0
CLOCK_TOLERANCE_SECONDS = 5.0
STOPPED_POLL_SECONDS = 0.05

_log = log.logger(__name__)


async def start(state: State) -> None:
    """Before anything else: be the only daemon of this name, and leave nothing to dead ones of this host."""
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
        elif session_pid not in state.not_ended:
            state.not_ended.add(session_pid)
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
        state.lease.clear()
        try:
            if not state.claims.link.is_up:
                await _restore(state)
            elif state.is_session_refused:
                # A backup that was restored, or a hand, has put another session in the daemon's row.
                state.is_session_refused = False
                await _retake(state)
            else:
                await _prolong(state)
            if failures:
                _log.info("database.back", running=len(state.running))
            failures = 0
        except (psycopg.Error, LostLinkError, TimeoutError) as error:
            said = str(error).strip() or "no answer"
            if not failures:
                _tell_that_the_database_is_away(state, said)
            _log.warning("lease.unproven", error=said)
            await anyio.sleep(backoff(failures, most=state.settings.lease / 10))
            failures += 1
            continue
        await state.lease.wait(state.settings.lease / RENEWALS_PER_LEASE)


def _tell_that_the_database_is_away(state: State, error: str) -> None:
    _log.error(
        "database.away",
        error=error,
        running=len(state.running),
        stands_for_seconds=max(0, round(state.lease_proven - time.monotonic())),
        remedy="look after the server and the way to it: `dataflowctl doctor`; what runs goes on until the lease ends",
    )


async def _prolong(state: State) -> None:
    asked = time.monotonic()
    if await state.claims.renew():
        state.lease_proven = asked + state.settings.lease
        if not state.is_serving_told:
            await tell_what_is_served(state)
    else:
        await _begin_again(state)


async def tell_what_is_served(state: State) -> None:
    """What could not be told now is told with the next renewal."""
    await state.claims.serve(state.served, state.unserved())
    state.is_serving_told = True


async def _restore(state: State) -> None:
    await state.claims.link.open()
    try:
        await _retake(state)
    except (psycopg.Error, LostLinkError, TimeoutError):
        # Half restored it would pass for a good one: its claims would be refused, and nothing would restore it.
        await state.claims.link.close()
        raise


async def _retake(state: State) -> None:
    asked = time.monotonic()
    if not await state.claims.renew():
        await _begin_again(state)
        return
    # Proven here: nobody may take our runs, also when what follows does not get through and is tried again.
    state.lease_proven = asked + state.settings.lease
    await tell_what_is_served(state)
    # A claim may go on as soon as there is a session: between this answer and the comparison nothing is awaited.
    retaken = {one.attempt.attempt: one for one in await state.claims.retake()}
    for number, running in list(state.running.items()):
        if number not in retaken:
            running.stop("its claim was lost with the connection")
        elif not retaken[number].is_live:
            running.stop("it was cancelled")
    known = {*state.running, *(offer.result.attempt for offer in state.offers)}
    unknown = [one.attempt for number, one in retaken.items() if number not in known]
    for attempt in unknown:
        state.offer(returned(attempt, "the answer to its claim was lost with the connection"))
    live = sum(one.is_live for one in retaken.values())
    _log.info("lease.retaken", attempts=live, cancelled=len(retaken) - live, unknown=len(unknown))
    state.work.set()
    state.results.set()
    state.cancel.set()


async def _begin_again(state: State) -> None:
    """Another process bears our name, or somebody stopped us: whatever we ran is no longer ours.

    The old session keeps its locks until the last attempt has stopped, so that nobody starts a run beside it. If the
    other process is alive, the name is its own, and this daemon ends.
    """
    _log.error("lease.lost", attempts=len(state.running))
    pool.stop_all(state, "the daemon's lease was lost")
    with anyio.move_on_after(state.settings.lease):
        while any(not running.ended for running in state.running.values()):  # noqa: ASYNC110 - too rare for an event
            await anyio.sleep(STOPPED_POLL_SECONDS)
    await state.claims.link.close()
    await state.claims.link.open()
    try:
        await _register(state)
    except psycopg.Error as error:
        if error.sqlstate == db.SQLSTATE_REFUSED:
            raise db.translate(error) from error
        raise
    state.work.set()
    state.results.set()


async def _register(state: State) -> None:
    asked = time.monotonic()
    settings = state.settings
    await state.claims.register(state.hostname, os.getpid(), settings.lease, settings.environment)
    state.lease_proven = asked + settings.lease
    await tell_what_is_served(state)


async def _guard(state: State) -> None:
    while True:
        left = state.lease_proven - state.settings.lease * MARGIN_SHARE - time.monotonic()
        if left > 0:
            await anyio.sleep(left)
            continue
        if state.running:
            _log.error("lease.ending", attempts=len(state.running))
        pool.stop_all(state, "the daemon could not prove its claim before its lease ended")
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
