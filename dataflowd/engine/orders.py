"""Work orders: the database's half, and this host's half (dataflowd.flow.compose).

`take` asks for the orders of all attempts of one claim in one call, as soon as the claim is committed. The call is not part of
the claim's transaction: an order costs the database several times as much as the claim of its attempt, and the database would
compose it under the lock that every other daemon's claim waits for. The call has a connection of its own, so that the claiming
session can store results and claim again meanwhile. `ordered` then completes the order of one attempt and vets it; nothing
else on the daemon's side does. Whether an attempt still holds its claim can change later, and is asked when it is needed (`is_alive`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import psycopg

from dataflowd.database import answers, db
from dataflowd.database.session import Link, LostLinkError
from dataflowd.flow import agreement
from dataflowd.flow.compose import as_parameters, composed, readable, version_of
from dataflowd.model.attempt import HalfOrder
from dataflowd.model.endings import ClaimLostError
from dataflowd.model.errors import DatabaseUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from dataflowd.flow import Flow, Job
    from dataflowd.flow.compose import Version
    from dataflowd.flow.loaded import Declared
    from dataflowd.host.settings import Current
    from dataflowd.model.attempt import Attempt
    from dataflowd.model.work_order import Order

TRIES = 3
ORDER_SECONDS = 5.0  # all calls are short; on a dead connection an attempt must not wait for long
AGAIN_SECONDS = 1.0
TAKE_SECONDS = (
    60.0  # for all orders of one claim, if each is asked for alone; the attempts left are given back
)


@dataclass(frozen=True)
class Ordered:
    flow: Flow
    job: Job
    order: Order


class Orders:
    def __init__(self, current: Current) -> None:
        name = f"dataflowd {current.settings.effective_daemon_name} orders"
        self._current = current
        self._link = Link(current, name, seconds=ORDER_SECONDS, address=lambda: db.dsn(current.settings))
        self._lock = anyio.Lock()
        self._told: dict[str, Version] = {}

    async def take(self, attempts: Sequence[Attempt]) -> AsyncIterator[Attempt]:
        """The same attempts, each with the database's half of its order, or with why there is none."""
        deadline = anyio.current_time() + TAKE_SECONDS
        try:
            found = await self._halves(attempts)
        except Exception as error:  # noqa: BLE001 - `ordered` raises it, in the task of each attempt
            # The server answers, but not this: one order may be at fault, or all of them take too long.
            is_of_one = isinstance(error, psycopg.Error) or (
                isinstance(error, DatabaseUnreachableError) and self._link.is_up
            )
            found = {} if is_of_one and len(attempts) > 1 else _failed(attempts, error)
        for each in attempts:
            if not found and anyio.current_time() > deadline:
                late = f"the orders of {len(attempts)} attempts were not there after {TAKE_SECONDS:.0f} s"
                found = _failed(attempts, DatabaseUnreachableError(late, "`dataflowctl doctor`"))
            if found:
                yield replace(each, order=found[each.attempt])
            else:
                async for alone in self.take([each]):
                    yield alone

    async def _halves(self, attempts: Sequence[Attempt]) -> dict[int, HalfOrder]:
        named = {
            "attempts": [each.attempt for each in attempts],
            "tokens": [each.token for each in attempts],
            "jobids": [each.jobid for each in attempts],
        }
        rows = await self._call("work_orders", named)
        found = {number: HalfOrder(document, base, applied) for number, document, base, applied in rows}
        for each in attempts:
            if each.attempt not in found:
                raise answers.wrong("work_orders", f"says nothing of the attempt {each.attempt}")
        return found

    async def ordered(self, attempt: Attempt, declared: Declared) -> Ordered:
        """Returns the job as it was applied (for a job that was created like another: that other job), and the attempt's order, one
        half from the database, the other from the flow file. A flow file counts once it was applied, before the daemon reloads it.

        Raises NotFoundError, ClaimLostError, INVALID_CODE, INVALID_ORDER, DatabaseUnreachableError, and what `take` met.
        """
        half = attempt.order or HalfOrder(failure=RuntimeError("nobody has taken the order of this attempt"))
        if half.failure is not None:
            raise half.failure
        if half.document is None:
            raise ClaimLostError("the claim was lost before the job began")
        if not declared.is_known(attempt.jobid):
            declared.add_like(attempt.jobid, half.base)
        flow, job = declared.job(attempt.jobid)
        document = dict(half.document)
        own = document.pop("config_hash", None)  # of a job that was created like another
        # A person's script may stand for such a job: then the script is the job's own code, and not that of the other one.
        applied = half.applied if job.like is not None else own or half.applied
        with readable():
            flow, job = declared.as_applied(flow, job, applied)
            version = None if job.is_replaced else version_of(flow, job)
        if version is not None:
            await self.tell({job.like or attempt.jobid: version})
            if job.like is not None and applied != version.config_hash:
                # It follows from the configuration of the other job, which has changed by what was told.
                own = await self._config_of(attempt.jobid)
        if job.words:
            fence = {"attempt": attempt.attempt, "token": attempt.token}
            await self._call("add_words", fence | {"words": list(job.words)})
        config_hash = (
            None if version is None else _used(version, applied, own if job.like is not None else None)
        )
        if version is None or not _is_of_now(document.get("replay"), job, version.code.hash, config_hash):
            document.pop("replay", None)
        identity = {
            "attempt": attempt.attempt,
            "number": attempt.number,
            "jobid": attempt.jobid,
            "dataid": attempt.dataid,
            "tag": attempt.tag,
            "params": attempt.params,
            "code_hash": version and version.code.hash,
            "config_hash": config_hash,
        }
        order = composed(document, identity, flow, job, self._current.settings)
        if agreement.differences(order, job, declared.flows):
            with readable():
                await anyio.to_thread.run_sync(agreement.require, order, job, declared)
        return Ordered(flow, job, order)

    async def _config_of(self, jobid: str) -> str | None:
        [[applied]] = await self._call("applied_config", {"jobid": jobid})
        return str(applied) if applied is not None else None

    async def is_alive(self, attempt: Attempt) -> bool:
        """Whether the attempt still holds its claim. Waits for the answer while the database cannot be reached."""
        while True:
            try:
                [[found]] = await self._call("is_alive", {"attempt": attempt.attempt, "token": attempt.token})
            except DatabaseUnreachableError:
                await anyio.sleep(AGAIN_SECONDS)
            else:
                return bool(found)

    async def close(self) -> None:
        await self._link.close()

    async def tell(self, versions: Mapping[str, Version]) -> None:
        """Tells the database the versions of code that it does not know yet. Chunks that other code has made are stale from now on."""
        new = {jobid: version for jobid, version in versions.items() if self._told.get(jobid) != version}
        if new:
            await self._call("code_versions", as_parameters(new))
            self._told |= new

    async def _call(self, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Calls the database, up to TRIES times: all calls here may be repeated. Raises DatabaseUnreachableError after the last try."""
        reason = ""
        for left in reversed(range(TRIES)):
            try:
                async with self._lock:
                    await self._link.open()
                    return await self._link.call(name, parameters)
            except (LostLinkError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            except psycopg.Error as error:
                if db.is_final(error):
                    raise
                reason = db.said(error)
                if left:
                    await anyio.sleep(AGAIN_SECONDS)
        raise DatabaseUnreachableError(f"the database does not answer: {reason}", "`dataflowctl doctor`")


def _failed(attempts: Sequence[Attempt], error: Exception) -> dict[int, HalfOrder]:
    return {each.attempt: HalfOrder(failure=error) for each in attempts}


def _used(version: Version, applied: str | None, own: str | None) -> str:
    """Returns the hash of the configuration that an attempt runs with. If this host does not have the flow file that was applied, the
    hash is neither that of the applied configuration nor that of the host's: parameters and options come from the database, the rest
    from this host. A chunk that is made so is stale.

    `own`: the hash of a job that was created like another.
    """
    if applied in {None, version.config_hash}:
        return own or version.config_hash
    return hashlib.sha256(f"{own or version.config_hash} {applied}".encode()).hexdigest()


def _is_of_now(replay: Any, job: Job, code_hash: str, config_hash: str | None) -> bool:
    """Whether repaired records may run alone: the published rows were made by the same code, and this host's flow file says rowwise."""
    made = (code_hash, config_hash)
    return bool(job.rowwise and replay and (replay.get("code_hash"), replay.get("config_hash")) == made)
