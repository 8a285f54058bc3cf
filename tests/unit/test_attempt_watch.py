"""The service that keeps attempts and their rows in step, while the database does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from dataflowd.daemon import attempt_watch, service
from dataflowd.daemon.state import Assignment
from dataflowd.daemon.wake import Wake
from dataflowd.engine.noop import NoopEngine
from dataflowd.host.settings import Current

if TYPE_CHECKING:
    from dataflowd.host.settings import Settings


class CountingWake(Wake):
    rounds = 0

    async def wait(self, seconds: float | None = None) -> bool:
        self.rounds += 1
        return await super().wait(seconds)


async def test_a_daemon_that_drains_without_its_database_does_not_spin(settings: Settings) -> None:
    state = service.assemble(Current(settings), "alpha", NoopEngine(), Assignment())
    state.watch.wake = wake = CountingWake()
    state.watch.measure(1, 0.0)  # the service has something to ask, and no connection was opened
    state.ending.stop("a test")
    wake.set()  # somebody has cancelled an attempt
    with anyio.move_on_after(attempt_watch.EVERY_SECONDS / 2):
        await attempt_watch.run(state)
    assert wake.rounds == 1
    assert wake.is_set(), "the service asks again when the database answers"
