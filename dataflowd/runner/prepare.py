"""Prepare: the host's side of the five questions, asked before any code of the job runs, for every kind of job.

Jobs differ only in how the process that executes them looks at data: a runner uses Spark, and the process of a script
sees the local disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dataflowd.host import allowed_order
from dataflowd.model import formats
from dataflowd.model.faults import AttemptError
from dataflowd.storage import evidence, manifest_check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.model.work_order import Dataset, Input, Order, Output
    from dataflowd.storage.files import File


class Eyes(Protocol):
    """How a process looks at inputs, and makes or reserves the places of outputs."""

    def listing(self, dataset: Dataset, location: str) -> Sequence[File] | None:
        """Returns the files at a location; None: nothing is there."""
        ...

    def check_table(self, source: Input) -> None: ...
    def check_files(self, source: Input, places: manifest_check.Places) -> None: ...
    def take_place(self, output: Output) -> None: ...


def prepare(order: Order, seen: evidence.Evidence, eyes: Eyes) -> None:
    """Raises the fault that forbids the job to begin. `seen` collects what was found, also up to a fault."""
    allowed_order.check(order)
    places = manifest_check.Places(seen, eyes.listing)
    for source in order.inputs.values():
        for chunk in source.chunks:
            if not order.forced:
                manifest_check.require_validated(source.name, chunk)
        if source.dataset.format in formats.TABLES:
            seen.note(source.name, evidence.IN_A_TABLE)
            eyes.check_table(source)
        else:
            eyes.check_files(source, places)
    for output in order.outputs.values():
        eyes.take_place(output)


def occupied(location: object) -> AttemptError:
    return AttemptError(
        "LOCKED",
        f"the directory {location}, which this attempt alone may write, exists already",
        "another control database may use the same location: give each its own",
    )
