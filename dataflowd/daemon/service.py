"""The daemon: one task group of services, from registration to farewell.

Every service is a module with `async def run`, and state.py lists what each of them owns. No service is expected to end: if
one ends or raises, the daemon stops, logs why, and exits with the status of that error. Attempts run in a task group around
that of the services, so that attempts can end, or be stopped, while the services still report to the database. The engine is
opened around both: its runners outlive attempts, and all of them are dead before the daemon says farewell.

Stopping: the daemon claims nothing more and waits for its attempts, at most for `drain_timeout`. Then it stops them and gives
them back, which spends no try. It sends the last results and says farewell. A second signal ends the waiting. Every step is
bounded in time, also without the database: other daemons rescue what this one could not report.
"""

from __future__ import annotations

import signal
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import psycopg

from dataflowd.daemon import (
    attempt_watch,
    calendar,
    collector,
    control,
    finisher,
    fixed_paths,
    health,
    leases,
    listener,
    pool,
    scheduler,
    systemd,
)
from dataflowd.daemon.ending import Ending
from dataflowd.daemon.metrics import Metrics
from dataflowd.daemon.state import Assignment, State
from dataflowd.database import calls, db
from dataflowd.database.session import Link, LostLinkError
from dataflowd.engine import LookingEngine, SizedEngine, WarmEngine
from dataflowd.flow import FlowMistakesError
from dataflowd.host import log
from dataflowd.model.errors import EXIT, DatabaseUnreachableError, DataflowError, NotAllowedError
from dataflowd.model.faults import first_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.abc import TaskGroup

    from dataflowd.engine import Engine
    from dataflowd.host.settings import Current

STATEMENT_SHARE = 1 / 4  # of the lease: after a longer call there would be no time to react
DRAIN_LEAST_SECONDS = 1.0
DRAIN_SAY_SECONDS = 30.0
STOP_SECONDS = 30.0  # for attempts that were stopped to end, and for their results to be stored
FAREWELL_SECONDS = 5.0
SHOWN = 10
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_log = log.logger(__name__)


class NameTakenError(NotAllowedError):
    """Another daemon has this name."""


async def run(
    current: Current,
    engine: Engine,
    assignment: Assignment | None = None,
    *,
    reload: Callable[[], None] | None = None,
) -> int:
    """Runs until it is told to stop, or with `once` until nothing is ready; returns the exit status.

    `reload` is called on SIGHUP: it reads flow files and settings again, and assigns to `current`.
    """
    name = current.settings.effective_daemon_name
    with log.context(daemon=name):
        state = assemble(current, name, engine, assignment or Assignment())
        try:
            await _register(state)
            async with (
                engine.opened(),
                anyio.create_task_group() as attempts,
                anyio.create_task_group() as services,
            ):
                # The signals come before READY=1: whoever waits for it may stop the daemon at once.
                with anyio.open_signal_receiver(*SIGNALS) as received:
                    services.start_soon(_watched, state, "signals", lambda: _signals(state, received, reload))
                    await _serve(state, services, attempts)
                    services.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _farewell(state)
        if state.ending.refusal is not None:
            raise state.ending.refusal
        return _exit_status(state)


def assemble(current: Current, name: str, engine: Engine, assignment: Assignment) -> State:
    """Constructs what the services own, the two links, and the state that holds them."""

    def address() -> str:
        return db.dsn(current.settings, lambda line: _log.info("embedded.created", detail=line))

    settings = current.settings
    limits, lease = control.Limits(), leases.Lease()
    claims = Link(
        current,
        f"dataflowd {name}",
        seconds=min(float(settings.statement_timeout), settings.lease * STATEMENT_SHARE),
        address=address,
        on_lost=lease.wake.set,
    )
    link = Link(
        current,
        f"dataflowd {name} services",
        seconds=settings.statement_timeout,
        address=address,
        on_lost=limits.wake.set,
    )
    state = State(
        name=name,
        hostname=socket.gethostname(),
        current=current,
        assignment=assignment,
        engine=engine,
        claims=calls.Claims(claims, name),
        link=link,
        metrics=Metrics(),
        ending=Ending(),
        attempts=pool.Attempts(),
        watch=attempt_watch.Watch(),
        results=finisher.Results(),
        limits=limits,
        lease=lease,
        hearing=listener.Hearing(),
        turns=scheduler.Turns(patience=assignment.patience),
        paths=fixed_paths.Paths(),
    )
    _hear_engine(state)
    return state


