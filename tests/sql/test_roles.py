"""What each role may do, and that it may do nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest

from tests.fix_postgres import run_program

if TYPE_CHECKING:
    from dataflowd.host.settings import Settings
    from tests.fix_postgres import Server
    from tests.fix_world import World

DAY = "2026-01-01"
OPERATES: list[LiteralString] = [
    "SELECT dataflow.ready('raw', '2026-01-02')",
    "DO $$ BEGIN PERFORM dataflow.ready('raw', '2026-01-02'); PERFORM dataflow.unregister('raw', '{2026-01-02}', 'keep'); END $$",
    "SELECT dataflow.hold('raw', '2026-01-01', 'bad feed')",
    "SELECT dataflow.release('raw', '2026-01-03')",
    "SELECT dataflow.validated('raw', '2026-01-01')",
    "SELECT dataflow.cancel('clean_orders', '2026-01-01')",
    "SELECT * FROM dataflow.resubmit('{}')",
    "UPDATE dataflow.datastatus SET status = 'RESUBMIT'",
    "UPDATE dataflow.control SET concurrency = 3 WHERE scope = 'global'",
    "SELECT dataflow.pause('job:clean_orders')",
    "SELECT dataflow.set_concurrency('job:clean_orders', 2)",
    "SELECT dataflow.set_runners('global', 2)",
    "SELECT dataflow.set_slots('global', 2)",
    "SELECT dataflow.seal('raw', 'dataflowd-sealed-v1.x25519.00000000000000000000000000000000.AAAA')",
]
READS: list[LiteralString] = [
    "SELECT * FROM dataflow.five_questions('clean_orders', '2026-01-01')",
    "SELECT * FROM dataflow.five_questions_at('clean_orders', '2026-01-01', now())",
    "SELECT * FROM dataflow.why_at('clean_orders', '2026-01-01', now())",
    "SELECT * FROM dataflow.history('clean_orders', '2026-01-01')",
    "SELECT * FROM dataflow.evidence",
    "SELECT * FROM dataflow.status()",
    "SELECT * FROM dataflow.needs_hand()",
    "SELECT daemon, state FROM dataflow.daemons",
    "SELECT * FROM dataflow.daemon_session",
    "SELECT * FROM dataflow.frozen_sessions()",
    "SELECT * FROM dataflow.next_inputs('clean_orders')",
    "SELECT * FROM dataflow.affected_runs('raw', '2026-01-01')",
    "SELECT * FROM dataflow.stale",
    "SELECT * FROM dataflow.preview_ready('raw', '{2026-01-01}')",
    "SELECT * FROM dataflow.published",
    "SELECT jobid, dataid, outcome FROM dataflow.attempt",
    "SELECT * FROM dataflow.event",
    "SELECT * FROM dataflow.sealing_key()",
    "SELECT * FROM dataflow.keys",
]
FORGES: list[LiteralString] = [
    "SELECT * FROM dataflow.claim('alpha', gen_random_uuid(), 1)",
    "SELECT * FROM dataflow.claim_within('alpha', gen_random_uuid(), 1, '{}', 0)",
    "SELECT * FROM dataflow.finish('[]')",
    "SELECT dataflow.register_daemon('beta', 'host', 1)",
    "SELECT * FROM dataflow.rescue()",
    "SELECT * FROM dataflow.end_frozen_sessions()",
    "SELECT * FROM dataflow.begin_instead('clean_orders')",
    "SELECT token FROM dataflow.attempt",
    "SELECT incarnation FROM dataflow.daemon",
    "UPDATE dataflow.datastatus SET version = 7",
    "UPDATE dataflow.attempt SET outcome = 'DONE', ended = now()",
    "INSERT INTO dataflow.work (jobid, dataid, sortkey) VALUES ('clean_orders', 'x', 'x')",
    "DELETE FROM dataflow.event",
    "SELECT dataflow.rebuild_work()",
    "SELECT * FROM dataflow.apply_flow('{}')",
    "INSERT INTO dataflow.job (jobid) VALUES ('mine')",
    "SELECT dataflow.add_key('x25519', decode(repeat('00', 32), 'hex'))",
    "SELECT dataflow.retire_key('00000000000000000000000000000000')",
    "UPDATE dataflow.dataset SET encryptedpass = NULL",
    "CREATE FUNCTION dataflow.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
]

# The functions that each role may call beside those that it inherits. A new grant needs a word here, so that a reviewer sees it.
CALLS = {
    "dataflow_reader": """
    _checked_dataid _chunk_location _code_of _described _first_moment _has_session _inputs _is_chunkid _is_name _known_daemon _known_dataset _known_job _limit_of _long_sortkey _mapped_inputs
    _mapped_runs _moments _not_given _number _session_name _shifted _written_to affected_runs attempts blockers bound_elsewhere causes chunk_grid chunk_map chunks code_of
    data_location dataid_range five_questions five_questions_at fixed_paths flow_conflicts frozen_sessions history job_stats lineage matches measures needs_hand
    next_inputs next_tick output_dataid overview partitionings period_add period_id
        period_start plan_flow preview_order preview_ready prunable quarantine_export quarantine_for_repair quarantine_groups
        quarantine_record quarantined rates required_inputs root_causes run_state runs schema_version sealing_key
        select_chunks select_runs sortkey status trial_order why why_at why_attempt
    """,
    "dataflow_operator": """
    _withdraw accept begin_run cancel cancel_runs collect create_partitioning delete_partitioning end_run hold hold_chunks new_run note_found pause pause_scopes ready
    release release_chunks renew_run replay replay_rows resolve resolve_records resubmit resubmit_with run_order seal set_concurrency set_runners set_slots shed unregister
    unresolve validated
    """,
    "dataflow_daemon": """
    _session_ended add_words attempt_order began begin_instead begin_run cancelled claim claim_new claim_run claim_within code_version collect end_frozen_sessions end_run
    expire_daemon finish fold_counters new_run queue_of ready register_daemon reloaded renew_lease renew_run rescue retake retake_attempts run_order serve_jobs settle started
    stop_daemon take_order tick waits work_order
    """,
}
# The tables and views, or their columns, that each role may use directly.
READER_SEES = """
    acceptance batch check_result chunk_count control counter daemon_session daemons dataset datasets datastatus deleted_version event evidence forced forgotten job
    job_code job_input job_like job_output jobs judgement key keys limits manifest measurement migration node_stat open_run partitioning published quarantine recheck
    row_replay stale work
