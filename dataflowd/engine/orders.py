"""What the engine asks of the database: an attempt's order. A connection of its own, opened when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import psycopg

from dataflowd import db
from dataflowd.daemon.link import Link, LostLinkError
from dataflowd.errors import DatabaseUnreachableError

if TYPE_CHECKING:
    from dataflowd.attempt import Attempt
    from dataflowd.settings import Settings

TRIES = 3


class Orders:
    def __init__(self, settings: Settings) -> None:
        name = f"dataflowd {settings.effective_daemon_name} orders"
        self._link = Link(
            settings, name, seconds=settings.statement_timeout, address=lambda: db.dsn(settings)
        )
        self._lock = anyio.Lock()
        self._told: dict[str, tuple[str, str]] = {}

    async def order(self, attempt: Attempt) -> dict[str, Any] | None:
        """None: the attempt is no longer ours."""
        [[found]] = await self._call("work_order", {"attempt": attempt.attempt, "token": attempt.token})
        return dict(found) if found is not None else None

    async def code_version(self, jobid: str, code_hash: str, config_hash: str) -> None:
        """Told once for each change: chunks that other code has made are stale from now on."""
        if self._told.get(jobid) != (code_hash, config_hash):
            await self._call(
                "code_version", {"jobid": jobid, "code_hash": code_hash, "config_hash": config_hash}
            )
            self._told[jobid] = code_hash, config_hash

    async def close(self) -> None:
        await self._link.close()

    async def _call(self, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Both calls may be repeated without harm."""
        reason = ""
        for _ in range(TRIES):
            try:
                async with self._lock:
                    await self._link.open()
                    return await self._link.call(name, parameters)
            except (LostLinkError, TimeoutError, psycopg.OperationalError) as error:
                reason = str(error) or type(error).__name__
        raise DatabaseUnreachableError(f"the database does not answer: {reason}", "`dataflowctl doctor`")
