"""Tells the database how attempts ended, many in one transaction.

Results gather while the previous batch is being stored, so a busy daemon sends large batches and an idle one sends a
result at once. For each the database answers: accepted; fenced, then the attempt was no longer ours and what it made is
dropped; or busy, somebody has its rows locked, and it is offered again a little later. A batch that is refused as a
whole is sent one by one, so that one bad result cannot hold back others. Only a result that can never be stored is told
as a failure. Whatever else the server says (it is read-only, its disk is full, its schema is being upgraded), the result
is kept and offered again, as it is while the connection is lost.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

import psycopg

from dataflowd.database import db
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.host import log
from dataflowd.model.endings import failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.daemon.state import Offer, State
    from dataflowd.database.calls import Verdict
    from dataflowd.model.attempt import Result

BATCH = 256  # larger ones cost more for each result
BUSY_SECONDS = 0.02
BUSY_MOST_SECONDS = 2.0
ERROR_MOST_SECONDS = 60.0
# The state of the server, and not of the results, is at fault. These are over soon: a deadlock, a lock, a timeout.
PASSING = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)
# These may last: connections, a read-only server, resources, an operator's intervention, the server's own disks.
LASTING_CLASSES = ("08", "25", "53", "57", "58")

_log = log.logger(__name__)
_level = logging.getLogger(__name__)


async def run(state: State) -> None:
    size = BATCH
    while True:
        state.results.clear()
        now = time.monotonic()
        batch = [offer for offer in state.offers if offer.due <= now][:size]
        if not batch:
            await state.results.wait(_until_due(state, now))
            continue
        if not state.claims.link.is_up:
            await state.results.wait(state.settings.poll)
            continue
        size = BATCH if await _tell(state, batch) else max(1, len(batch) // 4)


def _until_due(state: State, now: float) -> float | None:
    first = min((offer.due for offer in state.offers), default=None)
    return None if first is None else max(0.0, first - now)


async def _tell(state: State, batch: Sequence[Offer]) -> bool:
    """Stores a batch; False: it was too much at once, or the moment was bad."""
    began = time.perf_counter()
    try:
        verdicts = await state.claims.finish([offer.result for offer in batch])
    except LostLinkError:
        return True
    except psycopg.Error as error:
        return await _not_taken(state, batch, error)
    state.metrics.finish_seconds.observe(time.perf_counter() - began)
    _settle(state, batch, verdicts)
    return True


async def _not_taken(state: State, batch: Sequence[Offer], error: psycopg.Error) -> bool:
    """The same as `_tell`."""
    is_passing = isinstance(error, PASSING)
    if is_passing or (error.sqlstate or "08").startswith(LASTING_CLASSES):
        _log.warning("finish.postponed", results=len(batch), error=db.said(error), sqlstate=error.sqlstate)
        _postpone(batch, BUSY_MOST_SECONDS if is_passing else ERROR_MOST_SECONDS)
        return False
    if len(batch) > 1:
        for offer in batch:
            await _tell(state, [offer])
    elif db.is_final(error):
        _refused(batch[0], error)
    else:
        _log.error("finish.postponed", results=1, error=db.said(error), sqlstate=error.sqlstate)
        _postpone(batch, ERROR_MOST_SECONDS)
    return True


def _settle(state: State, batch: Sequence[Offer], verdicts: dict[int, Verdict]) -> None:
    settled: set[int] = set()
    outcomes: Counter[tuple[str, str]] = Counter()
    for offer in batch:
        verdict = verdicts[offer.result.attempt]
        if verdict == "busy":
            _postpone([offer], BUSY_MOST_SECONDS)
            continue
        settled.add(id(offer))
        running = state.forget(offer.result.attempt)
        if running is None:
            continue
        outcomes[running.attempt.jobid, offer.result.outcome if verdict == "accepted" else "FENCED"] += 1
        if verdict == "accepted":
            _remember(state, (running.attempt.jobid, running.attempt.dataid), offer.result)
            state.told(running.attempt, offer.result)
            _let_turn(state, running.attempt.dataid, offer.result)
        _say(running.attempt.jobid, running.attempt.dataid, offer.result, verdict)
    state.offers = [offer for offer in state.offers if id(offer) not in settled]
    state.metrics.ended(outcomes)
    if settled:
        state.work.set()


def _remember(state: State, run_: tuple[str, str], result: Result) -> None:
    """What `--once` reports: runs whose last attempt failed."""
    if result.outcome == "FAILED":
        state.failed_runs.add(run_)
    else:
        state.failed_runs.discard(run_)


def _let_turn(state: State, dataid: str, result: Result) -> None:
    for dataset in result.outputs:
        if state.has_fixed_paths(dataset):
            state.to_turn.add((dataset, dataid))
            state.turn.set()


def _say(jobid: str, dataid: str, result: Result, verdict: Verdict) -> None:
    """A failure is always told; an end that cost no process is told to those who debug."""
    is_worth_it = result.usage or result.outcome == "RETURNED"
    level = logging.WARNING if result.outcome == "FAILED" else logging.INFO if is_worth_it else logging.DEBUG
    # Asked first, because an instant engine ends thousands a second.
    if not _level.isEnabledFor(level):
        return
    _log.log(
        level,
        "attempt.finished" if verdict == "accepted" else "attempt.fenced",
        job=jobid,
        dataid=dataid,
        attempt=result.attempt,
        outcome=result.outcome,
        **{key: value for key in ("code", "error") if (value := getattr(result, key))},
    )


def _postpone(offers: Sequence[Offer], most: float) -> None:
    now = time.monotonic()
    for offer in offers:
        offer.due = now + backoff(offer.refusals, first=BUSY_SECONDS, most=most)
        offer.refusals += 1


def _refused(offer: Offer, error: psycopg.Error) -> None:
    """The database can never store this result: at least it is told that the attempt has failed."""
    message = f"the result could not be stored: {db.said(error)}"
    _log.error("finish.refused", attempt=offer.result.attempt, error=message, sqlstate=error.sqlstate)
    if offer.whole:
        offer.whole = False
        offer.result = failed(offer.result, "RESULT_REFUSED", message)
    else:
        _postpone([offer], ERROR_MOST_SECONDS)
