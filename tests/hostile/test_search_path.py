"""A session chooses its own search_path. This does not change what our functions and triggers do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.fix_world import World

UNPINNED = """
SELECT p.proname::text, l.lanname::text, p.prosecdef, p.prorettype = 'trigger'::regtype
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
WHERE p.pronamespace = 'dataflow'::regnamespace AND p.prokind <> 'a'
    AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS c WHERE c ~ '^search_path=.*pg_temp$')
"""


def test_every_function_has_its_own_search_path_or_is_part_of_its_callers_query(world: World) -> None:
    """Postgres inlines a SQL function without a search_path into the calling query, with the caller's rights."""
    found = world.rows(UNPINNED)
    assert found
    wrong = [row for row in found if row[1:] != ("sql", False, False)]
    assert wrong == []


def test_a_function_of_a_users_own_schema_decides_nothing_in_our_triggers(pipeline: World) -> None:
    """`STOLEN` is no status. The user's own upper() returns a valid status for it, which would pass the check."""
    pipeline.do("SELECT dataflow.ready('raw', '2026-01-01')")
    pipeline.do("CREATE SCHEMA evil")
    pipeline.do("CREATE FUNCTION evil.upper(text) RETURNS text LANGUAGE sql AS $$ SELECT 'HOLD' $$")
    pipeline.do("GRANT USAGE ON SCHEMA evil TO dataflow_operator")
    with pytest.raises(psycopg.Error, match="STOLEN"):
        _attack(pipeline)
    # Proves that the attack itself works.
    pipeline.do("ALTER FUNCTION dataflow._datastatus_by_hand() RESET search_path")
    _attack(pipeline)
    assert pipeline.value("SELECT status FROM dataflow.datastatus WHERE datasetid = 'raw'") == "HOLD"


def _attack(world: World) -> None:
    with world.connection.transaction():
        world.do("SET LOCAL ROLE dataflow_operator")
        world.do("SET LOCAL search_path = evil, pg_catalog")
        world.do("UPDATE dataflow.datastatus SET status = 'STOLEN' WHERE datasetid = 'raw'")
