"""The engine that does nothing: attempts end inside the daemon, without a process.

It measures the control plane alone, and lets tests and rehearsals of a flow run without Spark. Each attempt takes `seconds`.
`failure_share` of the attempts fail. The attempt's number decides which ones, so that two runs of a test do the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from dataflowd.model.endings import done, failed

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

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

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Nothing is warm, and there are no tasks."""
        return nullcontext()

    async def reload(self) -> None:
        """Has no code to reload."""

    def _result(self, attempt: Attempt) -> Result:
        if self.failure_share and (attempt.attempt * self.failure_share) % 1 < self.failure_share:
            return failed(
                attempt, "NOOP_FAILED", "the noop engine was told to fail this share of the attempts"
            )
        return done(attempt)
