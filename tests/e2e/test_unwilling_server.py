"""A server that answers, but cannot do what it is asked for a while: no result is lost, and no daemon dies."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from dataflowd import flow
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_daemon import Shop, StartDaemon
    from tests.fix_postgres import RunCtl, Server

NO_POLL = {"DATAFLOW_POLL": "600"}
FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.clean]
format = "csv"
location = "{{root}}/clean"
[job.work]
command = {command}
inputs = ["raw"]
outputs = ["clean"]
"""
REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = {state}; END $$;
    CREATE TRIGGER refuse BEFORE {event} ON dataflow.{table} FOR EACH ROW EXECUTE FUNCTION refuse();
"""
MANIFEST = "SELECT jsonb_array_length(files), bytes FROM dataflow.manifest"


def refuse(shop: Shop, table: str, event: str, state: str) -> None:
    named = {"table": sql.Identifier(table), "event": sql.SQL(event), "state": sql.Literal(state)}
    shop.connection.execute(sql.SQL(REFUSE).format(**named))


def declare(shop: Shop, script: str) -> None:
    text = FLOW.format(command=json.dumps(["sh", "-c", script]))
    shop.flow.write_text(text, encoding="utf-8")
    flow.apply(shop.connection, flow.load(shop.flow, shop.settings), prune=False)


@contextmanager
def read_only(server: Server) -> Iterator[None]:
    """Makes the server read-only, as during a switchover, or when an operator protects a disk that is almost full."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("state", ["25006", "53100", "42883", "XX000", "P0001"])
def test_a_result_that_cannot_be_stored_now_is_stored_later_with_its_manifest(
    shop: Shop, start_daemon: StartDaemon, state: str
) -> None:
    declare(shop, "printf 12345 > $clean_location/part.csv")
    refuse(shop, "manifest", "INSERT", state)
    daemon = start_daemon(env=NO_POLL)
    shop.ready(1)
    assert daemon.said("finish.postponed")[0]["sqlstate"] == state
    shop.connection.execute("DROP TRIGGER refuse ON dataflow.manifest")
    eventually(lambda: shop.count("READY") == 1)
    assert shop.outcomes() == ["DONE"]
    assert shop.connection.execute(MANIFEST).fetchall() == [(1, 5)]
    assert daemon.events("finish.refused") == []


@pytest.mark.parametrize("state", ["21000", "22023", "23514", "54000", "DF400"])
def test_a_result_that_can_never_be_stored_becomes_a_failure(
    shop: Shop, start_daemon: StartDaemon, state: str
) -> None:
    declare(shop, "printf 12345 > $clean_location/part.csv")
    refuse(shop, "manifest", "INSERT", state)
    start_daemon(env=NO_POLL)
    shop.ready(1)
    eventually(lambda: shop.count("FAILED") == 1)
    assert shop.value("SELECT code FROM dataflow.attempt") == "RESULT_REFUSED"


def test_a_result_is_stored_when_a_read_only_server_takes_writes_again(
    shop: Shop, start_daemon: StartDaemon, server: Server, tmp_path: Path
) -> None:
    declare(shop, f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; printf 12345 > $clean_location/part.csv")
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_LEASE": "15"})
    shop.ready(1)
    daemon.said("attempt.started")
    with read_only(server):
        daemon.said("lease.unproven")
        (tmp_path / "go").touch()
        daemon.said("finish.postponed")
    eventually(lambda: shop.count("READY") == 1)
    assert shop.outcomes() == ["DONE"]
    assert shop.connection.execute(MANIFEST).fetchall() == [(1, 5)]


def test_an_attempt_whose_code_version_cannot_be_stored_is_given_back_and_made_later(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("true")
    daemon = start_daemon(env=NO_POLL)
    refuse(shop, "job", "UPDATE", "25006")
    shop.flow.write_text(shop.flow.read_text(encoding="utf-8").replace("true", "echo"), encoding="utf-8")
    daemon.signal(signal.SIGHUP)
    daemon.said("daemon.reloaded")
    shop.ready(1)
    eventually(lambda: "RETURNED" in shop.outcomes())
    shop.connection.execute("DROP TRIGGER refuse ON dataflow.job")
    eventually(lambda: shop.count("READY") == 1)
    assert set(shop.outcomes()) == {"RETURNED", "DONE"}
    assert shop.value("SELECT max(tries) FROM dataflow.attempt") == 1


def test_a_reload_on_a_read_only_server_stops_no_daemon_and_is_reported_with_the_next_lease(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("true")
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_LEASE": "3"})
    served = "SELECT jobs = ARRAY['other'] FROM dataflow.daemon"
    refuse(shop, "daemon", "UPDATE OF jobs", "25006")
    shop.flow.write_text(
        shop.flow.read_text(encoding="utf-8").replace("[job.work]", "[job.other]"), encoding="utf-8"
    )
    daemon.signal(signal.SIGHUP)
    assert "not now" in daemon.said("daemon.reloaded")[0]["error"]
    assert not shop.value(served)
    shop.connection.execute("DROP TRIGGER refuse ON dataflow.daemon")
    eventually(lambda: shop.value(served))
    assert daemon.events("service.died") == []


def test_a_command_on_a_read_only_server_says_so(run_ctl: RunCtl, shop: Shop) -> None:
    shop.job("true")
    refused = run_ctl("pause", env={"PGOPTIONS": None, "DATAFLOW_DSN": read_only_dsn(shop)})
    assert refused.returncode == 5
    assert "takes no writes now" in refused.stderr


def read_only_dsn(shop: Shop) -> str:
    return f"{shop.connection.info.dsn} options='-c default_transaction_read_only=on'"
