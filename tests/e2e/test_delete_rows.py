"""`delete --data`: rows in tables are deleted after the control database has deleted the runs, and before that commit."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from dataflowd.model.errors import EXIT
from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import Chunk, Input
from dataflowd.storage.tables import catalog, ledger, reading
from dataflowd.storage.tables.place import table_of

if TYPE_CHECKING:
    from dataflowd.model.work_order import Dataset
    from tests.fix_postgres import RunCtl
    from tests.fix_tables import Warehouse
    from tests.fix_world import Daemon, World

ROWS = "SELECT shard, count(*) FROM loaded GROUP BY 1 ORDER BY 1"
# Refuses the delete after the preview, as if one of the runs had begun meanwhile.
REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'it runs again' USING ERRCODE = 'DF409'; END $$;
    CREATE TRIGGER refuse BEFORE DELETE ON dataflow.attempt FOR EACH ROW EXECUTE FUNCTION refuse();
"""
# Refuses the commit, when the rows are already deleted.
REFUSE_COMMIT = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$;
    CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON dataflow.attempt DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse();
"""
SLOW_DELETE = """
    CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$;
    CREATE TRIGGER slowly BEFORE DELETE ON loaded FOR EACH STATEMENT EXECUTE FUNCTION slowly();
"""


@pytest.fixture
def target(warehouse: Warehouse) -> Dataset:
    warehouse.do("CREATE TABLE loaded (id int, shard text)")
    return warehouse.dataset("loaded", options={"dataid_column": "shard"})


@pytest.fixture
def daemon(world: World, warehouse: Warehouse, target: Dataset) -> Daemon:
    """A daemon that has made the chunks a and b of a table, of ten rows each."""
    world.dataset("loaded", location=None, format="postgres", tablename="loaded", **warehouse.there)
    world.do(
        """UPDATE dataflow.dataset SET options = '{"dataid_column": "shard"}' WHERE datasetid = 'loaded'"""
    )
    world.job("load", "raw", "loaded")
    world.ready("raw", "a", "b")
    made = world.daemon()
    attempts = made.claim()
    table = table_of(target, [warehouse.host])
    with catalog.connection(table) as opened:
        ledger.make(opened, table)
        for attempt in attempts:
            ledger.take(opened, table, attempt.dataid, attempt.attempt)
            warehouse.do("INSERT INTO loaded SELECT i, %s FROM generate_series(1, 10) i", attempt.dataid)
            ledger.enter(opened, table, attempt.dataid, attempt.attempt, 10)
    assert made.finish(*attempts) == "accepted"
    return made


def delete(run_ctl: RunCtl, warehouse: Warehouse) -> tuple[int, str]:
    done = run_ctl("delete", "load", "--data", "--yes", env={"DATAFLOW_ALLOWED_HOSTS": warehouse.host})
    return done.returncode, done.stdout + done.stderr


def test_a_refused_delete_removes_no_row(
    warehouse: Warehouse, world: World, run_ctl: RunCtl, daemon: Daemon
) -> None:
    assert daemon.claim() == []
    world.do(REFUSE)
    code, said = delete(run_ctl, warehouse)
    assert code == EXIT["NOT_ALLOWED"]
    assert "it runs again" in said
    assert warehouse.do(ROWS) == [("a", 10), ("b", 10)]
    assert world.status("loaded", "a") == "READY"


def test_a_delete_does_not_wait_forever_for_a_locked_table_and_deletes_nothing(
    warehouse: Warehouse, world: World, run_ctl: RunCtl, daemon: Daemon
) -> None:
    assert daemon.claim() == []
    with closing(psycopg.connect(warehouse.dsn)) as somebody:
        somebody.execute("LOCK TABLE loaded IN SHARE MODE")
        code, said = delete(run_ctl, warehouse)
    assert code == EXIT["NOT_ALLOWED"]
    assert "another session has locked the table" in said
    assert "the runs of load stay" in said
    assert warehouse.do(ROWS) == [("a", 10), ("b", 10)]
    assert world.status("loaded", "a") == "READY"


def test_rows_deleted_before_a_failed_commit_are_not_read_and_a_resubmit_makes_them_again(
    warehouse: Warehouse, world: World, run_ctl: RunCtl, daemon: Daemon, target: Dataset
) -> None:
    attempt = world.value("SELECT max(attempt) FROM dataflow.attempt WHERE dataid = 'a'")
    world.do(REFUSE_COMMIT)
    code, said = delete(run_ctl, warehouse)
    assert code != 0
    assert "not today; the runs of load stay, but their rows in loaded are gone" in said
    assert "dataflowctl resubmit load --status READY" in said
    assert warehouse.do(ROWS) == []
    assert world.status("loaded", "a") == "READY"
    chunk = Chunk(dataid="a", files=({"path": "public.loaded", "attempt": attempt},), rows=10)
    with pytest.raises(AttemptError, match="no attempt that is known") as refused:
        reading.check_input(Input(dataset=target, chunks=(chunk,)), [warehouse.host])
    assert refused.value.code == "WRONG_DATA"
    world.do("DROP TRIGGER refuse ON dataflow.attempt")
    world.resubmit(job="load", status="READY")
    assert daemon.runs() == {("load", "a"), ("load", "b")}


def test_rows_and_runs_are_deleted_together(
    warehouse: Warehouse, world: World, run_ctl: RunCtl, daemon: Daemon
) -> None:
    assert daemon.claim() == []
    # Deleting the rows takes longer than the server lets the transaction of the control database be idle.
    warehouse.do(SLOW_DELETE)
    world.do("ALTER ROLE CURRENT_USER SET idle_in_transaction_session_timeout = '1s'")
    try:
        code, said = delete(run_ctl, warehouse)
    finally:
        world.do("ALTER ROLE CURRENT_USER RESET idle_in_transaction_session_timeout")
    assert (code, "deleted 20 rows of loaded" in said) == (0, True), said
    assert warehouse.do(ROWS) == []
    assert world.status("loaded", "a") is None
