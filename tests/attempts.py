"""Attempts as a daemon hands them to its engine, made of those that tests claim by SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflowd.model.attempt import Attempt

if TYPE_CHECKING:
    from dataflowd.engine import OrderedEngine
    from tests.fix_world import Attempt as Found


def claimed(found: Found) -> Attempt:
    return Attempt(
        found.attempt, str(found.token), found.job, found.dataid, found.number, found.tag, found.params
    )


async def ordered(engine: OrderedEngine, attempt: Attempt) -> Attempt:
    """The attempt with its order."""
    [taken] = [each async for each in engine.take_orders([attempt])]
    return taken
