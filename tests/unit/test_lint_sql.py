"""Each rule for SQL files finds the mistake that it is for."""

from __future__ import annotations

import pytest

from tests.lint_sql import Source, check, planner_blocks

DEFINER = "CREATE FUNCTION dataflow._f() RETURNS void LANGUAGE sql SECURITY DEFINER {} AS $$ SELECT $$;"
LOCKED = "CREATE FUNCTION dataflow._f() RETURNS void LANGUAGE plpgsql SET search_path = pg_temp SET lock_timeout = 0 AS $$ BEGIN PERFORM dataflow._claim_lock(); {} END $$;"
INLINED = "CREATE FUNCTION dataflow._f() RETURNS void LANGUAGE sql AS $$ {} $$;"
BODY = "CREATE FUNCTION dataflow._f() RETURNS void LANGUAGE plpgsql SET search_path = pg_temp AS $$ BEGIN {} END $$;"
PLANNED = BODY.replace("pg_temp AS", "pg_temp SET lock_timeout = 0 {} AS").replace("{} END", "END")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("SELEC 1", "does not parse"),
        (BODY.format("x := ;"), "the body of dataflow._f does not parse"),
        (BODY.format("EXECUTE 'SELECT 1';"), "builds SQL at run time"),
        (
            BODY.format("FOR x IN EXECUTE 'SELECT 1' LOOP END LOOP;").replace(
                "BEGIN", "DECLARE x int; BEGIN"
            ),
            "builds SQL",
        ),
        (BODY.format("RETURN QUERY EXECUTE 'SELECT 1';").replace("void", "SETOF int"), "builds SQL"),
        (DEFINER.format(""), "without SET search_path"),
        (DEFINER.format("SET search_path = dataflow"), "without SET search_path"),
        (BODY.replace("SET search_path = pg_temp", "").format(""), "without SET search_path"),
        (INLINED.replace("void", "trigger").format("SELECT"), "without SET search_path"),
        (INLINED.format("SELECT FROM job"), "of which schema job is"),
        (INLINED.format("SELECT FROM dataflow.job WHERE EXISTS (SELECT FROM x)"), "of which schema x is"),
        ("CREATE TABLE dataflow.t ();", "table dataflow.t has no COMMENT"),
        (
            "CREATE TABLE dataflow.t (a int); COMMENT ON TABLE dataflow.t IS 'x';",
            "column dataflow.t.a has no COMMENT",
        ),
        ("ALTER TABLE dataflow.t ADD COLUMN a int;", "column dataflow.t.a has no COMMENT"),
        (
            "CREATE FUNCTION dataflow.f() RETURNS void LANGUAGE sql AS $$ SELECT $$;",
            "function dataflow.f has no COMMENT",
        ),
        ("CREATE VIEW dataflow.v AS SELECT 1;", "view dataflow.v has no COMMENT"),
        (BODY.format("PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0));"), "by itself"),
        (BODY.format("PERFORM dataflow._claim_lock();"), "without SET lock_timeout"),
        (LOCKED.format("PERFORM FROM t FOR UPDATE;"), "may wait under the claim lock of dataflow._f"),
        (
            LOCKED.format("PERFORM dataflow._g();")
            + BODY.format("PERFORM FROM t FOR SHARE OF t;").replace("._f", "._g"),
            "dataflow._g may wait",
        ),
        (BODY.format(r"PERFORM 'a' ~ '\d';"), "backslash"),
        (PLANNED.format("SET enable_hashjoin = off"), "no block of sql/README.md: enable_hashjoin = off"),
        (PLANNED.format("SET enable_seqscan = off SET jit = on"), "no block of sql/README.md"),
    ],
)
def test_a_mistake_is_found(text: str, mistake: str) -> None:
    found = list(check([Source("x.sql", text, is_function_file=True)]))
    assert len(found) == 1
    assert mistake in found[0]


@pytest.mark.parametrize(
    "text",
    [
        DEFINER.format("SET search_path = dataflow, pg_temp"),
        BODY.format("PERFORM 1;"),
        INLINED.format("WITH x AS (SELECT FROM dataflow.job) SELECT FROM x"),
        LOCKED.format("PERFORM FROM t FOR UPDATE OF t SKIP LOCKED; PERFORM FROM t FOR KEY SHARE NOWAIT;"),
        BODY.format(r"PERFORM 'a' ~ E'\\d';"),
        PLANNED.format("SET enable_seqscan = off"),
        "DO $$ BEGIN PERFORM 1; END $$;",
        "CREATE TABLE t (a int); COMMENT ON TABLE t IS 'x'; COMMENT ON COLUMN t.a IS 'x'; CREATE INDEX ON t (a);",
    ],
)
def test_what_follows_the_rules_is_left_alone(text: str) -> None:
    assert list(check([Source("x.sql", text, is_function_file=True)])) == []


def test_every_block_of_planner_settings_that_is_described_is_read() -> None:
    assert {name: len(settings) for name, settings in planner_blocks().items()} == {
        "lookup": 1,
        "kept lookup": 3,
        "nested lookup": 7,
        "hot path": 10,
        "transition tables": 2,
        "whole dataset": 1,
    }
