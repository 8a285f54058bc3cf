"""The values of the fuzzers: names that exist, the hostile corpus, numbers at the limits, and random noise.

About half of the values are good: a call with only wrong values is refused at its first check and tests little. Hypothesis
draws one number for each case, and a random generator makes the case from it: drawing every value by Hypothesis would cost ten
times as much as running the case. A failed case is printed with its number; `@example(number)` repeats it.
"""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.hostile import corpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DAY = "2026-01-01"
JOBS = ("clean_orders", "sum_orders")
DATASETS = ("raw", "clean", "sums", "today")
DATAIDS = (DAY, "2026-01-02", "7", "size_5000.1", "2026-W05", "2026-01-31T05")
KNOWN = (
    *(*JOBS, *DATASETS, *DATAIDS) * 2,
    *("RUNNING", "READY", "FAILED", "RESUBMIT", "PENDING", "HOLD", "DONE", "ERROR", "COMPLETE", "RERUN", "global"),
    *("job:clean_orders", "daemon:alpha", "JOB_FAILED", "2026-01-*", "2026-01-01..2026-01-31", "1..9", "*", "..", "9..1"),
    *("dev", "alpha", "natural", "size", "every", "csv", "json", "-", "0", "1", "-1", "1.5", "3d", "90m", "id"),
    *("2026-01-01T00..9999-12-31T23", "0..999999999999", "9999999999999d", "2026-13-01", "0000-00-00", "infinity"),
)  # fmt: skip
EDGES = (0, 1, -1, 2, 10, 2**15, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63, 10**30)
FLOATS = (0.5, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"))
LONGEST = 2000  # longer texts take time; tests/hostile has them
MADE_UP = 20


@dataclass
class Speaker:
    """Makes one value after the other from its number."""

    number: int
    forbidden: str = "[\x00\ud800-\udfff]"  # Postgres cannot store a NUL or a surrogate
    talkative: float = 0.5

    def __post_init__(self) -> None:
        self.random = random.Random(self.number)  # noqa: S311 - no secret
        self._hostile = _corpus(self.forbidden)

    def one(self, of: Sequence[Any]) -> Any:
        return self.random.choice(of)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def several(self, say: Callable[[], Any], most: int) -> list[Any]:
        return [say() for _ in range(self.random.randint(0, most))]

    def text(self) -> str:
        which = self.random.random()
        if which < 0.55:
            return str(self.one(KNOWN))
        return str(self.one(self._hostile)) if which < 0.85 else self.noise()

    def noise(self) -> str:
        """A text of any characters; short texts are more frequent."""
        most = self.one((0x7F, 0x7FF, 0xFFFF, 0x10FFFF))
        made = "".join(chr(self.random.randint(0, most)) for _ in range(self.random.randint(0, MADE_UP)))
        return re.sub(self.forbidden, "", made)

    def whole(self) -> int:
        return int(self.one(EDGES)) if self.chance(0.4) else self.random.randint(-100, 100)

    def number_(self) -> float:
        return float(self.one(FLOATS)) if self.chance(0.3) else self.whole()

    def plain(self) -> Any:
        return self.one(
            (self.text, self.text, self.whole, self.number_, lambda: self.chance(0.5), lambda: None)
        )()

    def json(self, depth: int = 3) -> Any:
        if depth == 0 or self.chance(0.5):
            return self.plain()
        if self.chance(0.5):
            return self.several(lambda: self.json(depth - 1), 3)
        return {self.text(): self.json(depth - 1) for _ in range(self.random.randint(0, 3))}

    def some_of(self, **sayings: Callable[[], Any]) -> dict[str, Any]:
        """A table with some of these keys; sometimes with a value of another kind, or an unknown key."""
        found = {
            name: (self.json(2) if self.chance(0.1) else say())
            for name, say in sayings.items()
            if self.chance(self.talkative)
        }
        return found | {self.text(): self.json(1)} if self.chance(self.talkative / 10) else found


@functools.cache
def _corpus(forbidden: str) -> list[str]:
    return [
        text
        for text in corpus.texts("/nowhere/marker")
        if not re.search(forbidden, text) and len(text) < LONGEST
    ]


def cases(count: int, try_one: Callable[[int], None]) -> None:
    """Tries so many numbers, and reports the first that fails.

    A case changes a database, so it cannot be repeated: when Hypothesis tries it again, the same failure is raised.
    """
    tried, failure = 0, list[BaseException]()

    @settings(
        max_examples=count, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck)
    )
    @given(st.integers(0, 2**64))
    def fuzz(number: int) -> None:
        nonlocal tried
        if failure:
            raise failure[0]
        tried += 1
        try:
            try_one(number)
        except BaseException as error:
            failure.append(error)
            raise

    fuzz()
    assert tried >= count, f"{tried} cases instead of {count}"
