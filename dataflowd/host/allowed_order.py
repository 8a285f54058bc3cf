"""Whether an order leads only where this host allows: every host and every location in it, whatever the formats are.

A dataset's format is a word of the database's, as its location is. Were it to decide what is looked at, a changed word
would switch the look off. Whoever executes an order asks here before anything of it reaches a job.
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
        # Batches of one source all lie at one place.
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