def _hear_engine(state: State) -> None:
    """Gives the engine its callbacks."""
    engine = state.engine
    if isinstance(engine, WarmEngine):
        engine.on_runner = lambda kind: state.metrics.runner_starts.labels(kind).inc()
        engine.on_wait = state.attempts.wait
    if isinstance(engine, LookingEngine):
        engine.on_found = state.attempts.find
    if isinstance(engine, SizedEngine):
        engine.on_room = state.turns.wake.set


async def _register(state: State) -> None:
    """Registers and reads the limits. Raises if the database does not answer: nothing runs yet that has to be kept."""
    try:
        await leases.start(state)
        await control.read(state)
        if state.assignment.once:
            while await calls.tick(state.link):
                pass
    except (LostLinkError, TimeoutError) as error:
        raise DatabaseUnreachableError(
            f"the database does not answer: {error}", "`dataflowctl doctor` tries each part"
        ) from error
    except psycopg.Error as error:
        found = db.translate(error)
        if error.sqlstate == db.SQLSTATE_REFUSED:
            raise NameTakenError(found.message, found.remedy) from error
        raise found from error


async def _serve(state: State, services: TaskGroup, attempts: TaskGroup) -> None:
    def address() -> str:
        return db.dsn(state.settings)

    def start(name: str, service: Callable[[], Awaitable[None]]) -> None:
        services.start_soon(_watched, state, name, service)

    start("leases", lambda: leases.run(state))
    start("listener", lambda: listener.run(state, address))
    start("control", lambda: control.run(state))
    start("oversight", lambda: attempt_watch.run(state))
    start("calendar", lambda: calendar.run(state))
    start("collector", lambda: collector.run(state))
    start("turner", lambda: fixed_paths.run(state))
    start("finisher", lambda: finisher.run(state))
    start("scheduler", lambda: scheduler.run(state, attempts))
    start("systemd", lambda: systemd.run(state))
    if state.settings.http_port and not state.assignment.once:
        start("http", lambda: health.run(state))
    _log.info("daemon.started", limit=state.limits.limit, paused=state.limits.paused)
    systemd.notify(READY=1, STATUS=systemd.status(state))
    await state.ending.begun.wait()
    reason = state.ending.reason
    systemd.notify(STOPPING=1, STATUS=f"stopping: {reason}")
    _log.info("daemon.stopping", reason=reason, running=len(state.attempts.running))
    # Among the attempts, because a cancelled call would take the claiming session along.
    attempts.start_soon(_tell_that_nothing_is_served, state)
    await _drain(state)


async def _watched(state: State, name: str, service: Callable[[], Awaitable[None]]) -> None:
    try:
        await service()
        raise RuntimeError(f"the service {name} has ended")  # noqa: TRY301 - an end is handled as an error
    except Exception as raised:  # noqa: BLE001 - the daemon stops in order after any error
        error = first_of(raised)  # a service may be a task group itself
        if isinstance(error, DataflowError):
            _log.error("service.died", service=name, error=error.message, remedy=error.remedy)
        else:
            _log.exception("service.died", service=name)
        state.ending.die(name, error)


async def _signals(
    state: State, received: AsyncIterator[signal.Signals], reload: Callable[[], None] | None
) -> None:
    async for number in received:
        if number == signal.SIGHUP:
            await _reload(state, reload)
        elif state.ending.is_stopping:
            running = len(state.attempts.running)
            _log.info("drain.hurried", signal=signal.Signals(number).name, running=running)
            state.ending.hurry()
        else:
            state.ending.stop(f"{signal.Signals(number).name} was received")


async def _reload(state: State, reload: Callable[[], None] | None) -> None:
    systemd.notify_reloading()
    try:
        if reload is not None:
            reload()
        await state.engine.reload()
        await leases.tell_what_is_served(state)
        await state.claims.reloaded(state.served)
    except (LostLinkError, psycopg.Error, TimeoutError) as error:
        _log.info(
            "daemon.reloaded",
            note="the database will be told when it answers again",
            error=str(error).strip(),
        )
    except DataflowError as error:
        for what, remedy in _told(error):
            _log.error("daemon.reload_failed", error=what, remedy=remedy)
    else:
        _log.info("daemon.reloaded")
    listener.wake_all(state)
    systemd.notify(READY=1, STATUS=systemd.status(state))


