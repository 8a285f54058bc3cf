"""Executes claimed attempts, each in a task of its own, and makes a Result of every way of ending.

The claim decides how many attempts there may be; the pool starts every claimed attempt at once. If the engine needs work
orders, the pool lets it take those of the whole claim first, in one call. An attempt ends by itself,
by its time limit (FAILED, TIMEOUT), or because its scope is cancelled (RETURNED): an operator cancelled it, the daemon stops,
or the daemon could not renew its lease in time. The engine stops the work before it lets the cancellation through, so the
result may say that nothing runs any more. An engine that answers at once gets no task for each attempt: thousands of such
attempts end in one turn.

`Attempts.running` holds every attempt that the database counts as ours: from the claim until `finish` has accepted its
result, or has said that it is fenced. The limit bounds its length.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import psycopg

from dataflowd.daemon import finisher
from dataflowd.daemon.wake import Wake
from dataflowd.database import calls
from dataflowd.database.session import LostLinkError
from dataflowd.engine import InstantEngine, OrderedEngine
from dataflowd.host import log
from dataflowd.model.connection_changes import describe_changes
from dataflowd.model.endings import failed, returned
from dataflowd.model.errors import InvalidCredentialError
from dataflowd.storage import evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskGroup

    from dataflowd.daemon.state import State
    from dataflowd.model.attempt import Attempt, Result

START_SECONDS = 3600.0  # the time that an attempt with a time limit may take to start

_log = log.logger(__name__)


@dataclass(slots=True, eq=False)
class Running:
    attempt: Attempt
    scope: anyio.CancelScope | None = None
    claimed: float = field(default_factory=time.monotonic)
    began: float | None = None  # monotonic: when the job's code began; see dataflowd.daemon.attempt_watch
    found: dict[str, Any] | None = None  # before the job's code began; see dataflowd.storage.evidence
    waits: int | None = None  # for one of so many Spark applications
    waits_since: float = 0.0
    stop_reason: str | None = None
    ended: bool = False  # the finisher has its result
    # attempt_watch alone writes these two: what it has told the database.
    start_told: bool = False
    waits_told: int | None = None

    @property
    def ran(self) -> float | None:
        """How many seconds ago the job's code began. Only the database makes a moment of it: the clocks of hosts differ."""
        return None if self.began is None else time.monotonic() - self.began

    def stop(self, reason: str) -> None:
        """Cancels the attempt's task. Does nothing for an attempt that has ended, or that was stopped before."""
        if not self.ended and self.stop_reason is None:
            self.stop_reason = reason
            if self.scope is not None:
                self.scope.cancel()


@dataclass(eq=False)
class Attempts:
    running: dict[int, Running] = field(default_factory=dict)
    freed: Wake = field(default_factory=Wake)  # an attempt has ended
    emptied: Wake = field(default_factory=Wake)  # nothing runs any more, or a claim has ended

    def wait(self, attempt: int, applications: int | None) -> None:
        """Notes that an attempt waits for one of so many Spark applications. None: it waits no longer."""
        running = self.running.get(attempt)
        if running is not None and running.waits != applications:
            running.waits, running.waits_since = applications, time.monotonic()

    def find(self, attempt: int, found: dict[str, Any]) -> None:
        """Notes what the host found before the job's code began. The first report counts."""
        running = self.running.get(attempt)
        if running is not None and running.found is None:
            running.found = evidence.bounded(found)

    def end(self, attempt: int) -> None:
        """The attempt has a result, which the database does not know yet. The attempt keeps its place."""
        running = self.running.get(attempt)
        if running is not None:
            running.ended = True

    def forget(self, attempt: int) -> Running | None:
        """The database has ended the attempt: its place is free."""
        running = self.running.pop(attempt, None)
        self.freed.set()
        if not self.running:
            self.emptied.set()
        return running

    def stop_all(self, reason: str) -> None:
        for running in list(self.running.values()):
            running.stop(reason)


