"""Engines execute attempts. The daemon decides what runs and when; an engine knows only how.

`run` takes one attempt to its end and never raises for a job that fails: that is a Result. When the cancel scope
around it is cancelled, it stops the work for sure (each step bounded and verified) before it lets the
cancellation through, because the daemon then tells the database that nobody works on the run any more.

This room knows processes of runners and scripts. It claims nothing, and writes no status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from dataflowd.model.attempt import Attempt, Result


class Engine(Protocol):
    async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:
        """Runs one attempt to its end; calls `on_start` when the job's own code begins. Nothing else tells the daemon of the start."""
        ...

    async def close(self) -> None:
        """Stops what is kept warm between attempts. No attempt is running any more."""
        ...

    async def reload(self) -> None:
        """Flows or code may have changed: what is warm with the old code takes no new attempts."""
        ...


@runtime_checkable
class InstantEngine(Protocol):
    """An engine that needs no waiting: it is spared a task for each attempt, and a call of `on_start`."""

    def run_now(self, attempt: Attempt) -> Result | None:
        """The result at once; None: this attempt has to be run."""
        ...


@runtime_checkable
class OrderedEngine(Protocol):
    """An engine whose attempts need work orders. The daemon lets it take those of one claim together, before it runs any of them."""

    def take_orders(self, attempts: Sequence[Attempt]) -> AsyncIterator[Attempt]:
        """The same attempts, each with its order, or with why there is none. Raises nothing."""
        ...


@dataclass(frozen=True)
class Room:
    """How many attempts of some jobs can be in processes at a time, those that are now among them."""

    jobs: frozenset[str]
    attempts: int
    likes: frozenset[str] = frozenset()  # created like one of these, as far as they ran here


@runtime_checkable
class LookingEngine(Protocol):
    """An engine that looks at the data before a job's code begins."""

    # Told an attempt and what was found (dataflowd.storage.evidence), once.
    on_found: Callable[[int, dict[str, Any]], None]


@runtime_checkable
class WarmEngine(Protocol):
    """An engine that keeps processes between attempts: it says of each attempt whether it found one, or waits for one."""

    on_runner: Callable[[str], None]  # told "cold" or "warm"
    # Told an attempt and how many processes there may be, which are all in use; 0: its own starts; None: it waits no longer.
    on_wait: Callable[[int, int | None], None]


@runtime_checkable
class SizedEngine(Protocol):
    """An engine that has room for so many attempts of some jobs."""

    on_room: Callable[[], None]  # called when there may be room for more

    def room(self) -> Room:
        """What is beyond would only wait for a process, and another daemon might have one."""
        ...

    async def resize(self, runners: int | None, slots: int | None) -> None:
        """What the control table says in the place of the settings; None: nothing."""
        ...
