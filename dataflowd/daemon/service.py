"""The daemon: one task group of services around one state, from registration to farewell.

Every service is a module with `async def run`. None is expected to end; one that does, or raises, stops the daemon,
which then says why and exits with that error's status. Attempts live in a task group around the services', so that
they can end, or be stopped, while the services still tell the database.

Stopping: nothing more is claimed; attempts may end for `drain_timeout`; then they are stopped and given back, which
spends no try; the last results are told; the daemon says farewell. A second signal skips the waiting. Whatever
the database does, the end comes: what could not be told is rescued by others.
"""

from __future__ import annotations

import signal
import socket
import time
from contextlib import suppress
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
from dataflowd.daemon.metrics import Metrics
from dataflowd.daemon.state import State
from dataflowd.database import calls, db
from dataflowd.database.session import Link, LostLinkError
from dataflowd.engine import LookingEngine, SizedEngine, WarmEngine
from dataflowd.flow import FlowMistakesError
from dataflowd.host import log
from dataflowd.model.errors import EXIT, DatabaseUnreachableError, DataflowError, NotAllowedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from dataflowd.daemon.state import Wanted
    from dataflowd.engine import Engine
    from dataflowd.host.settings import Current
    from dataflowd.model.attempt import Attempt, Result

STATEMENT_SHARE = 1 / 4  # of the lease: a call that takes longer leaves no time to react
DRAIN_LEAST_SECONDS = 1.0
DRAIN_SAY_SECONDS = 30.0
STOP_SECONDS = 30.0  # for stopped attempts to be gone and told
FAREWELL_SECONDS = 5.0
SHOWN = 10
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_log = log.logger(__name__)


class NameTakenError(NotAllowedError):
    """Another daemon bears this name."""


async def run(  # noqa: PLR0913 - all that one daemon is told
    current: Current,
    engine: Engine,
    *,
    once: bool = False,
    patience: float = 0.0,
    reload: Callable[[], None] | None = None,
    serves: Callable[[], Sequence[str] | None] = lambda: None,
    unserved: Callable[[], Mapping[str, str]] = dict,
    has_fixed_paths: Callable[[str], bool] = lambda _dataset: False,
    wanted: Wanted | None = None,
    told: Callable[[Attempt, Result], None] | None = None,
) -> int:
    """Runs until it is told to stop, or with `once` until nothing is ready; returns the exit status.

    `patience`: for how many seconds in all `once` waits for retries that are due by then.
    `serves` names the jobs whose code this host has; others are left to other hosts. None: any. `unserved` says of other jobs
    of its flow files why it cannot run them, `has_fixed_paths` says it of a dataset. `wanted`: what a person wants to be run,
    and nothing else; `told` then hears how it ended.
    """
    name = current.settings.effective_daemon_name
    with log.context(daemon=name):
        state = _state(current, name, engine, once=once)
        state.serves, state.unserved, state.wanted, state.told = serves, unserved, wanted, told or state.told
        state.has_fixed_paths = has_fixed_paths
        state.patience = patience
        try:
            await _register(state)
            async with anyio.create_task_group() as state.tasks, anyio.create_task_group() as services:
                # Before it says that it has started: who hears that may stop it at once.
                with anyio.open_signal_receiver(*SIGNALS) as received:
                    services.start_soon(_watched, state, "signals", lambda: _signals(state, received, reload))
                    await _serve(state, services)
                    services.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _farewell(state)
        if state.refusal is not None:
            raise state.refusal
        return _exit_status(state)


def _state(current: Current, name: str, engine: Engine, *, once: bool) -> State:
    def address() -> str:
        return db.dsn(current.settings, lambda line: _log.info("embedded.created", detail=line))

    def claims_lost() -> None:
        state.lease.set()

    def link_lost() -> None:
        state.control.set()

    settings = current.settings
    seconds = min(float(settings.statement_timeout), settings.lease * STATEMENT_SHARE)
    claims = Link(current, f"dataflowd {name}", seconds=seconds, address=address, on_lost=claims_lost)
    link = Link(
        current,
        f"dataflowd {name} services",
        seconds=settings.statement_timeout,
        address=address,
        on_lost=link_lost,
    )
    state = State(
        current=current,
        name=name,
        hostname=socket.gethostname(),
        engine=engine,
        claims=calls.Claims(claims, name),
        link=link,
        metrics=Metrics(),
        once=once,
    )
    if isinstance(engine, WarmEngine):
        engine.on_runner = lambda kind: state.metrics.runner_starts.labels(kind).inc()
        engine.on_wait = state.wait
    if isinstance(engine, LookingEngine):
        engine.on_found = state.find
    if isinstance(engine, SizedEngine):
        engine.on_room = state.work.set
    return state


async def _register(state: State) -> None:
    """The first contact may fail, and then says so at once: nothing runs yet that would have to be kept."""
    try:
        await leases.start(state)
        await control.read(state)
        if state.once:
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


async def _serve(state: State, services: anyio.abc.TaskGroup) -> None:
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
    start("scheduler", lambda: scheduler.run(state))
    start("systemd", lambda: systemd.run(state))
    if state.settings.http_port and not state.once:
        start("http", lambda: health.run(state))
    _log.info("daemon.started", limit=state.limit, paused=state.paused)
    systemd.notify(READY=1, STATUS=systemd.status(state))
    await state.shutdown.wait()
    systemd.notify(STOPPING=1, STATUS=f"stopping: {state.shutdown_reason}")
    _log.info("daemon.stopping", reason=state.shutdown_reason, running=len(state.running))
    await _drain(state)


