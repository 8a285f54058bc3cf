"""Checks that this host allows every host and every location of a work order, for all formats.

The format of a dataset comes from the database, as its location does. If the format decided what is checked, a changed
format would switch a check off. A runner calls `check` before any part of the order reaches the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflowd.host import allowed_hosts, allowed_roots
from dataflowd.model import formats
from dataflowd.model.work_order import attempt_location

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dataflowd.model.work_order import Dataset, Order


def check(order: Order) -> None:
    """Raises INVALID_PATH."""
    for source in order.inputs.values():
        # All batches of one source have the same location.
        places = dict.fromkeys(source.locations)
        _check(order, source.dataset, places)
        for location in places:
            if not allowed_hosts.is_table(source.dataset.format, location):
                allowed_roots.check_below(location, order.allowed_roots)
    for output in order.outputs.values():
        written = [
            attempt_location(place, order.dataid, order.attempt, order.allowed_roots)
            for place in _given(output.location)
        ]
        _check(order, output.dataset, [*_given(output.location), *written])


def _check(order: Order, dataset: Dataset, locations: Iterable[str]) -> None:
    there = dataset.connection
    if dataset.format in formats.TABLES or there.hostname is not None:
        allowed_hosts.check(dataset, order.allowed_hosts)
    for location in dict.fromkeys((*_given(dataset.location), *locations)):
        if allowed_hosts.is_table(dataset.format, location):
            allowed_hosts.check_table(dataset.name, location, order.allowed_hosts)
        else:
            allowed_roots.check(location, order.allowed_roots)


def _given(location: str | None) -> tuple[str, ...]:
    return () if location is None else (location,)
