"""What the engine asks of the database: an attempt's order. A connection of its own, opened when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import psycopg

from dataflowd import agreement, db
from dataflowd.daemon.link import Link, LostLinkError
from dataflowd.engine.compose import as_parameters, composed, version_of
from dataflowd.errors import DatabaseUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataflowd.attempt import Attempt
    from dataflowd.declared import Declared
    from dataflowd.engine.compose import Version
    from dataflowd.flow import Flow, Job
    from dataflowd.order import Order
    from dataflowd.settings import Settings

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

    async def order(self, attempt: Attempt, flow: Flow, job: Job, declared: Declared) -> Order | None:
        """Half of it from the database, half from the flow file. None: the attempt is no longer ours."""
        version = version_of(flow, job)
        [[document]] = await self._call("work_order", {"attempt": attempt.attempt, "token": attempt.token})
        if document is None:
            return None
        await self.tell({job.name: version})
        identity = {
            "attempt": attempt.attempt,
            "number": attempt.number,
            "jobid": attempt.jobid,
            "dataid": attempt.dataid,
            "tag": attempt.tag,
            "params": attempt.params,
            "code_hash": version.code.hash,
            "config_hash": version.config_hash,
        }
        order = composed(document, identity, flow, job, self._settings)
        if agreement.differences(order, job, declared.flows):
            await anyio.to_thread.run_sync(agreement.require, order, job, declared)
        return order

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
