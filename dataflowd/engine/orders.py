"""The engine's calls of the database: the orders of attempts, over a connection of its own that is opened when it is first needed.

Attempts that were claimed together get their orders in one call. Whether an attempt still holds its claim can change later, and
is asked when it is needed (`is_alive`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg

from dataflowd.database import answers, db
from dataflowd.database.answers import CLAIM_AT_MOST
from dataflowd.database.session import Link, LostLinkError
from dataflowd.flow import agreement
from dataflowd.flow.compose import as_parameters, composed, readable, version_of
from dataflowd.model.endings import ClaimLostError
from dataflowd.model.errors import DatabaseUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataflowd.flow import Flow, Job
    from dataflowd.flow.compose import Version
    from dataflowd.flow.loaded import Declared
    from dataflowd.host.settings import Current
    from dataflowd.model.attempt import Attempt
    from dataflowd.model.work_order import Order

TRIES = 3
ORDER_SECONDS = 5.0  # all calls are short; on a dead connection an attempt must not wait for long
AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Ordered:
    flow: Flow
    job: Job
    order: Order


@dataclass(frozen=True)
class Taken:
    document: dict[str, Any] | None  # None: the attempt is fenced
    applied: str | None  # the configuration of the job that was applied last


@dataclass(eq=False)
class _Asked:
    attempt: Attempt
    base: str
    taken: Taken | None = None
    failure: DatabaseUnreachableError | None = None


class Orders:
    def __init__(self, current: Current) -> None:
        name = f"dataflowd {current.settings.effective_daemon_name} orders"
        self._current = current
        self._link = Link(current, name, seconds=ORDER_SECONDS, address=lambda: db.dsn(current.settings))
        self._lock = anyio.Lock()
        self._told: dict[str, Version] = {}
        self._asked: dict[int, _Asked] = {}
        self._taking = anyio.Lock()

    async def ordered(self, attempt: Attempt, declared: Declared) -> Ordered:
        """Returns the job as it was applied (for a job that was created like another: that other job), and the attempt's order, one
        half from the database, the other from the flow file. A flow file counts once it was applied, before the daemon reloads it.

        Raises NotFoundError, ClaimLostError, INVALID_CODE, INVALID_ORDER and DatabaseUnreachableError.
        """
        if not declared.is_known(attempt.jobid):
            [[base]] = await self._call("code_of", {"jobid": attempt.jobid})
            declared.add_like(attempt.jobid, base)
        flow, job = declared.job(attempt.jobid)
        base = job.like or attempt.jobid
        # The order of a job that was created like another depends on the version of that other job, which has to be told first.
        taken = None if job.like is not None else await self._taken(attempt, base)
        applied = await self._config_of(base) if taken is None else taken.applied
        with readable():
            flow, job = declared.as_applied(flow, job, applied)
            version = None if job.is_replaced else version_of(flow, job)
        if version is not None:
            await self.tell({base: version})
        document = (await self._taken(attempt, base) if taken is None else taken).document
        if document is None:
            raise ClaimLostError("the claim was lost before the job began")
        if job.words:
            fence = {"attempt": attempt.attempt, "token": attempt.token}
            await self._call("add_words", fence | {"words": list(job.words)})
        # Every job that was created like another has this key, also if a person's command replaces its code.
        own = document.pop("config_hash", None)
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

    async def _taken(self, attempt: Attempt, base: str) -> Taken:
        """Gets the order of an attempt. Attempts that were claimed together ask in the same turn of the event loop: one call serves all."""
        asked = self._asked[attempt.attempt] = _Asked(attempt, base)
        try:
            await anyio.lowlevel.checkpoint()
            async with self._taking:
                if asked.taken is None and asked.failure is None:
                    await self._take_together(asked)
        finally:
            self._asked.pop(attempt.attempt, None)
        if asked.failure is not None:
            raise asked.failure
        if asked.taken is None:
            raise answers.wrong("work_orders", f"says nothing of the attempt {attempt.attempt}")
        return asked.taken

    async def _take_together(self, asked: _Asked) -> None:
        together = [asked, *(each for each in self._asked.values() if each is not asked)][:CLAIM_AT_MOST]
        try:
            await self._take(together)
        except DatabaseUnreachableError as error:
            if self._link.is_up and len(together) > 1:
                # The server is up, but refuses this call: one order may be the cause, or all together take too long.
                await self._take([asked])
                return
            # All of them fail now, so that they need not try one after the other.
            for each in together:
                each.failure = error
        except psycopg.Error:
            # One order may be the cause, so each attempt asks for itself.
            await self._take([asked])

    async def _take(self, together: list[_Asked]) -> None:
        named = {
            "attempts": [each.attempt.attempt for each in together],
            "tokens": [each.attempt.token for each in together],
            "bases": [each.base for each in together],
        }
        rows = await self._call("work_orders", named)
        found = {number: Taken(document, applied) for number, document, applied in rows}
        for each in together:
            each.taken = found.get(each.attempt.attempt)
            self._asked.pop(each.attempt.attempt, None)

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
