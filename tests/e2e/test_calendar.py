"""The calendar service of a daemon while another session has a calendar's row locked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_daemon import Shop, StartDaemon
    from tests.fix_postgres import Server

HOURLY = """
    UPDATE dataflow.dataset SET retired = now() WHERE calendar IS NOT NULL;
    INSERT INTO dataflow.dataset (datasetid, format, calendar, calendar_start, calendar_next)
    VALUES ('hours', 'none', 'hourly', date_trunc('hour', now()) - interval '2 hours', date_trunc('hour', now()) - interval '2 hours')
"""
READY = "SELECT count(*) FROM dataflow.datastatus WHERE datasetid = 'hours' AND status = 'READY'"
TICKS = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = 'dataflow' AND funcname = 'tick'"
LOOKED_SECONDS = 3.0
AT_MOST = 12  # pauses that double from 0.1 s on fit about six times into three seconds


@pytest.fixture
def counted(server: Server) -> Iterator[None]:
    """Lets the server count the calls of functions."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET track_functions = 'pl'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET track_functions")
            connection.execute("SELECT pg_reload_conf()")


@pytest.mark.usefixtures("counted")
def test_a_locked_calendar_is_tried_at_growing_intervals_and_goes_on_when_it_is_free(
    shop: Shop, start_daemon: StartDaemon, dsn: str
) -> None:
    shop.job("true")
    shop.connection.execute(HOURLY)
    with psycopg.connect(dsn) as somebody:
        somebody.execute("SELECT FROM dataflow.dataset WHERE datasetid = 'hours' FOR UPDATE")
        daemon = start_daemon()
        eventually(lambda: shop.value(TICKS) > 0)
        before, until = shop.value(TICKS), time.monotonic() + LOOKED_SECONDS
        # A session publishes its counts now and then, so that one look at the end could come too early.
        eventually(lambda: time.monotonic() > until or shop.value(TICKS) - before > AT_MOST)
        assert shop.value(TICKS) - before <= AT_MOST
        assert shop.value(READY) == 0
        assert daemon.events("calendar.ticked") == []
    eventually(lambda: shop.value(READY) >= 2)  # three, if an hour has ended meanwhile
    assert daemon.said("calendar.ticked")[0]["periods"] >= 2
