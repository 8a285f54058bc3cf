"""What one daemon consists of: parts that never change, and one object for each service.

A service owns its object: the service alone writes its fields. Other services read them, set the wakes, and call the
object's methods to ask for a change. Everything is constructed whole in service.py and only the event loop's thread
touches it. No method here awaits, so the objects agree with each other whenever a service awaits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dataflowd.daemon.attempt_watch import Watch
    from dataflowd.daemon.control import Limits
    from dataflowd.daemon.ending import Ending
    from dataflowd.daemon.finisher import Results
    from dataflowd.daemon.fixed_paths import Paths
    from dataflowd.daemon.leases import Lease
    from dataflowd.daemon.listener import Hearing
    from dataflowd.daemon.metrics import Metrics
    from dataflowd.daemon.pool import Attempts
    from dataflowd.daemon.scheduler import Turns
    from dataflowd.database.calls import Claims
    from dataflowd.database.session import Link
    from dataflowd.engine import Engine
    from dataflowd.host.settings import Current, Settings
    from dataflowd.model.attempt import Attempt, Result

JITTER = 0.2


class Which(Enum):
    """Which runs of a job a person wants."""

    NEXT = "the next one that is ready"
    EVERY = "all that are ready"
    NEW = "a new run of a job without inputs"
    NAMED = "the run of a dataid, if it may run"
    FORCED = "the run of a dataid, although it may not run"


@dataclass(frozen=True)
class Wanted:
    """What a person wants the daemon to run. The daemon then runs nothing else."""

    jobid: str
    which: Which
    dataid: str = ""  # of NAMED and FORCED
    reason: str | None = None  # of FORCED: why it is forced; history keeps it


@dataclass(frozen=True)
class Assignment:
    """What the daemon was started to do."""

    once: bool = False  # stop when nothing is ready
    patience: float = 0.0  # seconds in all that `once` waits for retries
    wanted: Wanted | None = None
    told: Callable[[Attempt, Result], None] = lambda _attempt, _result: (
        None
    )  # called for each accepted result
    # The jobs whose code this host has. None: any job.
    serves: Callable[[], Sequence[str] | None] = lambda: None
    # The other jobs of this host's flow files, each with the reason why the host cannot run it.
    unserved: Callable[[], Mapping[str, str]] = dict
    has_fixed_paths: Callable[[str], bool] = lambda _dataset: False


@dataclass(frozen=True, eq=False)
class State:
    name: str
    hostname: str
    current: Current
    assignment: Assignment
    engine: Engine
    claims: Claims  # the session that claims
    link: Link  # the session for every other call
    metrics: Metrics

    ending: Ending  # owned by service.py
    attempts: Attempts  # owned by pool.py
    watch: Watch  # owned by attempt_watch.py
    results: Results  # owned by finisher.py
    limits: Limits  # owned by control.py
    lease: Lease  # owned by leases.py
    hearing: Hearing  # owned by listener.py
    turns: Turns  # owned by scheduler.py
    paths: Paths  # owned by fixed_paths.py

    @property
    def settings(self) -> Settings:
        return self.current.settings

    @property
    def served(self) -> Sequence[str] | None:
        """The jobs that this daemon starts, as the database is told. A stopping daemon starts none."""
        return () if self.ending.is_stopping else self.assignment.serves()

    @property
    def poll_seconds(self) -> float:
        return self.settings.poll * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