async def _watched(state: State, name: str, service: Callable[[], Awaitable[None]]) -> None:
    try:
        await service()
        raise RuntimeError(f"the service {name} has ended")  # noqa: TRY301 - an end is as bad as an error
    except Exception as raised:  # noqa: BLE001 - whatever it is, the daemon stops in order
        error = _first(raised)
        if isinstance(error, DataflowError):
            _log.error("service.died", service=name, error=error.message, remedy=error.remedy)
        else:
            _log.exception("service.died", service=name)
        state.died = state.died or (name, error)
        state.hurry.set()
        state.stop(f"the service {name} died: {getattr(error, 'message', error)}")


def _first(error: Exception) -> Exception:
    """What went wrong first, of a service that is a task group itself."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def _signals(
    state: State, received: AsyncIterator[signal.Signals], reload: Callable[[], None] | None
) -> None:
    async for number in received:
        if number == signal.SIGHUP:
            await _reload(state, reload)
        elif state.shutdown.is_set():
            _log.info("drain.hurried", signal=signal.Signals(number).name, running=len(state.running))
            state.hurry.set()
        else:
            state.stop(f"{signal.Signals(number).name} was received")


async def _reload(state: State, reload: Callable[[], None] | None) -> None:
    systemd.notify_reloading()
    try:
        if reload is not None:
            reload()
        await state.engine.reload()
        state.is_serving_told = False
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
    """What is wrong and what to do, a line of the log for each mistake of a flow file."""
    if isinstance(error, FlowMistakesError):
        return [(f"{error.path}:{each.line}: {each.what}", each.remedy) for each in error.mistakes]
    return [(error.message, error.remedy)]


async def _drain(state: State) -> None:
    state.draining = True
    state.tasks.start_soon(_tell_that_nothing_is_served, state)
    # What a claim brings that is on its way has to be stopped and given back as well.
    with anyio.move_on_after(STOP_SECONDS):
        while state.claiming:
            state.emptied.clear()
            await state.emptied.wait()
    with anyio.move_on_after(state.settings.drain_timeout):
        async with anyio.create_task_group() as group:
            group.start_soon(_say_what_is_left, state)
            await _until_empty_or_hurry(state)
            group.cancel_scope.cancel()
    pool.stop_all(state, f"the daemon stopped: {state.shutdown_reason}")
    # Without the finisher nothing can be told any more: others will find out.
    if state.died is None or state.died[0] != "finisher":
        with anyio.move_on_after(STOP_SECONDS):
            await _until_empty(state)
    with anyio.move_on_after(FAREWELL_SECONDS), suppress(psycopg.Error, LostLinkError):
        await fixed_paths.turn_all(state)


async def _tell_that_nothing_is_served(state: State) -> None:
    """So that nobody who asks takes this daemon for one that would start a run."""
    with suppress(psycopg.Error, LostLinkError, TimeoutError):
        await state.claims.serve(state.served, state.unserved())


async def _say_what_is_left(state: State) -> None:
    """At once, when one has ended, and now and then: whoever waits for us wants to know for what."""
    deadline = time.monotonic() + state.settings.drain_timeout
    while state.running:
        state.freed.clear()
        now = time.monotonic()
        _log.info(
            "drain.waiting",
            running=len(state.running),
            at_most_seconds=round(deadline - now),
            hint="a second SIGTERM or Ctrl-C stops them and gives them back",
        )
        for running in list(state.running.values())[:SHOWN]:
            _log.info(
                "drain.attempt",
                job=running.attempt.jobid,
                dataid=running.attempt.dataid,
                attempt=running.attempt.attempt,
                since=running.started or "not yet started",
                seconds=round(now - running.claimed, 1),
            )
        await anyio.sleep(DRAIN_LEAST_SECONDS)
        await state.freed.wait(DRAIN_SAY_SECONDS)


async def _until_empty_or_hurry(state: State) -> None:
    async with anyio.create_task_group() as group:

        async def hurry() -> None:
            await state.hurry.wait()
            group.cancel_scope.cancel()

        group.start_soon(hurry)
        await _until_empty(state)
        group.cancel_scope.cancel()


async def _until_empty(state: State) -> None:
    while state.running or state.claiming:
        state.emptied.clear()
        await state.emptied.wait()


async def _farewell(state: State) -> None:
    """Nothing runs any more; what the database was not told, others will find out."""
    pool.stop_all(state, "the daemon stopped")
    with anyio.move_on_after(STOP_SECONDS):
        await state.engine.close()
    with anyio.move_on_after(FAREWELL_SECONDS):
        try:
            if state.claims.incarnation != calls.NOBODY:
                # A service that was cancelled in the middle of a call has taken the connection along.
                await state.claims.link.open()
                await state.claims.stop()
        except (psycopg.Error, LostLinkError, TimeoutError) as error:
            _log.warning("daemon.farewell_failed", error=str(error).strip() or "no answer")
    await state.claims.link.close()
    await state.link.close()
    if state.claims.incarnation != calls.NOBODY:
        _log.info("daemon.stopped", reason=state.shutdown_reason, untold=len(state.running))


def _exit_status(state: State) -> int:
    if state.died is not None:
        _, error = state.died
        return error.exit_code if isinstance(error, DataflowError) else EXIT["INTERNAL"]
    return EXIT["FAILED"] if state.once and state.failed_runs else EXIT["OK"]
