"""The scenes: the stage before operations meet. A scene is a world (jobs and mappings) in a state (how far its run is).

Each world has a job `make`, whose run the operations are about, and a job `copy` that reads its output. The second judge
computes which input chunks the run needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.judge import inputs_of

if TYPE_CHECKING:
    from tests.judge import Chunk, Mapping, Run

IDENTITY: Mapping = {"kind": "identity"}


@dataclass(frozen=True)
class World:
    name: str
    inputs: dict[str, Mapping]
    dataid: str = "1"
    outputs: tuple[str, ...] = ("made",)
    columns: dict[str, Any] = field(default_factory=dict)
    # Chunks of other runs of `make`, which exist from the start.
    others: tuple[Chunk, ...] = ()
    calendar: str | None = None
    # The batches of the partitioning `parts` of the first input.
    batches: tuple[str, ...] = ()
    # How many attempts may run at a time, and which jobs each daemon can run.
    limit: int = 100
    serves: dict[str, list[str]] = field(default_factory=dict)

    @property
    def run(self) -> Run:
        return "make", self.dataid

    @property
    def needs(self) -> list[Chunk]:
        """The input chunks of the run. The operations work on the last ones."""
        return [
            (dataset, dataid)
            for dataset, mapping in self.inputs.items()
            for dataid in inputs_of(mapping, self.dataid, lambda _: self.batches)
        ]


RETRY = {"max_attempts": 3, "retry_delay": "0"}

WORLDS = {
    world.name: world
    for world in [
        World("identity", {"raw": IDENTITY}, columns=RETRY),
        World("join", {"raw": IDENTITY, "rates": IDENTITY}, outputs=("made", "rejects"), columns=RETRY),
        World(
            "fixed", {"raw": IDENTITY, "reference": {"kind": "fixed", "dataid": "base"}}, outputs=("made",)
        ),
        World("offset", {"raw": IDENTITY, "older": {"kind": "offset", "by": -1, "unit": "number"}}, "2"),
        World("size", {"raw": {"kind": "window", "size": 2}}),
        World("last", {"raw": {"kind": "window", "last": 2, "unit": "number"}}, "2"),
        World("all", {"raw": {"kind": "all", "dataids": ["1", "2"]}}, "all"),
        World(
            "parts",
            {"raw": {"kind": "all", "dataid": "whole", "partitioning": "parts"}},
            "whole",
            batches=("b1", "b2", "b3"),
        ),
        World(
            "hours",
            {
                "raw": {"kind": "window", "from": "hour", "to": "day", "zone": "Europe/Berlin"},
                "rates": IDENTITY,
            },
            "2026-03-29",
        ),
        World(
            "strict",
            {"raw": IDENTITY},
            columns={"strict_order": True, **RETRY},
            others=(("raw", "2"),),
        ),
        World(
            "strict2",
            {"raw": IDENTITY, "rates": IDENTITY},
            outputs=("made", "rejects"),
            columns={"strict_order": True},
            others=(("raw", "2"), ("rates", "2")),
        ),
        World("calendar", {"raw": IDENTITY, "day": IDENTITY}, "2026-01-02", calendar="day"),
        World("limited", {"raw": IDENTITY}, columns={"max_running": 1}, others=(("raw", "2"),)),
        World(
            "shared",
            {"raw": IDENTITY},
            others=(("made", "9"),),
            limit=1,
            serves={"alpha": ["make", "more", "other"], "beta": ["copy"]},
        ),
    ]
}

# How far the run is; Stage.prepare makes each state.
STATES = (
    "waiting",
    "unvalidated",
    "queued",
    "stale",
    "held",
    "running",
    "stopping",
    "cancelled",
    "failed",
    "made",
    "read",
    "orphaned",
)
