"""A superuser of the control database against a live host, in short. `python -m tests.hostile.siege` is the long form."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from tests.fix_daemon import eventually
from tests.hostile.siege import Siege
from tests.hostile.stage import FOREIGN, opened

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hostile.stage import Stage

SEED = 16
ROUNDS = 1
# Other tests attack datasets and orders.
OTHERS = r"^(?!column dataset\.|rows dataset |function (work_order|attempt_order|take_order|preview_order|trial_order)\()"


def test_whoever_owns_the_database_gets_neither_files_nor_hosts_nor_passwords(
    dsn: str, tmp_path: Path
) -> None:
    with opened(dsn, tmp_path) as stage:
        siege = Siege(stage, SEED, only=OTHERS)
        for number in range(ROUNDS):
            siege.play(number)
        assert siege.tally.found == []
        assert siege.tally.deeds > 0


@pytest.mark.parametrize("kind", ["jdbc", "none", "postgres"])
def test_no_format_disables_the_checks_of_locations_and_hosts(dsn: str, tmp_path: Path, kind: str) -> None:
    """Neither a location outside the roots nor a host that is not allowed reaches a script."""
    with opened(dsn, tmp_path) as stage:
        for dataset, column, value in (
            ("raw", "location", f"{stage.outside}/secret.csv"),
            ("src", "hostname", FOREIGN),
        ):
            asked = sql.SQL("SELECT format, {} FROM dataflow.dataset WHERE datasetid = %s").format(
                sql.Identifier(column)
            )
            change = sql.SQL("UPDATE dataflow.dataset SET format = %s, {} = %s WHERE datasetid = %s").format(
                sql.Identifier(column)
            )
            [kept] = stage.connection.execute(asked, [dataset]).fetchall()
            # A superuser can disable triggers and constraints.
            stage.connection.execute("SET session_replication_role = replica")
            stage.connection.execute(change, [kind, value, dataset])
            stage.connection.execute("SET session_replication_role = DEFAULT")
            dataid = stage.ready()
            eventually(partial(_has_ended, stage, dataid))
            stage.connection.execute(change, [*kept, dataset])
            assert stage.violations() == []


def _has_ended(stage: Stage, dataid: str) -> bool:
    return stage.status("clean", dataid) in {"FAILED", "READY"}


@pytest.mark.parametrize(
    "only", [r"(column|rows) dataset\b", r"function (work_order|attempt_order|take_order|claim)\("]
)
def test_rewritten_datasets_and_orders_yield_nothing(dsn: str, tmp_path: Path, only: str) -> None:
    with opened(dsn, tmp_path) as stage:
        siege = Siege(stage, SEED, only=only)
        siege.play(0)
        assert siege.tally.found == []
