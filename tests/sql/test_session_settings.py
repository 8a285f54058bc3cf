"""No decision depends on a session's settings: repeats the tests of mappings, calendars and order under other settings.

Each test gets a database where all sessions, of operators and daemons, begin with hostile settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from tests.sql.test_calendars import *  # noqa: F403 - the same tests, in other sessions
from tests.sql.test_mappings import *  # noqa: F403

if TYPE_CHECKING:
    from tests.fix_world import World

HOSTILE = {
    "kolkata": {
        "TimeZone": "Asia/Kolkata", "DateStyle": "SQL, DMY", "IntervalStyle": "sql_standard",
        "extra_float_digits": "-15", "bytea_output": "escape", "standard_conforming_strings": "off",
        "escape_string_warning": "off", "search_path": "hostile, pg_catalog",
    },
    "st_johns": {
        "TimeZone": "America/St_Johns", "DateStyle": "German", "IntervalStyle": "iso_8601",
        "transform_null_equals": "on", "array_nulls": "off", "default_transaction_isolation": "read committed",
        "search_path": "hostile, pg_catalog",
    },
}  # fmt: skip
# Objects of another schema that hide those of pg_catalog and dataflow.
IMPOSTORS = """
    CREATE SCHEMA hostile;
    CREATE FUNCTION hostile.upper(text) RETURNS text LANGUAGE sql AS $$ SELECT 'READY' $$;
    CREATE FUNCTION hostile.to_char(timestamp, text) RETURNS text LANGUAGE sql AS $$ SELECT '2000-01-01' $$;
    CREATE FUNCTION hostile.date_trunc(text, timestamp) RETURNS timestamp LANGUAGE sql AS $$ SELECT $2 $$;
    CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '2000-01-01' $$;
    CREATE TABLE hostile.job ();
"""


@pytest.fixture(params=HOSTILE, autouse=True)
def dsn(request: pytest.FixtureRequest, dsn: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(IMPOSTORS)
        for name, value in HOSTILE[request.param].items():
            setting = sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                sql.Identifier(connection.info.dbname),
                sql.Identifier(name),
                # search_path is a list of names and not a string
                sql.SQL("hostile, pg_catalog") if name == "search_path" else sql.Literal(value),
            )
            connection.execute(setting)
    return dsn


def test_plain_sql_works_under_other_settings(pipeline: World) -> None:
    pipeline.do("SET ROLE dataflow_operator")
    pipeline.do("SELECT dataflow.ready('raw', '1')")
    pipeline.do("RESET ROLE")
    daemon = pipeline.daemon()
    assert daemon.work_off() == [("clean_orders", "1"), ("sum_orders", "1")]
    assert pipeline.set_status("clean", "1", "rerun") == 1
    assert pipeline.status("clean", "1") == "RESUBMIT"
    with pytest.raises(psycopg.Error, match="is no status"):
        pipeline.set_status("clean", "1", "nonsense")
    assert daemon.work_off() == [("clean_orders", "1")]


def test_a_claim_reads_what_the_last_claim_of_the_session_kept(world: World) -> None:
    """A session keeps the time of its last scan as text, and reads it under the same and under other settings."""
    world.job("copy", "raw", "copies")
    world.ready("raw", *map(str, range(20)))
    daemon = world.daemon()
    assert len(daemon.claim(5)) == 5
    daemon.connection.execute("SET DateStyle = 'ISO, YMD'")
    daemon.connection.execute("SET TimeZone = 'UTC'")
    found = daemon.connection.execute(
        "SELECT dataid FROM dataflow.claim(%s, %s, 5)", [daemon.name, daemon.incarnation]
    )
    assert len(found.fetchall()) == 5


def test_dataids_sort_and_match_the_same(world: World) -> None:
    assert world.value("SELECT dataflow.sortkey('v2') < dataflow.sortkey('v10')")
    assert world.value("SELECT dataflow.matches('a_1', 'a_?') AND NOT dataflow.matches('ab1', 'a_?')")
    assert world.value("SELECT count(*) FROM dataflow.dataid_range('2026-01-30..2026-02-02')") == 4