def start(state: State, tasks: TaskGroup, attempts: Sequence[Attempt]) -> None:
    now = time.monotonic()
    instant = state.engine if isinstance(state.engine, InstantEngine) else None
    to_run = []
    for attempt in attempts:
        running = Running(attempt, claimed=now)
        state.attempts.running[attempt.attempt] = running
        result = instant.run_now(attempt) if instant else None
        if result is None:
            to_run.append(running)
        else:
            running.began = now
            state.watch.measure(attempt.attempt, 0.0)
            finisher.offer(state, result)
    if to_run and isinstance(state.engine, OrderedEngine):
        tasks.start_soon(_run_ordered, state, tasks, state.engine, to_run)
        return
    for running in to_run:
        tasks.start_soon(_run, state, running)


async def _run_ordered(
    state: State, tasks: TaskGroup, engine: OrderedEngine, claimed: Sequence[Running]
) -> None:
    """Takes the orders of one claim, and runs each attempt that has got its own.

    An attempt that is stopped meanwhile cancels the call. The others then ask again, which does no harm.
    """
    waiting = {running.attempt.attempt: running for running in claimed}
    while asking := [running for running in waiting.values() if running.stop_reason is None]:
        with anyio.CancelScope() as scope:
            for running in asking:
                running.scope = scope
            async for attempt in engine.take_orders([running.attempt for running in asking]):
                running = waiting.pop(attempt.attempt)
                running.attempt, running.scope = attempt, None
                tasks.start_soon(_run, state, running)
    for running in waiting.values():
        tasks.start_soon(_run, state, running)


async def _run(state: State, running: Running) -> None:
    attempt = running.attempt
    with log.context(job=attempt.jobid, dataid=attempt.dataid, attempt=attempt.attempt):
        result = await _result(state, running)
        if running.found is not None:
            result = replace(result, found=running.found)
        if result.code == InvalidCredentialError.code:
            result = await _with_changes(state, attempt.jobid, result)
        finisher.offer(state, result)


async def _with_changes(state: State, jobid: str, result: Result) -> Result:
    """Adds to the error what somebody changed in the connections: only the daemon can ask the database for it."""
    changes = ""
    with anyio.CancelScope(shield=True), suppress(psycopg.Error, LostLinkError, TimeoutError):
        changes = describe_changes(await calls.connection_changes(state.link, jobid))
    return replace(result, error=f"{result.error}\n  {changes}") if changes else result


async def _result(state: State, running: Running) -> Result:
    attempt = running.attempt

    def on_start() -> None:
        if attempt.timeout is not None:
            limit.deadline = anyio.current_time() + attempt.timeout
        running.began = time.monotonic()
        seconds = running.began - running.claimed
        state.metrics.start_seconds.observe(seconds)
        state.watch.measure(attempt.attempt, seconds)
        # The task that reads the runner's socket calls this. Its log context is not this attempt's, so the keys are given.
        _log.info(
            "attempt.started",
            job=attempt.jobid,
            dataid=attempt.dataid,
            attempt=attempt.attempt,
            number=attempt.number,
        )

    # The time limit is for the job's own code. Until the code begins, START_SECONDS for the place and for Spark come on top.
    most = None if attempt.timeout is None else attempt.timeout + START_SECONDS
    with anyio.CancelScope() as running.scope, anyio.move_on_after(most) as limit:
        # Somebody may have stopped the attempt between its claim and now, when it had no scope.
        if running.stop_reason is not None:
            return returned(attempt, running.stop_reason)
        try:
            return await state.engine.run(attempt, on_start)
        except Exception as error:  # noqa: BLE001 - a fault of the engine has to end the attempt, and not the daemon
            _log.exception("engine.failed")
            return failed(attempt, "ENGINE_FAILED", f"{type(error).__name__}: {error}")
    if limit.cancelled_caught:
        said = (
            f"it ran longer than {attempt.timeout:g} s"
            if running.began is not None
            else f"it had not begun after {most:g} s"
        )
        return failed(attempt, "TIMEOUT", f"{said} and was stopped")
    return returned(attempt, running.stop_reason or "stopped")
