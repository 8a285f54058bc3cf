"""Chunks that another version of the code made: what changed, what an upgrade keeps fresh, and what a person accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dataflowd.database import db

if TYPE_CHECKING:
    from tests.fix_world import World

DAYS = ("2026-01-01", "2026-01-02", "2026-01-10")
OLD, NEW, NEXT = "0" * 64, "1" * 64, "2" * 64
PARTS = {"jobs.py": "a", "jobs.py:clean": "b", "jobs.py:LIMIT": "c"}


@pytest.fixture
def made(world: World) -> World:
    """Chunks that a daemon of release 0.1 has made."""
    world.job("clean_orders", "raw", "clean")
    world.do("SELECT dataflow.code_version('clean_orders', %s, 'config')", OLD)
    world.ready("raw", *DAYS)
    daemon = world.daemon()
    daemon.finish(*daemon.claim(), code_hash=OLD, config_hash="config")
    return world


def tell(world: World, code: str, whole: str | None, config: str = "config", **parts: str) -> bool:
    statement = "SELECT dataflow.code_version('clean_orders', %s, %s, %s, %s)"
    return bool(world.value(statement, code, config, Jsonb(PARTS | parts), whole))


def stale(world: World) -> list[tuple[Any, ...]]:
    return world.rows("SELECT dataid, because, changed FROM dataflow.stale ORDER BY dataid")


def accept(world: World, *patterns: str, **named: Any) -> list[str]:
    statement = "SELECT dataid FROM dataflow.accept('clean_orders', %s, %s, %s, %s, %s)"
    order = ("reason", "with_code", "with_config", "dry_run")
    given = [named.get(name, False if name == "dry_run" else None) for name in order]
    return [row[0] for row in world.rows(statement, list(patterns) or None, *given)]


def test_an_upgrade_makes_no_chunk_stale_and_later_changes_are_named(made: World) -> None:
    parameters = {"jobids": ["clean_orders"], "code_hashes": [NEW], "whole_hashes": [OLD]}
    assert made.connection.execute(db.query("other_code"), parameters).fetchall() == []
    assert tell(made, NEW, OLD)
    assert not tell(made, NEW, OLD)
    assert stale(made) == []
    # A daemon of release 0.1 reports the same code by its old hash.
    assert not made.value("SELECT dataflow.code_version('clean_orders', %s, 'config')", OLD)
    assert stale(made) == []
    tell(made, NEXT, "3" * 64, **{"jobs.py:clean": "changed", "rates.py:of": "d"})
    assert [row[2] for row in stale(made)] == [["jobs.py:clean", "rates.py:of (new)"]] * len(DAYS)
    tell(made, NEW, OLD)
    assert stale(made) == []


def test_chunks_of_code_that_changed_with_the_upgrade_are_stale_without_names_of_changes(made: World) -> None:
    tell(made, NEW, "3" * 64)
    assert stale(made) == [(day, ["CODE"], None) for day in DAYS]


def test_what_is_accepted_is_fresh_until_the_code_changes_again(made: World) -> None:
    tell(made, NEW, OLD)
    tell(made, NEXT, None, **{"jobs.py:LIMIT": "changed"})
    assert accept(made, "2026-01-0*", dry_run=True) == list(DAYS[:2])
    assert len(stale(made)) == len(DAYS)
    assert accept(made, "2026-01-0*", reason="rounding only") == list(DAYS[:2])
    assert stale(made) == [(DAYS[2], ["CODE"], ["jobs.py:LIMIT"])]
    assert made.rows("SELECT dataid FROM dataflow.select_runs('{\"stale\": true}')") == [(DAYS[2],)]
    [[detail]] = made.rows("SELECT detail FROM dataflow.why('clean_orders', %s) WHERE number = 0", DAYS[0])
    assert "accepted it as it is with the code of now" in detail
    assert detail.endswith("rounding only")
    assert made.rows(
        "SELECT kind, code, from_status, to_status, reason, actor = session_user FROM dataflow.history('clean_orders', %s)"
        " WHERE kind = 'accepted'",
        DAYS[0],
    ) == [("accepted", "ACCEPTED", OLD, NEXT, "rounding only", True)]
    assert accept(made, DAYS[0]) == []
    tell(made, "4" * 64, None)
    assert len(stale(made)) == len(DAYS)
    # Accepted once more, the chunks are fresh; and they are fresh when the code that made them comes back.
    assert accept(made) == list(DAYS)
    assert stale(made) == []
    tell(made, NEW, OLD)
    assert stale(made) == []


def test_a_new_version_is_not_accepted_because_the_one_before_was(made: World) -> None:
    tell(made, NEW, OLD)
    tell(made, NEXT, None)
    accept(made, DAYS[0])
    made.resubmit(dataid=DAYS[0], status="READY")
    daemon = made.daemon("late")
    daemon.finish(daemon.claim_one(), code_hash=NEW, config_hash="config")
    assert DAYS[0] in {row[0] for row in stale(made)}


def test_older_inputs_are_not_accepted(made: World) -> None:
    tell(made, NEW, OLD)
    made.ready("raw", DAYS[0])
    assert accept(made) == []
    tell(made, NEXT, None, config="other")
    assert accept(made) == list(DAYS)
    assert stale(made) == [(DAYS[0], ["INPUT"], None)]


def test_the_code_that_was_not_shown_is_not_accepted(made: World) -> None:
    tell(made, NEW, OLD)
    tell(made, NEXT, None)
    with pytest.raises(psycopg.Error) as refused:
        accept(made, with_code=NEW, with_config="config")
    assert refused.value.sqlstate == "DF409"
    assert "dataflowctl accept clean_orders" in (refused.value.diag.message_hint or "")
    assert len(stale(made)) == len(DAYS)
    assert accept(made, with_code=NEXT, with_config="config") == list(DAYS)


def test_what_was_accepted_is_forgotten_with_its_chunk(made: World) -> None:
    tell(made, NEXT, None)
    accept(made)
    made.do("SELECT dataflow.delete_chunk('clean', %s)", DAYS[0])
    assert made.value("SELECT count(*) FROM dataflow.acceptance") == len(DAYS) - 1
