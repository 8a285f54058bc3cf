"""Why and how far the daemon is on its way to stop. service.py owns it; any service may ask for the stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from dataflowd.daemon.wake import Wake

if TYPE_CHECKING:
    from dataflowd.model.errors import DataflowError


class Phase(Enum):
    """The daemon goes through these in this order, never back."""

    SERVING = "claims and runs"
    DRAINING = "claims nothing more, and waits for its attempts"
    HURRYING = "stops its attempts without waiting"


@dataclass(eq=False)
class Ending:
    phase: Phase = Phase.SERVING
    reason: str = ""
    died: tuple[str, Exception] | None = None  # the first service that died, and its error
    refusal: DataflowError | None = None  # why the database refuses what a person wants
    begun: Wake = field(default_factory=Wake)  # the phase is no longer SERVING
    hurried: Wake = field(default_factory=Wake)  # the phase is HURRYING

    @property
    def is_stopping(self) -> bool:
        return self.phase is not Phase.SERVING

    def stop(self, reason: str) -> None:
        """Begins the drain. The first reason counts."""
        if not self.is_stopping:
            self.phase, self.reason = Phase.DRAINING, reason
            self.begun.set()

    def hurry(self) -> None:
        """Ends the waiting of a daemon that is stopping."""
        self.phase = Phase.HURRYING
        self.hurried.set()

    def die(self, service: str, error: Exception) -> None:
        """A service is gone: the daemon stops without waiting for its attempts."""
        self.died = self.died or (service, error)
        self.stop(f"the service {service} died: {getattr(error, 'message', error)}")
        self.hurry()

    def refuse(self, refusal: DataflowError) -> None:
        self.refusal = refusal
        self.stop("what was wanted is refused")
