"""Tells the database how attempts ended, many in one transaction.

Results gather while the database stores the previous batch, so a busy daemon sends large batches and an idle one sends
each result at once. The database answers for each result:
- accepted;
- fenced: the attempt was no longer ours, and nobody will read what it made;
- busy: another transaction has locked the attempt's rows. The finisher offers the result again a little later.
If the database refuses a batch as a whole, the finisher sends its results one by one, so that one bad result cannot hold
back the others. If the database can never store a result, the finisher reports the attempt as failed. After any other error
(the server is read-only, its disk is full, its schema is being upgraded, the connection is lost) the finisher keeps the
result and offers it again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from dataflowd.daemon.wake import Wake
from dataflowd.database import db
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.host import log
from dataflowd.model.endings import failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.daemon.state import State
    from dataflowd.database.calls import Verdict
    from dataflowd.model.attempt import Result

BATCH = 256  # in a larger batch each result costs more
BUSY_SECONDS = 0.02
BUSY_MOST_SECONDS = 2.0
ERROR_MOST_SECONDS = 60.0
# Errors that say nothing about the results. These pass soon: a deadlock, a lock, a timeout.
PASSING = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)
# These may last: connections, a read-only server, resources, an operator's intervention, the server's disks.
LASTING_CLASSES = ("08", "25", "53", "57", "58")

_log = log.logger(__name__)
_level = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Offer:
    """A result that the database has not stored yet."""

    result: Result
    refusals: int = 0
    due: float = 0.0  # monotonic: when the finisher sends it again
    whole: bool = True  # False: the database refused the details, so that only the failure is told


@dataclass(eq=False)
class Results:
    offers: list[Offer] = field(default_factory=list)
    failed_runs: set[tuple[str, str]] = field(default_factory=set)  # runs whose last attempt failed
    wake: Wake = field(default_factory=Wake)  # there are results to send


def offer(state: State, result: Result) -> None:
    """Hands a result to the finisher. From now on nothing stops the attempt: it has ended."""
    state.attempts.end(result.attempt)
    state.results.offers.append(Offer(result))
    state.results.wake.set()


async def run(state: State) -> None:
    size = BATCH
    while True:
        state.results.wake.clear()
        now = time.monotonic()
        batch = [offer for offer in state.results.offers if offer.due <= now][:size]
        if not batch:
            await state.results.wake.wait(_until_due(state, now))
            continue
        if not state.claims.link.is_up:
            await state.results.wake.wait(state.settings.poll)
            continue
        size = BATCH if await _tell(state, batch) else max(1, len(batch) // 4)


def _until_due(state: State, now: float) -> float | None:
    first = min((offer.due for offer in state.results.offers), default=None)
    return None if first is None else max(0.0, first - now)


async def _tell(state: State, batch: Sequence[Offer]) -> bool:
    """Stores a batch. Returns False when the next batch should be smaller."""
    began = time.perf_counter()
    try:
        running = state.attempts.running
        verdicts = await state.claims.finish(
            [
                (offer.result, known.ran if (known := running.get(offer.result.attempt)) else None)
                for offer in batch
            ]
        )
    except LostLinkError:
        return True
    except psycopg.Error as error:
        return await _not_taken(state, batch, error)
    state.metrics.finish_seconds.observe(time.perf_counter() - began)
    _settle(state, batch, verdicts)
    return True


async def _not_taken(state: State, batch: Sequence[Offer], error: psycopg.Error) -> bool:
    """Decides what happens to a batch that the database refused; returns the same as `_tell`."""
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
        running = state.attempts.forget(offer.result.attempt)
        if running is None:
            continue
        outcomes[running.attempt.jobid, offer.result.outcome if verdict == "accepted" else "FENCED"] += 1
        if verdict == "accepted":
            _remember(state, (running.attempt.jobid, running.attempt.dataid), offer.result)
            state.assignment.told(running.attempt, offer.result)
            _follow_fixed_paths(state, running.attempt.dataid, offer.result)
        _say(running.attempt.jobid, running.attempt.dataid, offer.result, verdict)
    state.results.offers = [offer for offer in state.results.offers if id(offer) not in settled]
    state.metrics.ended(outcomes)
    if settled:
        state.turns.wake.set()


def _remember(state: State, run_: tuple[str, str], result: Result) -> None:
    """Keeps the runs whose last attempt failed: the exit status of `--once` depends on them."""
    if result.outcome == "FAILED":
        state.results.failed_runs.add(run_)
    else:
        state.results.failed_runs.discard(run_)


def _follow_fixed_paths(state: State, dataid: str, result: Result) -> None:
    for dataset in result.outputs:
        if state.assignment.has_fixed_paths(dataset):
            state.paths.add(dataset, dataid)


def _say(jobid: str, dataid: str, result: Result, verdict: Verdict) -> None:
    """Logs every failure as a warning, and an end that used no process only for those who debug."""
    is_worth_it = result.usage or result.outcome == "RETURNED"
    level = logging.WARNING if result.outcome == "FAILED" else logging.INFO if is_worth_it else logging.DEBUG
    # The level is asked for first, because an instant engine ends thousands of attempts a second.
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
    """The database can never store this result, so the finisher tells it only that the attempt has failed."""
    message = f"the result could not be stored: {db.said(error)}"
    _log.error("finish.refused", attempt=offer.result.attempt, error=message, sqlstate=error.sqlstate)
    if offer.whole:
        offer.whole = False
        offer.result = failed(offer.result, "RESULT_REFUSED", message)
    else:
        _postpone([offer], ERROR_MOST_SECONDS)
