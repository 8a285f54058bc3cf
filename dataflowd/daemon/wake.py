"""A flag that wakes one task. Any task sets the flag; the woken task clears it, and then looks for work.

The task clears the flag before it looks. So a flag that is set during the look causes another look, and none is missed.
"""

from __future__ import annotations

import anyio


class Wake:
    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        if self._event.is_set():
            self._event = anyio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits until the flag is set, at most for so many seconds; returns whether it is set."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        return self._event.is_set()
