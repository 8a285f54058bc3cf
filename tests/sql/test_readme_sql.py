"""Every statement of docs/sql.md works as it is printed, and recovers the weekend."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, LiteralString, cast

import pytest
from psycopg.types.json import Jsonb

from tests import readme

if TYPE_CHECKING:
    from tests.fix_world import World

PAGE = readme.DOCS / "sql.md"


def statements(title: str) -> list[bytes]:
    """The statements of a section, one a line, without comments."""
    [block] = readme.blocks(title, "sql", PAGE)
    return [line.split("--")[0].strip().encode() for line in block.splitlines() if line.strip()]


RECIPES = [
    cast("LiteralString", statement)
    for statement in re.findall(r"`((?:SELECT|UPDATE) [^`]*;)`", readme.section("Recipes", PAGE))
]


@pytest.fixture
def retail(world: World) -> World:
    world.job("clean_orders", "raw_orders", "orders", params=Jsonb({"least": 5}))
    world.job("sum_orders", "orders", "totals")
    return world


def test_the_weekend_is_recovered_by_what_the_page_says(retail: World) -> None:
    retail.ready("raw_orders", "2026-01-01", "2026-01-02")
    daemon = retail.daemon()
    daemon.fail(*daemon.claim(), code="NETWORK")
    assert daemon.claim() == []
    for statement in statements("Recover a weekend"):
        retail.connection.execute(statement)
    runs = daemon.work_off()
    assert runs.index(("clean_orders", "2026-01-01")) < runs.index(("sum_orders", "2026-01-01"))
    assert {retail.status("totals", day) for day in ("2026-01-01", "2026-01-02")} == {"READY"}


def test_every_statement_of_the_table_does_something(retail: World) -> None:
    retail.ready("raw_orders", "2025-11-12", "2026-01-01")
    retail.daemon().work_off()
    assert len(RECIPES) >= 14
    for statement in RECIPES:
        # A million dataids would take too long.
        small = statement.replace("1000000", "100")
        retail.connection.execute(small)


def test_what_the_page_declares_is_declared(world: World) -> None:
    for statement in statements("Declaring by SQL"):
        assert world.connection.execute(statement).fetchone() == ("created",)
