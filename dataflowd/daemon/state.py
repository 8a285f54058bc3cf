"""What the services of one daemon share. They talk through it and through nothing else.

Only the event loop's thread touches it, and nothing here awaits: between two awaits of a service the state is
consistent. `running` holds every attempt that the database counts as ours, from the claim until finish has accepted
it or said that it is fenced; its length is what the limit bounds.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dataflowd.daemon.wake import Wake
from dataflowd.engine import SizedEngine
from dataflowd.storage import evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import anyio
    from anyio.abc import TaskGroup

    from dataflowd.daemon.metrics import Metrics
    from dataflowd.database.calls import Claims
    from dataflowd.database.session import Link
    from dataflowd.engine import Engine
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt, Result
    from dataflowd.model.errors import DataflowError

ListenerState = Literal["connecting", "listening", "polling"]
JITTER = 0.2


@dataclass(slots=True, eq=False)
class Running:
    attempt: Attempt
    scope: anyio.CancelScope | None = None
    claimed: float = field(default_factory=time.monotonic)
    started: str | None = None
    started_at: float | None = None
    start_told: bool = False
    found: dict[str, Any] | None = None  # before the job's code began; see dataflowd.storage.evidence
    waits: int | None = None  # for one of so many Spark applications
    waits_since: float = 0.0
    waits_told: int | None = None
    stop_reason: str | None = None
    ended: bool = False  # its result is on its way to the database

    def stop(self, reason: str) -> None:
        """Cancels its task; once is enough, and an ended attempt needs none."""
        if not self.ended and self.stop_reason is None:
            self.stop_reason = reason
            if self.scope is not None:
                self.scope.cancel()


@dataclass(slots=True, eq=False)
class Offer:
    """A result that the database has not taken yet."""

    result: Result
    refusals: int = 0
    due: float = 0.0
    whole: bool = True  # False: its details were refused, only the failure is told


@dataclass(frozen=True)
class Wanted:
    """What a person wants to be run, in the place of all that is ready."""

    jobid: str
    dataid: str | None = None  # None: the next
    forced: bool = False
    reason: str | None = None  # why it is forced; history keeps it
    every: bool = False  # not one run, but all that are ready
    is_new: bool = False  # of a job without inputs: a run that nobody has asked for yet


@dataclass(eq=False)
class State:
    settings: Settings
    name: str
    hostname: str
    engine: Engine
    claims: Claims
    link: Link
    metrics: Metrics
    once: bool = False
    wanted: Wanted | None = None
    told: Callable[[Attempt, Result], None] = lambda _attempt, _result: None  # hears of every accepted result
    serves: Callable[[], Sequence[str] | None] = lambda: (
        None
    )  # the jobs that this host has the code of; None: any
    # Other jobs of its flow files, and why it cannot run them.
    unserved: Callable[[], Mapping[str, str]] = dict
    has_fixed_paths: Callable[[str], bool] = lambda _dataset: False
    tasks: TaskGroup = field(init=False)

    running: dict[int, Running] = field(default_factory=dict)
    offers: list[Offer] = field(default_factory=list)
    begun: list[tuple[int, float]] = field(default_factory=list)  # attempts, and seconds from claim to code
    failed_runs: set[tuple[str, str]] = field(default_factory=set)

    limit: int = 0
    paused: bool = False
    draining: bool = False
    listener: ListenerState = "connecting"
    is_serving_told: bool = False  # whether the database knows which jobs this daemon starts
    lease_proven: float = 0.0  # until when (monotonic) the claims stand without asking
    turns: int = 0
    claimed: int = 0
    claiming: bool = False  # a claim is on its way: what it brings is not in `running` yet
    not_ended: set[int] = field(default_factory=set)  # sessions of frozen daemons that this role may not end
    is_session_refused: bool = False  # the database takes another session for the one that claims
    refusal: DataflowError | None = None  # why the database does not do what is wanted
    queued: int = 0
    patience: float = 0.0  # seconds that --once may still wait for retries
    idle_since: float | None = None  # since when it does

    to_turn: set[tuple[str, str]] = field(default_factory=set)  # (dataset, dataid): published at a fixed path
    turn: Wake = field(default_factory=Wake)  # turner: fixed paths have to follow what was published
    work: Wake = field(default_factory=Wake)  # scheduler: look for work
    results: Wake = field(default_factory=Wake)  # finisher: results to tell
    control: Wake = field(default_factory=Wake)  # control: limits changed
    cancel: Wake = field(default_factory=Wake)  # oversight: attempts were cancelled
    lease: Wake = field(default_factory=Wake)  # leases: renew, or connect again
    turned: Wake = field(default_factory=Wake)  # watchdog: the scheduler has made a turn
    freed: Wake = field(default_factory=Wake)  # drain: an attempt has ended
    emptied: Wake = field(default_factory=Wake)  # drain: nothing runs any more
    shutdown: Wake = field(default_factory=Wake)  # service: stop the daemon
    hurry: Wake = field(default_factory=Wake)  # service: stop without waiting for attempts
    shutdown_reason: str = ""
    died: tuple[str, Exception] | None = None

    @property
    def served(self) -> Sequence[str] | None:
        """What the database is told that this daemon starts: nothing more, once it is stopping."""
        return () if self.draining else self.serves()

    @property
    def places(self) -> int:
        return 0 if self.paused or self.draining or self.is_sated else max(0, self.limit - len(self.running))

    def scarce(self) -> tuple[frozenset[str], int]:
        """Jobs whose attempts need a process of the engine's, and how many more of them would find one soon."""
        if not isinstance(self.engine, SizedEngine):
            return frozenset(), 0
        room = self.engine.room()
        needy = room.jobs | room.likes
        taken = sum(not each.ended and each.attempt.jobid in needy for each in self.running.values())
        return room.jobs, max(0, room.attempts - taken)

    @property
    def is_sated(self) -> bool:
        """A person who wants one run has got it."""
        return self.wanted is not None and not self.wanted.every and self.claimed > 0

    @property
    def poll_seconds(self) -> float:
        return self.settings.poll * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret

    def wait(self, attempt: int, applications: int | None) -> None:
        """The engine says that an attempt waits for a Spark application, or (None) that it waits no longer."""
        running = self.running.get(attempt)
        if running is not None and running.waits != applications:
            running.waits, running.waits_since = applications, time.monotonic()

    def find(self, attempt: int, found: dict[str, Any]) -> None:
        """The engine says what was found before the job's code begins; the first word counts."""
        running = self.running.get(attempt)
        if running is not None and running.found is None:
            running.found = evidence.bounded(found)

    def offer(self, result: Result) -> None:
        running = self.running.get(result.attempt)
        if running is not None:
            running.ended = True
        self.offers.append(Offer(result))
        self.results.set()

    def forget(self, attempt: int) -> Running | None:
        """The database has ended the attempt: its place is free."""
        running = self.running.pop(attempt, None)
        self.freed.set()
        if not self.running:
            self.emptied.set()
        return running

    def stop(self, reason: str) -> None:
        if not self.shutdown.is_set():
            self.shutdown_reason = reason
            self.shutdown.set()
