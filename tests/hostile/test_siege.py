"""A superuser of the control database against a live host, in short. `python -m tests.hostile.siege` is the long form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.hostile.siege import Siege
from tests.hostile.stage import opened

if TYPE_CHECKING:
    from pathlib import Path

SEED = 16
ROUNDS = 2
# What datasets and orders say is besieged in test_after_merge.
OTHERS = r"^(?!column dataset\.|rows dataset |function (work_order|preview_order|trial_order)\()"


def test_whoever_owns_the_database_gets_neither_files_nor_hosts_nor_passwords(
    dsn: str, tmp_path: Path
) -> None:
    with opened(dsn, tmp_path) as stage:
        siege = Siege(stage, SEED, only=OTHERS)
        for number in range(ROUNDS):
            siege.play(number)
        assert siege.tally.found == []
        assert siege.tally.deeds > ROUNDS
