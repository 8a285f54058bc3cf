"""The seeded hand's plan: which fault comes when, and which of the possible targets it takes.

A step names its kind, the pause before it, and numbers between 0 and 1 that choose targets and durations. All of it comes
from the seed alone, never from what happens meanwhile, so that a seed replays the same schedule of faults. What it meets
is not the same to the millisecond: processes and the kernel have a clock of their own.
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

# Weights: what costs the pipeline a second comes more often than what costs it ten.
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
    pause: float  # seconds before it
    picks: tuple[float, ...]

    @property
    def spares_spark(self) -> bool:
        """Mostly: Spark takes a while to come to its work again, and would never do any."""
        return self.picks[-1] > SPARK_SHARE

    def choose(self, targets: Sequence[T], pick: int = 0) -> T:
        return targets[int(self.picks[pick] * len(targets))]

    def between(self, least: float, most: float, pick: int = 1) -> float:
        return least + self.picks[pick] * (most - least)

    def whole(self, least: int, most: int, pick: int = 1) -> int:
        return int(self.between(least, most + 1, pick))


def steps(seed: int, mean_pause: float = MEAN_PAUSE_SECONDS) -> Iterator[Step]:
    """Without end. Every kind comes once before any comes twice, so that a short run has seen them all."""
    chance = random.Random(seed)  # noqa: S311 - to be repeated is what it is for
    first = list(WEIGHTS)
    chance.shuffle(first)
    number = 0
    while True:
        drawn = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        kind = first[number] if number < len(first) else drawn
        pause = min(chance.expovariate(1 / mean_pause), LONGEST_PAUSE_SECONDS)
        yield Step(number, kind, pause, tuple(chance.random() for _ in range(PICKS)))
        number += 1
