"""The engine that does nothing: attempts end inside the daemon, without a process.

It measures the control plane alone, and lets tests and rehearsals of a flow run without Spark. With a duration each
attempt takes so long; with a failure share so many of them fail, chosen by the attempt's number and not by chance,
so that two runs of a test do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from dataflowd.model.endings import done, failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataflowd.model.attempt import Attempt, Result


@dataclass(frozen=True)
class NoopEngine:
    seconds: float = 0
    failure_share: float = 0

    def run_now(self, attempt: Attempt) -> Result | None:
        return None if self.seconds else self._result(attempt)

    async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:
        on_start()
        await anyio.sleep(self.seconds)
        return self._result(attempt)

    async def close(self) -> None:
        """Nothing is warm."""

    async def reload(self) -> None:
        """There is no code."""

    def _result(self, attempt: Attempt) -> Result:
        if self.failure_share and (attempt.attempt * self.failure_share) % 1 < self.failure_share:
            return failed(attempt, "NOOP_FAILED", "this share of the attempts was told to fail")
        return done(attempt)
