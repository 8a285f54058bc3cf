"""Operations meet in many orders, and no run is lost, blocked or run twice. `python -m tests.interleave` is the long form."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.interleave import cases
from tests.interleave.play import Schedule, Tally, play, schedules_of
from tests.interleave.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

# Each schedule once found a bug.
KNOWN = (
    # the answer of a claim is lost, and a person takes the run away before the daemon is back
    "identity/queued rc/rc lost_claim resubmit_sql ABBAA",
    "identity/queued rc/rc lost_claim cancel ABBAA",
    "identity/queued rc/rc lost_claim hold_release_out ABBBBAA",
    # two inputs in two open transactions
    "join/waiting rc/rc ready_a ready_b ABAB",
    "fixed/waiting rc/rc ready_a ready_b ABAB",
    "join/waiting rr/rc ready_a ready_b ABAABB",
    # a flow is applied while chunks change
    "identity/waiting rc/rc apply_new ready_a ABAB",
    "identity/waiting rc/rc apply_new ready_a BAAB",
    "identity/queued rc/rc apply_move claim_beta BAAB",
    "join/queued rc/rc apply_prune hold_out BAAB",
    "join/waiting rc/rc ready_a apply_strict ABAB",
    "join/made rc/rc resubmit_sql apply_move ABAB",
    "size/waiting rc/rc ready_many apply_prune BABA",
    # limits
    "shared/queued rc/rr claim_alpha claim_beta AABABB",
    "limited/running rc/rc claim_other settle AABB",
    # strict order with two outputs
    "strict2/made rc/rc hold_out settle AABB",
    # an evaluation that is no longer true when it is written
    "identity/stale rc/rc rebuild@work:insert release_in ABBAA",
    # a delete during a run or a claim
    "identity/running rc/rc cancel_delete claim_alpha AAAABB",
    "join/failed rc/rc delete_out claim_beta BAAB",
    # a chunk without validation is registered again
    "identity/unvalidated rc/rc ready_again settle AABB",
)
SEED = 15
SAMPLE = 120


@pytest.fixture
def stage(dsn: str) -> Iterator[Stage]:
    with closing(Stage(dsn)) as made:
        yield made


@pytest.mark.parametrize("line", KNOWN)
def test_schedules_that_once_found_a_bug_pass(stage: Stage, line: str) -> None:
    assert play(stage, Schedule.parse(line), Tally()) == []


def test_operations_meet_and_leave_no_damage(stage: Stage) -> None:
    """Every pair in the richest world, and a sample of all other cases."""
    tally = Tally()
    for schedule in cases.short(SEED, lambda case: schedules_of(stage, case), SAMPLE):
        play(stage, schedule, tally)
    assert not tally.found, "\n".join(
        f"{line}: {each}" for line, found in tally.found.items() for each in found
    )
