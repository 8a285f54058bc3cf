"""Chooses the cases: which operations meet, in which scene, and at which isolation levels."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from tests.interleave.operations import OPERATIONS
from tests.interleave.play import Case, can_meet, common_states, states_of
from tests.interleave.scenes import WORLDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.interleave.play import Schedule

    Orders = Callable[[Case], list[Schedule]]

# Two inputs, two outputs, a retry and a consumer: every operation has something to do here.
RICH = "join"

JUDGING = (
    "rebuild",
    "settle",
    "ready_a",
    "ready_again",
    "validated_a",
    "hold_out",
    "release_in",
    "resubmit_sql",
)
CHANGING = (
    *(
        "ready_a",
        "ready_b",
        "validated_a",
        "invalidated_a",
        "hold_in",
        "hold_out",
        "release_in",
        "release_out",
    ),
    *("resubmit_sql", "cancel", "finish_done", "finish_failed", "claim_alpha", "claim_beta", "delete_runs"),
    *("delete_in", "apply_new", "apply_prune", "failed_sql"),
)
# The points where a function is stopped: after its read and before its write.
# The first write of a statement waits before the statement reads, but after its snapshot; a later write waits after the read.
STOPS = tuple(
    f"{name}@{write}"
    for names, writes in [
        (JUDGING, "work:insert work:delete event:insert recheck:insert open_run:insert datastatus:update"),
        (
            ("claim_alpha", "claim_beta"),
            "work:update work:delete attempt:insert datastatus:insert event:insert",
        ),
        (("claim_run_beta",), "attempt:insert datastatus:insert"),
        (("begin_lost",), "attempt:insert datastatus:insert"),
        (
            ("apply_new", "apply_prune", "apply_move", "apply_strict", "apply_map"),
            "job:insert job_output:delete job_input:insert datastatus:update work:insert open_run:delete",
        ),
        (
            ("finish_done", "finish_failed"),
            "attempt:update manifest:insert datastatus:update event:insert work:insert",
        ),
        (("rescue", "cancel", "failed_sql"), "attempt:update datastatus:update event:insert"),
        (("delete_runs", "delete_out"), "datastatus:delete attempt:delete event:insert"),
    ]
    for name in names
    for write in writes.split()
)

TRIPLES = (
    ("ready_a", "ready_b", "claim_beta"),
    ("ready_a", "ready_b", "apply_new"),
    ("ready_a", "ready_b", "rebuild"),
    ("ready_a", "ready_b", "ready_other"),
    ("ready_both", "ready_other", "claim_beta"),
    ("apply_new", "ready_a", "ready_other"),
    ("resubmit_sql", "finish_done", "ready_other"),
    ("crash", "rescue", "claim_beta"),
    ("crash", "resubmit_sql", "rescue"),
    ("ready_b", "claim_beta", "hold_in"),
    ("hold_in", "claim_beta", "settle"),
    ("hold_out", "claim_beta", "rebuild"),
    ("release_in", "settle", "claim_beta"),
    ("release_in", "rebuild", "claim_beta"),
    ("resubmit_sql", "finish_done", "claim_beta"),
    ("cancel", "lost_connection", "claim_beta"),
    ("cancel", "resubmit_sql", "claim_beta"),
    ("cancel", "delete_runs", "claim_alpha"),
    ("finish_done", "hold_out", "claim_beta"),
    ("lost_claim", "resubmit_sql", "claim_beta"),
    ("lost_claim", "hold_out", "claim_beta"),
    ("lost_claim", "cancel", "claim_beta"),
    ("validated_a", "invalidated_a", "claim_beta"),
    ("rescue", "resubmit_sql", "claim_beta"),
    ("begin_done", "claim_beta", "resubmit_sql"),
    ("begin_lost", "cancel", "claim_beta"),
    ("apply_move", "resubmit_sql", "claim_beta"),
)


def pairs(world: str, names: Iterable[str] = tuple(OPERATIONS), people: str = "rc") -> Iterator[Case]:
    """Every pair of operations, also of the same kind."""
    for first, second in itertools.combinations_with_replacement(names, 2):
        yield from met(world, (first, second), people)


def met(world: str, names: tuple[str, ...], people: str = "rc", daemons: str = "rc") -> Iterator[Case]:
    if can_meet(*names):
        for state in states_of(world, *names):
            yield Case(world, state, names, people, daemons)


def rich() -> list[Case]:
    return list(pairs(RICH))


def close() -> list[Case]:
    """The pairs of the richest world that affect each other."""
    return [case for case in rich() if common_states(*case.names)]


def rest() -> list[Case]:
    """All other cases; a sample of them is played."""
    people = tuple(name for name, each in OPERATIONS.items() if each.actor == "person")
    found = [case for world in WORLDS for case in pairs(world)]
    for level in ("rr", "ser"):
        for world in WORLDS:
            found += pairs(world, people, level)
            found += [
                case
                for name, other in itertools.product(people, ("claim_beta", "finish_done", "lost_claim"))
                for case in met(world, (name, other), level)
            ]
    for world in ("limited", "shared"):
        for names in itertools.combinations([name for name in OPERATIONS if name.startswith("claim")], 2):
            found += met(world, names, daemons="rr")
            found += met(world, names, daemons="ser")
    return found + inside()


def inside() -> list[Case]:
    """Cases with calls that are stopped in the middle, and with three operations."""
    together = [*itertools.product(STOPS, CHANGING), *TRIPLES]
    return [
        case for world in WORLDS for names in together if common_states(*names) for case in met(world, names)
    ]


def sample(seed: int, orders: Orders, size: int) -> Iterator[Schedule]:
    """One order for each of so many cases."""
    chance = random.Random(seed)  # noqa: S311
    for case in chance.choices(rest(), k=size):
        yield chance.choice(orders(case))


def short(seed: int, orders: Orders, size: int) -> Iterator[Schedule]:
    """Every pair of operations in the richest world, each once, and a sample of all other cases."""
    chance = random.Random(seed)  # noqa: S311
    for _, group in itertools.groupby(rich(), key=lambda case: case.names):
        yield chance.choice([each for each in orders(chance.choice(list(group))) if is_mixed(each.order)])
    yield from sample(seed, orders, size)


def is_mixed(order: str) -> bool:
    """Whether a step of one operation comes between two steps of another."""
    return len(list(itertools.groupby(order))) > len(set(order))
