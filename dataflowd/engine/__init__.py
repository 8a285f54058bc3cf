"""Engines execute attempts. The daemon decides what runs and when; an engine knows only how.

`run` executes one attempt. If the job fails, `run` raises nothing and returns a Result that says so. When the cancel scope
around `run` is cancelled, `run` first stops the work (each step has a time limit and is verified) and then lets the
cancellation through, because the daemon then tells the database that nobody works on the run any more.

This room knows processes of runners and scripts. It claims nothing, and writes no status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from dataflowd.model.attempt import Attempt, Result


class Engine(Protocol):
    async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:
        """Executes one attempt and returns its result; calls `on_start` when the job's own code begins. The daemon learns of the start in no other way."""
        ...

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Owns every task of the engine. Attempts run inside the block; at its end the engine stops the processes that it keeps warm."""
        ...

    async def reload(self) -> None:
        """Called when flows or code may have changed: a warm process with old code takes no new attempts."""
        ...


@runtime_checkable
class InstantEngine(Protocol):
    """An engine that may have the result at once, so that the daemon starts no task for the attempt and hears no `on_start`."""

    def run_now(self, attempt: Attempt) -> Result | None:
        """Returns the result; None: call `run` for this attempt."""
        ...


@runtime_checkable
class OrderedEngine(Protocol):
    """An engine whose attempts need work orders. The daemon lets it take those of one claim together, before it runs any of them."""

    def take_orders(self, attempts: Sequence[Attempt]) -> AsyncIterator[Attempt]:
        """The same attempts, each with its order, or with why there is none. Raises nothing."""
        ...


@dataclass(frozen=True)
class Room:
    """How many attempts of these jobs the engine's processes can hold at a time, including those that they hold now."""

    jobs: frozenset[str]
    attempts: int
    # Jobs that were created like one of `jobs` (dataflowctl job create --like): their attempts use the same processes.
    likes: frozenset[str] = frozenset()


@runtime_checkable
class LookingEngine(Protocol):
    """An engine that looks at the data before a job's code begins."""

    # Called once for an attempt, with its number and what was found (dataflowd.storage.evidence).
    on_found: Callable[[int, dict[str, Any]], None]


@runtime_checkable
class WarmEngine(Protocol):
    """An engine that keeps processes between attempts."""

    # Called for each attempt: "warm" if a process was there, "cold" if one has to start.
    on_runner: Callable[[str], None]
    # Called with an attempt and why it waits. N > 0: all of the N processes that there may be are in use. 0: a process
    # for it is starting. None: it waits no longer.
    on_wait: Callable[[int, int | None], None]


@runtime_checkable
class SizedEngine(Protocol):
    """An engine that has room for a limited number of attempts of some jobs."""

    on_room: Callable[[], None]  # called when there may be room for more

    def room(self) -> Room:
        """Returns how many attempts the daemon may claim. More would wait here, while another daemon may have a free process."""
        ...

    async def resize(self, runners: int | None, slots: int | None) -> None:
        """Applies the values of the control table, which replace the settings; None: the setting applies."""
        ...
