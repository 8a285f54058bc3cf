"""The schedule of faults for a seed: which fault comes when, and which target it takes.

A step has its kind, the pause before it, and numbers between 0 and 1 that choose targets and durations. All of it comes from
the seed alone, so that a seed replays the same schedule. The state that a fault meets is not the same to the millisecond,
because the timing of processes differs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

PICKS = 5
SPARK_SHARE = 0.1
MEAN_PAUSE_SECONDS = 1.6
LONGEST_PAUSE_SECONDS = 6.0

# Weights: a fault that costs the pipeline one second comes more often than one that costs ten.
WEIGHTS = {
    "daemon_kill": 6,
    "daemon_restart": 3,
    "daemon_zombie": 4,
    "daemon_freeze": 3,
    "runner_kill": 12,
    "runner_freeze": 6,
    "jvm_kill": 1,
    "server_fast": 2,
    "server_immediate": 2,
    "server_kill": 2,
    "session_terminate": 5,
    "wire_blackhole": 4,
    "wire_delay": 4,
    "wire_reset": 6,
    "wire_refuse": 3,
    "wire_deaf": 3,
    "disk_full": 5,
    "clock_jump": 5,
    "concurrency": 10,
    "pause": 6,
    "hold": 8,
    "resubmit": 8,
    "cancel": 8,
    "sql_update": 10,
    "open_transaction": 6,
    "new_code": 5,
    "operator_program": 4,
    "hostile_session": 5,
    "long_transaction": 5,
    "dead_daemons_chunk": 3,
    "delete": 6,
    "cancel_delete": 4,
    "delete_program": 3,
    "run_program": 4,
    "force_program": 4,
    "unvalidated": 5,
    "withdrawn": 5,
    "reference": 5,
}


@dataclass(frozen=True)
class Step:
    number: int
    kind: str
    pause: float  # seconds before the step
    picks: tuple[float, ...]

    @property
    def spares_spark(self) -> bool:
        """Usually true: Spark needs a while to start again, and with every fault it would never do any work."""
        return self.picks[-1] > SPARK_SHARE

    def choose(self, targets: Sequence[T], pick: int = 0) -> T:
        return targets[int(self.picks[pick] * len(targets))]

    def between(self, least: float, most: float, pick: int = 1) -> float:
        return least + self.picks[pick] * (most - least)

    def whole(self, least: int, most: int, pick: int = 1) -> int:
        return int(self.between(least, most + 1, pick))


def steps(seed: int, mean_pause: float = MEAN_PAUSE_SECONDS) -> Iterator[Step]:
    """Yields steps without end. Every kind comes once before any comes twice, so that a short run has all of them."""
    chance = random.Random(seed)  # noqa: S311 - must be repeatable
    first = list(WEIGHTS)
    chance.shuffle(first)
    number = 0
    while True:
        drawn = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        kind = first[number] if number < len(first) else drawn
        pause = min(chance.expovariate(1 / mean_pause), LONGEST_PAUSE_SECONDS)
        yield Step(number, kind, pause, tuple(chance.random() for _ in range(PICKS)))
        number += 1
