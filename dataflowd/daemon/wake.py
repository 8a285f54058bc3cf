"""A flag that wakes one task: set by anybody, cleared by the task before it looks.

Clearing before looking is what makes it safe: whatever is set during the look causes another one.
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
        """Returns when it is set, or after so many seconds; whether it was set."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        return self._event.is_set()
