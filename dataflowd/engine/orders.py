"""What the engine asks of the database: an attempt's order. A connection of its own, opened when it is first needed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import psycopg

from dataflowd.database import db
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
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt
    from dataflowd.model.work_order import Order

TRIES = 3
ORDER_SECONDS = 5.0  # all calls are short; on a dead connection an attempt must not wait for long
AGAIN_SECONDS = 1.0


class Orders:
    def __init__(self, settings: Settings) -> None:
        name = f"dataflowd {settings.effective_daemon_name} orders"
        self._settings = settings
        self._link = Link(settings, name, seconds=ORDER_SECONDS, address=lambda: db.dsn(settings))
        self._lock = anyio.Lock()
        self._told: dict[str, Version] = {}
        self._applied: dict[str, str | None] = {}

    async def job(self, jobid: str, declared: Declared) -> tuple[Flow, Job]:
        """The job, or the one that it was created like, as it was applied: a flow file counts from then on, before the daemon
        reloads it. Raises NotFoundError, INVALID_CODE and DatabaseUnreachableError.
        """
        if not declared.is_known(jobid):
            [[base]] = await self._call("code_of", {"jobid": jobid})
            declared.add_like(jobid, base)
        flow, job = declared.job(jobid)
        [[applied]] = await self._call("applied_config", {"jobid": job.like or jobid})
        self._applied[job.like or jobid] = applied
        with readable():
            return declared.as_applied(flow, job, applied)

    async def order(self, attempt: Attempt, flow: Flow, job: Job, declared: Declared) -> Order:
        """Half of it from the database, half from the flow file.

        Raises ClaimLostError, INVALID_CODE, INVALID_ORDER and DatabaseUnreachableError.
        """
        with readable():
            version = None if job.is_replaced else version_of(flow, job)
        fence = {"attempt": attempt.attempt, "token": attempt.token}
        if version is not None and job.like is not None:
            # What it runs with follows from what the other one does.
            await self.tell({job.like: version})
        [[document]] = await self._call("work_order", fence)
        if document is None:
            raise ClaimLostError("the claim was lost before the job began")
        if job.words:
            await self._call("add_words", fence | {"words": list(job.words)})
        if version is not None and job.like is None:
            await self.tell({job.name: version})
        # Said of each job that was created like another, also where a script or command of a person's stands for it.
        own = document.pop("config_hash", None)
        config_hash = (
            None if version is None else self._used(job, version, own if job.like is not None else None)
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
        order = composed(document, identity, flow, job, self._settings)
        if agreement.differences(order, job, declared.flows):
            with readable():
                await anyio.to_thread.run_sync(agreement.require, order, job, declared)
        return order

    def _used(self, job: Job, version: Version, own: str | None) -> str:
        """The configuration that an attempt runs with. Where what was applied is not to be read on this host, it is neither that nor
        the host's own: parameters and options come from the database, the rest from here. What it makes is stale.

        `own`: that of a job that was created like another.
        """
        applied = self._applied.get(job.like or job.name)
        if applied in {None, version.config_hash}:
            return own or version.config_hash
        return hashlib.sha256(f"{own or version.config_hash} {applied}".encode()).hexdigest()

    async def is_alive(self, attempt: Attempt) -> bool:
        """Whether the attempt still holds its claim. While the database is away nobody knows, and the answer waits."""
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
        """Told once for each change: chunks that other code has made are stale from now on."""
        new = {jobid: version for jobid, version in versions.items() if self._told.get(jobid) != version}
        if new:
            await self._call("code_versions", as_parameters(new))
            self._told |= new

    async def _call(self, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """All calls may be repeated without harm. What the server cannot do now is no fault of the attempt's."""
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


def _is_of_now(replay: Any, job: Job, code_hash: str, config_hash: str | None) -> bool:
    """Rows are added only to those that the same code made, and where this host's flow file says that rows stand alone."""
    made = (code_hash, config_hash)
    return bool(job.rowwise and replay and (replay.get("code_hash"), replay.get("config_hash")) == made)
