"""Which attempts a daemon may continue after it has lost its claiming session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_daemon import Shop, StartDaemon

CUT = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE application_name = 'dataflowd d1' AND datname = current_database()
"""


def test_a_renewed_lease_keeps_attempts_alive_while_their_locks_cannot_be_retaken(
    shop: Shop, start_daemon: StartDaemon, dsn: str, tmp_path: Path
) -> None:
    shop.job(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done")
    daemon = start_daemon(env={"DATAFLOW_POLL": "600", "DATAFLOW_LEASE": "3"})
    shop.ready(1)
    daemon.said("attempt.started")
    with psycopg.connect(dsn) as somebody:
        # The claim lock: retake_attempts() waits for it and gives up; renew_lease() does not need it.
        somebody.execute("SELECT pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0))")
        last = shop.value("SELECT lease_until FROM dataflow.daemon")
        assert shop.connection.execute(CUT).fetchall() == [(True,)]
        # Waits until the lease has been renewed beyond the end that it had before the cut.
        eventually(lambda: shop.value("SELECT lease_until > %s + lease FROM dataflow.daemon", last))
    daemon.said("lease.retaken")
    (tmp_path / "go").touch()
    eventually(lambda: shop.count("READY") == 1)
    assert shop.outcomes() == ["DONE"]
    assert daemon.events("lease.ending") == []