"""
ATTEMPT_COLUMNS = """
    attempt jobid dataid number tries lost daemon tag forced inputs answers claimed started ended outcome code error remedy retry_at
    code_hash config_hash usage let_go params waits lease_until words
"""
DAEMON_COLUMNS = "daemon hostname pid session_pid environment version jobs unserved started lease lease_until stopped is_outside"
USES = {
    *(("dataflow_reader", "SELECT", name) for name in READER_SEES.split()),
    *(("dataflow_reader", "SELECT", f"attempt.{name}") for name in ATTEMPT_COLUMNS.split()),
    *(("dataflow_reader", "SELECT", f"daemon.{name}") for name in DAEMON_COLUMNS.split()),
    *(("dataflow_operator", "UPDATE", f"datastatus.{name}") for name in ("status", "reason")),
    *(
        ("dataflow_operator", "UPDATE", f"control.{name}")
        for name in ("concurrency", "paused", "runners", "slots")
    ),
    *(
        ("dataflow_operator", "INSERT", f"control.{name}")
        for name in ("scope", "concurrency", "paused", "runners", "slots")
    ),
    ("dataflow_daemon", "SELECT", "daemon"),
}
FUNCTION_GRANTS: LiteralString = """
    SELECT coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC'), p.proname::text
    FROM pg_proc p CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
    WHERE p.pronamespace = 'dataflow'::regnamespace AND a.grantee <> p.proowner
