"""Prints the results of a bench: one JSON object a line on stdout, so that a program can compare two runs; texts on stderr.

A ratio is the median of the ratios of all rounds. If the machine is slower in one round, it is slower for both sides.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Goal:
    limit: float
    is_minimum: bool

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.is_minimum else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.is_minimum else '<='} {self.limit:g}"


def at_least(limit: float) -> Goal:
    return Goal(limit, is_minimum=True)


def at_most(limit: float) -> Goal:
    return Goal(limit, is_minimum=False)


@dataclass(frozen=True)
class Result:
    bench: str
    case: str
    metric: str
    value: float
    unit: str
    goal: Goal | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        return json.dumps(self.document())

    def document(self) -> dict[str, Any]:
        # The goal is compared with the exact value; a reader gets four digits.
        return {
            "bench": self.bench,
            "case": self.case,
            "metric": self.metric,
            "value": _rounded(self.value),
            "unit": self.unit,
            "goal": str(self.goal) if self.goal else None,
            "holds": self.goal.holds(self.value) if self.goal else None,
            **self.details,
        }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """How far the rounds are apart. A median alone would hide a noisy machine."""
    return {"low": _rounded(min(values)), "high": _rounded(max(values)), "rounds": len(values)}


def ratio(
    name: tuple[str, str, str], values: Sequence[float], others: Sequence[float], goal: Goal | None = None
) -> Result:
    """The result (bench, case, metric): the median ratio of our values to the others' values, round by round."""
    ratios = [value / other for value, other in zip(values, others, strict=True)]
    return Result(*name, statistics.median(ratios), "ratio", goal, spread(ratios))


def short(size: int) -> str:
    """A number in short: 100k, 1m."""
    return f"{size // 1_000_000}m" if size >= 1_000_000 else f"{size // 1000}k"


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
