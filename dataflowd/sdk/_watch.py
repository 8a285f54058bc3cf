"""Aggregates over rows that pass by, taken in the pass that an action makes anyway.

Spark's Observation keeps what the first action saw. That is the whole truth for an ordinary job, whose first action is
the write, and wrong for one that looked at its data before (`show`, `limit`): such a watch is stale, and its numbers
are taken again by a pass of its own, as they are when no action ever passed it. So they are exact always, and free as
a rule.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Watch:
    def __init__(self, frame: DataFrame, expressions: list[Column]) -> None:
        from pyspark.sql import Observation  # noqa: PLC0415

        self._source = frame
        self._expressions = expressions
        self._name = f"dataflow-{uuid.uuid4()}"
        self._observation = Observation(self._name)
        self._is_stale = False
        self._values: dict[str, Any] | None = None
        self.frame = frame.observe(self._observation, *expressions)

    def is_in(self, plan: str) -> bool:
        """Whether the rows of a frame with this plan (`plan_of`) come by here."""
        return self._name in plan

    def plan_before(self) -> str:
        """The plan of the rows that come by here."""
        return plan_of(self._source)

    def expire(self) -> None:
        """Called before the writing starts: what was observed until now was seen by some other action."""
        self._is_stale = self._is_stale or self._is_complete()

    def values(self) -> dict[str, Any]:
        """Once the writing is over; they are asked for several times, and fetched once."""
        if self._values is None:
            self._values = self.passing()
        if self._values is None:
            row = self._source.agg(*self._expressions).first()
            self._values = dict(row.asDict(recursive=False)) if row is not None else {}
        return self._values

    def passing(self) -> dict[str, Any] | None:
        """What the writing saw pass; None where it did not come by, or something else did before."""
        return None if self._is_stale or not self._has_values() else dict(self._observation.get)

    def _is_complete(self) -> bool:
        inside = getattr(self._observation, "_jo", None)
        if inside is not None:
            return bool(inside.future().isCompleted())
        # Connect's Observation is filled with the answer to the action, and empty until then.
        return bool(getattr(self._observation, "_result", None))

    def _has_values(self) -> bool:
        """The optimiser may find that no row can pass, and leave the watch out with the rest of the plan."""
        inside = getattr(self._observation, "_jo", None)
        return self._is_complete() and (inside is None or inside.getRow().size() == len(self._expressions))


def plan_of(frame: DataFrame) -> str:
    """The plan as text, which names the watches in it. It ends where the job cut it off, by a checkpoint for example."""
    inside = getattr(frame, "_jdf", None)
    if inside is not None:
        return str(inside.queryExecution().analyzed().treeString())
    return " ".join(frame._plan.observations)  # noqa: SLF001 - Connect has no other way to ask
