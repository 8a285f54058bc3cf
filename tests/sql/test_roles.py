"""What each role may do, and that it can do no more."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest
from psycopg import conninfo, sql

from tests.fix_postgres import run_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.settings import Settings
    from tests.fix_postgres import Server
    from tests.fix_world import World

DAY = "2026-01-01"
OPERATES: list[LiteralString] = [
    "SELECT dataflow.ready('raw', '2026-01-02')",
    "SELECT dataflow.hold('raw', '2026-01-01', 'bad feed')",
    "SELECT dataflow.release('raw', '2026-01-03')",
    "SELECT dataflow.validated('raw', '2026-01-01')",
    "SELECT dataflow.cancel('clean_orders', '2026-01-01')",
    "SELECT * FROM dataflow.resubmit('{}')",
    "UPDATE dataflow.datastatus SET status = 'RESUBMIT'",
    "UPDATE dataflow.control SET concurrency = 3 WHERE scope = 'global'",
    "SELECT dataflow.pause('job:clean_orders')",
    "SELECT dataflow.set_concurrency('job:clean_orders', 2)",
    "SELECT dataflow.seal('raw', 'dataflowd-sealed-v1.x25519.00000000000000000000000000000000.AAAA')",
]
READS: list[LiteralString] = [
    "SELECT * FROM dataflow.five_questions('clean_orders', '2026-01-01')",
    "SELECT * FROM dataflow.history('clean_orders', '2026-01-01')",
    "SELECT * FROM dataflow.status()",
    "SELECT * FROM dataflow.next_inputs('clean_orders')",
    "SELECT * FROM dataflow.affected_runs('raw', '2026-01-01')",
    "SELECT * FROM dataflow.stale",
    "SELECT jobid, dataid, outcome FROM dataflow.attempt",
    "SELECT * FROM dataflow.event",
    "SELECT * FROM dataflow.sealing_key()",
    "SELECT * FROM dataflow.keys",
]
FORGES: list[LiteralString] = [
    "SELECT * FROM dataflow.claim('alpha', gen_random_uuid(), 1)",
    "SELECT * FROM dataflow.finish('[]')",
    "SELECT dataflow.register_daemon('beta', 'host', 1)",
    "SELECT * FROM dataflow.rescue()",
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


@contextmanager
def _login(server: Server, dsn: str, role: str) -> Iterator[str]:
    """A DSN of somebody who is a member of just this role."""
    name = sql.Identifier(f"test_{role}")
    server.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(name, sql.Identifier(role)))
    try:
        yield conninfo.make_conninfo(dsn, user=f"test_{role}")
    finally:
        server.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.fixture
def running(pipeline: World) -> World:
    """With an attempt that runs, and a chunk that is held."""
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
    with _login(server, running.dsn, "dataflow_reader") as dsn, psycopg.connect(dsn) as reader:
        assert _refused(reader, READS) == []
        assert _refused(reader, OPERATES + FORGES) == OPERATES + FORGES


def test_an_operator_operates_and_forges_nothing(server: Server, running: World) -> None:
    with _login(server, running.dsn, "dataflow_operator") as dsn, psycopg.connect(dsn) as operator:
        assert _refused(operator, READS + OPERATES) == []
        assert _refused(operator, FORGES) == FORGES


def test_a_daemon_needs_no_more_than_its_role(server: Server, pipeline: World, settings: Settings) -> None:
    pipeline.ready("raw", DAY)
    with _login(server, pipeline.dsn, "dataflow_daemon") as dsn:
        variables = {
            "DATAFLOW_DSN": dsn,
            "DATAFLOW_DATA_DIR": str(settings.data_dir),
            "HOME": str(settings.data_dir),
        }
        done = run_program("dataflowd", "run", "--once", "--engine", "noop", env=variables)
    assert done.returncode == 0, done.stderr
    assert pipeline.status("sums", DAY) == "READY"
