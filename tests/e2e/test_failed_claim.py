"""A claim fails in the middle: Postgres rolls its transaction back, and the daemon has to release its session-level locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from tests.fix_daemon import Shop, StartDaemon

REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON dataflow.attempt FOR EACH ROW WHEN (NEW.dataid = 'bad') EXECUTE FUNCTION refuse();
"""
LOCKS = """
    SELECT count(*) FROM pg_locks l, dataflow._run_lock('work', 'bad') AS k
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND (l.classid::bigint << 32) + l.objid::bigint = k
"""


def test_a_claim_that_fails_keeps_no_run_locked(shop: Shop, start_daemon: StartDaemon) -> None:
    """A lock that stays would keep other daemons from the run. The daemon's running attempts go on."""
    shop.job("test $dataid != long || while test ! -e $HOME/go; do sleep 0.1; done")
    shop.connection.execute(REFUSE)
    daemon = start_daemon()
    shop.ready("long")
    eventually(lambda: shop.live() == 1)
    shop.ready("bad")
    assert (
        daemon.said("claim.failed")[0]["error"] == "the disk is full"
    )  # without the context of the SQL function
    daemon.said("lease.retaken")
    shop.connection.execute("SELECT dataflow.hold('raw', 'bad', 'a bad disk')")
    eventually(lambda: shop.value(LOCKS) == 0)
    shop.connection.execute("DROP TRIGGER refuse ON dataflow.attempt")
    shop.connection.execute("SELECT dataflow.release('raw', 'bad')")
    shop.flow.with_name("go").touch()
    eventually(lambda: shop.count("READY") == 2)
    assert shop.outcomes() == ["DONE", "DONE"]
