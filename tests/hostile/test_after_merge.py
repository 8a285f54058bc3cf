"""The suite against what the other fixes of the same issue close: formats that switch checks off, modes of directories."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from tests.fix_daemon import eventually
from tests.hostile.siege import Siege
from tests.hostile.stage import FOREIGN, opened
from tests.hostile.test_local_user import alive, everything, needs_root, reached

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_daemon import Daemon
    from tests.hostile.stage import Stage

__all__ = ["alive"]


@needs_root
def test_nobody_else_reaches_logs_or_spool(alive: tuple[Path, Daemon]) -> None:
    data_dir, _ = alive
    assert reached([*everything(data_dir / "log"), *everything(data_dir / "run")], []) == []


@pytest.mark.parametrize("kind", ["jdbc", "none", "postgres"])
def test_no_format_switches_the_checks_of_places_off(dsn: str, tmp_path: Path, kind: str) -> None:
    """A location outside the roots, then a host that is not allowed: neither reaches a script."""
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
            # Neither triggers nor rules are in a superuser's way.
            stage.connection.execute("SET session_replication_role = replica")
            stage.connection.execute(change, [kind, value, dataset])
            stage.connection.execute("SET session_replication_role = DEFAULT")
            dataid = stage.ready()
            eventually(partial(_has_ended, stage, dataid))
            stage.connection.execute(change, [*kept, dataset])
            assert stage.violations() == []


def _has_ended(stage: Stage, dataid: str) -> bool:
    return stage.status("clean", dataid) in {"FAILED", "READY"}


@pytest.mark.parametrize("only", [r"(column|rows) dataset\b", r"function (work_order|claim)\("])
def test_whoever_rewrites_datasets_and_orders_gets_nothing(dsn: str, tmp_path: Path, only: str) -> None:
    with opened(dsn, tmp_path) as stage:
        siege = Siege(stage, 16, only=only)
        siege.play(0)
        assert siege.tally.found == []
