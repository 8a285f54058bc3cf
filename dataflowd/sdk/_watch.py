"""A watch: aggregates over the rows of a frame, computed in the pass of another action.

Spark's Observation keeps the values of the first action. For an ordinary job this is the write, and the values are right. If
the job ran another action before (`show`, `limit`), the values are wrong: the watch is stale, and a pass of its own computes
them again. The same happens if no action used the frame. So the values are always exact, and usually cost nothing.
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
        """Whether this watch is part of a plan (`plan_of`)."""
        return self._name in plan

    def plan_before(self) -> str:
        """The plan of the watched frame."""
        return plan_of(self._source)

    def expire(self) -> None:
        """Called before the write starts: values that exist by now are of another action, so the watch is stale."""
        self._is_stale = self._is_stale or self._is_complete()

    def values(self) -> dict[str, Any]:
        """The values, after the write. They are fetched once and kept."""
        if self._values is None:
            self._values = self.passing()
        if self._values is None:
            row = self._source.agg(*self._expressions).first()
            self._values = dict(row.asDict(recursive=False)) if row is not None else {}
        return self._values

    def passing(self) -> dict[str, Any] | None:
        """The values of the write; None if the write did not use the frame, or another action did before."""
        return None if self._is_stale or not self._has_values() else dict(self._observation.get)

    def _is_complete(self) -> bool:
        inside = getattr(self._observation, "_jo", None)
        if inside is not None:
            return bool(inside.future().isCompleted())
        # Connect fills its Observation when the action has ended; until then it is empty.
        return bool(getattr(self._observation, "_result", None))

    def _has_values(self) -> bool:
        """False also if the optimiser removed the watch, because it proved that there are no rows."""
        inside = getattr(self._observation, "_jo", None)
        return self._is_complete() and (inside is None or inside.getRow().size() == len(self._expressions))


def plan_of(frame: DataFrame) -> str:
    """The plan as text, which names its watches. A checkpoint of the job cuts off the plan before it."""
    inside = getattr(frame, "_jdf", None)
    if inside is not None:
        return str(inside.queryExecution().analyzed().treeString())
    return " ".join(frame._plan.observations)  # noqa: SLF001 - Connect has no other way to ask