"""
TABLE_GRANTS: LiteralString = """
    SELECT coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC'), a.privilege_type, c.relname::text
    FROM pg_class c
    CROSS JOIN aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))) AS a
    WHERE c.relnamespace = 'dataflow'::regnamespace AND a.grantee <> c.relowner
    UNION ALL
    SELECT coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC'), a.privilege_type, c.relname || '.' || t.attname
    FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid CROSS JOIN aclexplode(t.attacl) AS a
    WHERE c.relnamespace = 'dataflow'::regnamespace AND a.grantee <> c.relowner
"""
SCHEMA_GRANTS: LiteralString = """
    SELECT coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC'), a.privilege_type
    FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) AS a WHERE n.nspname = 'dataflow' AND a.grantee <> n.nspowner
"""
MEMBERS: LiteralString = """
    SELECT member::regrole::text, roleid::regrole::text FROM pg_auth_members WHERE roleid::regrole::text LIKE 'dataflow%'
"""
BORROWED_RIGHTS: LiteralString = """
    SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'dataflow'::regnamespace AND p.prosecdef
        AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
"""


@pytest.fixture
def running(pipeline: World) -> World:
    """A pipeline with a running attempt and a held chunk."""
    pipeline.ready("raw", DAY)
    pipeline.do("SELECT dataflow.hold('raw', '2026-01-03')")
    pipeline.daemon().claim_one()
    pipeline.as_framework(
        "INSERT INTO dataflow.key (keyid, suite, public_key) VALUES (repeat('0', 32), 'x25519', '')"
    )
    return pipeline


def _refused(connection: psycopg.Connection, statements: list[LiteralString]) -> list[LiteralString]:
    refused = []
    for statement in statements:
        try:
            connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege:
            refused.append(statement)
        connection.rollback()
    return refused


def test_a_reader_sees_and_changes_nothing(server: Server, running: World) -> None:
    with server.login(running.dsn, "dataflow_reader") as dsn, psycopg.connect(dsn) as reader:
        assert _refused(reader, READS) == []
        assert _refused(reader, OPERATES + FORGES) == OPERATES + FORGES


def test_an_operator_operates_and_forges_nothing(server: Server, running: World) -> None:
    with server.login(running.dsn, "dataflow_operator") as dsn, psycopg.connect(dsn) as operator:
        assert _refused(operator, READS + OPERATES) == []
        assert _refused(operator, FORGES) == FORGES


def test_a_daemon_needs_no_more_than_its_role(server: Server, pipeline: World, settings: Settings) -> None:
    pipeline.ready("raw", DAY)
    with server.login(pipeline.dsn, "dataflow_daemon") as dsn:
        variables = {
            "DATAFLOW_DSN": dsn,
            "DATAFLOW_DATA_DIR": str(settings.data_dir),
            "HOME": str(settings.data_dir),
        }
        done = run_program("dataflowd", "run", "--once", "--engine", "noop", env=variables)
    assert done.returncode == 0, done.stderr
    assert pipeline.status("sums", DAY) == "READY"


def test_the_database_has_exactly_the_listed_grants(connection: psycopg.Connection) -> None:
    """PUBLIC is not listed above, so it must have no grant."""
    calls = {(role, name) for role, names in CALLS.items() for name in names.split()}
    assert set(connection.execute(FUNCTION_GRANTS).fetchall()) == calls
    assert set(connection.execute(TABLE_GRANTS).fetchall()) == USES
    enters = {(role, "USAGE") for role in CALLS}
    assert (
        set(connection.execute(SCHEMA_GRANTS).fetchall())
        - {("dataflow_admin", "CREATE"), ("dataflow_admin", "USAGE")}
        == enters
    )
    inherits = {("dataflow_operator", "dataflow_reader"), ("dataflow_daemon", "dataflow_reader")}
    assert set(connection.execute(MEMBERS).fetchall()) == inherits


def test_security_definer_functions_have_a_fixed_search_path(
    connection: psycopg.Connection,
) -> None:
    assert connection.execute(BORROWED_RIGHTS).fetchall() == []
