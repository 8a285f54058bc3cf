"""Operations meet in many orders, and nothing is lost, held or run twice. `python -m tests.interleave` is the long form."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.interleave import cases
from tests.interleave.play import Schedule, Tally, play, schedules_of
from tests.interleave.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

# What was lost once: each is a mistake that was made.
KNOWN = (
    "identity/queued rc/rc lost_claim resubmit_sql ABBAA",
    "join/waiting rc/rc ready_a ready_b ABAB",
    "identity/waiting rc/rc apply_new ready_a ABAB",
    "identity/waiting rc/rc apply_new ready_a BAAB",
    "fixed/waiting rc/rc ready_a ready_b ABAB",
    "join/waiting rr/rc ready_a ready_b ABAABB",
    "shared/queued rc/rr claim_alpha claim_beta AABABB",
    "strict2/made rc/rc hold_out settle AABB",
    "identity/stale rc/rc rebuild@work:insert release_in ABBAA",
    "identity/running rc/rc cancel_delete claim_alpha AAAABB",
    "identity/unvalidated rc/rc ready_again settle AABB",
)
SEED = 15
SAMPLE = 400


@pytest.fixture
def stage(dsn: str) -> Iterator[Stage]:
    with closing(Stage(dsn)) as made:
        yield made


@pytest.mark.parametrize("line", KNOWN)
def test_what_went_wrong_once_goes_right(stage: Stage, line: str) -> None:
    assert play(stage, Schedule.parse(line), Tally()) == []


def test_operations_meet_and_leave_no_damage(stage: Stage) -> None:
    """Every two in the richest world, and a sample of everything else."""
    tally = Tally()
    for schedule in cases.short(SEED, lambda case: schedules_of(stage, case), SAMPLE):
        play(stage, schedule, tally)
    assert not tally.found, "\n".join(
        f"{line}: {each}" for line, found in tally.found.items() for each in found
    )
