"""Executes claimed attempts, each in a task of its own, and turns every way of ending into a Result.

How many there may be is the claim's business: whatever was claimed is started at once. An attempt ends by itself,
by its time limit (FAILED, TIMEOUT), or because its scope is cancelled (RETURNED): the operator cancelled it, the
daemon stops, or the claim could not be proven in time. The engine has stopped the work by then, so that the result
may say so. An engine that needs no waiting is spared the task: thousands of such attempts end in one turn.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import psycopg

from dataflowd.daemon.state import Running
from dataflowd.database import calls
from dataflowd.database.session import LostLinkError
from dataflowd.engine import InstantEngine
from dataflowd.host import log
from dataflowd.model.connection_changes import told
from dataflowd.model.endings import failed, returned
from dataflowd.model.errors import InvalidCredentialError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.daemon.state import State
    from dataflowd.model.attempt import Attempt, Result

START_SECONDS = 3600.0  # that the start of an attempt with a time limit may take

_log = log.logger(__name__)


def start(state: State, attempts: Sequence[Attempt]) -> None:
    now = time.monotonic()
    instant = state.engine if isinstance(state.engine, InstantEngine) else None
    for attempt in attempts:
        running = Running(attempt, claimed=now)
        state.running[attempt.attempt] = running
        result = instant.run_now(attempt) if instant else None
        if result is None:
            state.tasks.start_soon(_run, state, running)
        else:
            state.begun.append((attempt.attempt, 0.0))
            state.offer(result)


def stop_all(state: State, reason: str) -> None:
    for running in list(state.running.values()):
        running.stop(reason)


async def _run(state: State, running: Running) -> None:
    attempt = running.attempt
    with log.context(job=attempt.jobid, dataid=attempt.dataid, attempt=attempt.attempt):
        result = await _result(state, running)
        if running.started and result.started is None:
            result = replace(result, started=running.started)
        if running.found is not None:
            result = replace(result, found=running.found)
        if result.code == InvalidCredentialError.code:
            result = await _with_changes(state, attempt.jobid, result)
        state.offer(result)


async def _with_changes(state: State, jobid: str, result: Result) -> Result:
    """Whoever reads that a password does not open learns what was changed; the process that opens it cannot know."""
    changes = ""
    with anyio.CancelScope(shield=True), suppress(psycopg.Error, LostLinkError, TimeoutError):
        changes = told(await calls.connection_changes(state.link, jobid))
    return replace(result, error=f"{result.error}\n  {changes}") if changes else result


async def _result(state: State, running: Running) -> Result:
    attempt = running.attempt

    def on_start() -> None:
        if attempt.timeout is not None:
            limit.deadline = anyio.current_time() + attempt.timeout
        running.started = datetime.now(UTC).isoformat()
        running.started_at = time.monotonic()
        seconds = running.started_at - running.claimed
        state.metrics.start_seconds.observe(seconds)
        state.begun.append((attempt.attempt, seconds))
        # Said by whoever hears the runner, which may serve several attempts.
        _log.info(
            "attempt.started",
            job=attempt.jobid,
            dataid=attempt.dataid,
            attempt=attempt.attempt,
            number=attempt.number,
        )

    # The time limit is of the job's own code: that it waited for a place, or for Spark, is no fault of the job.
    most = None if attempt.timeout is None else attempt.timeout + START_SECONDS
    with anyio.CancelScope() as running.scope, anyio.move_on_after(most) as limit:
        # It may have been stopped between its claim and now.
        if running.stop_reason is not None:
            return returned(attempt, running.stop_reason)
        try:
            return await state.engine.run(attempt, on_start)
        except Exception as error:  # noqa: BLE001 - whatever an engine does wrong, the attempt has to end
            _log.exception("engine.failed")
            return failed(attempt, "ENGINE_FAILED", f"{type(error).__name__}: {error}")
    if limit.cancelled_caught:
        said = (
            f"it ran longer than {attempt.timeout:g} s"
            if running.started
            else f"it had not begun after {most:g} s"
        )
        return failed(attempt, "TIMEOUT", f"{said} and was stopped")
    return returned(attempt, running.stop_reason or "stopped")