def _told(error: DataflowError) -> list[tuple[str, str]]:
    """Errors with their remedies, one for each mistake in a flow file: each becomes a line of the log."""
    if isinstance(error, FlowMistakesError):
        return [(f"{error.path}:{each.line}: {each.what}", each.remedy) for each in error.mistakes]
    return [(error.message, error.remedy)]


async def _drain(state: State) -> None:
    # A claim may be on its way. Its attempts have to be stopped and given back as well.
    with anyio.move_on_after(STOP_SECONDS):
        while state.turns.is_claiming:
            state.attempts.emptied.clear()
            await state.attempts.emptied.wait()
    with anyio.move_on_after(state.settings.drain_timeout):
        async with anyio.create_task_group() as group:
            group.start_soon(_say_what_is_left, state)
            await _until_empty_or_hurry(state)
            group.cancel_scope.cancel()
    state.attempts.stop_all(f"the daemon stopped: {state.ending.reason}")
    # Without the finisher no result can be stored, and other daemons will rescue the runs.
    if state.ending.died is None or state.ending.died[0] != "finisher":
        with anyio.move_on_after(STOP_SECONDS):
            await _until_empty(state)
    with anyio.move_on_after(FAREWELL_SECONDS), suppress(psycopg.Error, LostLinkError):
        await fixed_paths.turn_all(state)


async def _tell_that_nothing_is_served(state: State) -> None:
    """Tells the database that this daemon starts no job any more, so that `why` does not count on it."""
    with suppress(psycopg.Error, LostLinkError, TimeoutError):
        await state.claims.serve(state.served, state.assignment.unserved())


async def _say_what_is_left(state: State) -> None:
    """Logs for which attempts the daemon waits: at once, after each end of an attempt, and every DRAIN_SAY_SECONDS."""
    deadline = time.monotonic() + state.settings.drain_timeout
    attempts = state.attempts
    while attempts.running:
        attempts.freed.clear()
        now = time.monotonic()
        _log.info(
            "drain.waiting",
            running=len(attempts.running),
            at_most_seconds=round(deadline - now),
            hint="a second SIGTERM or Ctrl-C stops them and gives them back",
        )
        for running in list(attempts.running.values())[:SHOWN]:
            _log.info(
                "drain.attempt",
                job=running.attempt.jobid,
                dataid=running.attempt.dataid,
                attempt=running.attempt.attempt,
                since=_moment_ago(running.ran) or "not yet started",
                seconds=round(now - running.claimed, 1),
            )
        await anyio.sleep(DRAIN_LEAST_SECONDS)
        await attempts.freed.wait(DRAIN_SAY_SECONDS)


def _moment_ago(seconds: float | None) -> str | None:
    return None if seconds is None else (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


async def _until_empty_or_hurry(state: State) -> None:
    async with anyio.create_task_group() as group:

        async def hurry() -> None:
            await state.ending.hurried.wait()
            group.cancel_scope.cancel()

        group.start_soon(hurry)
        await _until_empty(state)
        group.cancel_scope.cancel()


async def _until_empty(state: State) -> None:
    while state.attempts.running or state.turns.is_claiming:
        state.attempts.emptied.clear()
        await state.attempts.emptied.wait()


async def _farewell(state: State) -> None:
    """Tells the database that this daemon has stopped, and closes the links."""
    with anyio.move_on_after(FAREWELL_SECONDS):
        try:
            if state.claims.incarnation != calls.NOBODY:
                # A service that was cancelled during a call has closed the connection.
                await state.claims.link.open()
                await state.claims.stop()
        except (psycopg.Error, LostLinkError, TimeoutError) as error:
            _log.warning("daemon.farewell_failed", error=str(error).strip() or "no answer")
    await state.claims.link.close()
    await state.link.close()
    if state.claims.incarnation != calls.NOBODY:
        _log.info("daemon.stopped", reason=state.ending.reason, untold=len(state.attempts.running))


def _exit_status(state: State) -> int:
    if state.ending.died is not None:
        _, error = state.ending.died
        return error.exit_code if isinstance(error, DataflowError) else EXIT["INTERNAL"]
    return EXIT["FAILED"] if state.assignment.once and state.results.failed_runs else EXIT["OK"]
