"""A client of the health port opens connections and sends nothing, or very little. The daemon goes on."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataflowd.daemon import health
from tests.fix_daemon import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from tests.fix_daemon import Daemon, Shop, StartDaemon

SILENT = 300
FEW_FILES = 64


def _connect(daemon: Daemon) -> socket.socket:
    return socket.create_connection(("127.0.0.1", daemon.port), timeout=PATIENCE_SECONDS)


def _sockets(daemon: Daemon) -> int:
    """The daemon's open connections of the health port."""
    port = f":{daemon.port:04X}"
    established = {
        fields[9]
        for fields in map(str.split, Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:])
        if fields[1].endswith(port) and fields[3] != "0A"
    }
    held = set()
    for entry in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            held.add(str(entry.readlink()).removeprefix("socket:[").rstrip("]"))
    return len(established & held)


def test_silent_connections_and_a_low_file_limit_stop_neither_the_daemon_nor_its_work(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("true")
    daemon = start_daemon(files=FEW_FILES)
    with ExitStack() as opened:
        for number in range(SILENT):
            client = opened.enter_context(closing(_connect(daemon)))
            if number % 3 == 0:
                with suppress(OSError):  # the daemon may have closed it by now
                    client.sendall(b"GET /hea")
        assert _sockets(daemon) <= FEW_FILES // health.FILES_SHARE
        assert daemon.get("/health/live")[0] == 200
        shop.ready(*range(5))
        eventually(lambda: shop.count("READY") == 5)
        assert daemon.get("/health/ready")[0] == 200
    assert daemon.get("/health/ready")[0] == 200
    assert not daemon.events("service.died")
    assert len(daemon.events("http.crowded")) == 1
    assert daemon.stop() == 0


def test_a_request_that_comes_byte_by_byte_ends_in_time(shop: Shop, start_daemon: StartDaemon) -> None:
    """The time counts from the accept; a new byte does not extend it."""
    shop.job("true")
    daemon = start_daemon()
    with closing(_connect(daemon)) as client:
        began = time.monotonic()
        client.settimeout(0.2)
        got = None
        with suppress(ConnectionError):
            while got != b"" and time.monotonic() - began < PATIENCE_SECONDS:
                client.sendall(b"G")
                with suppress(TimeoutError):
                    got = client.recv(1)
        assert time.monotonic() - began < PATIENCE_SECONDS
    assert daemon.get("/health/live")[0] == 200


@pytest.mark.parametrize("connections", [1, SILENT])
def test_a_daemon_without_a_file_left_goes_on_when_there_are_some(
    shop: Shop, start_daemon: StartDaemon, connections: int
) -> None:
    shop.job("true")
    daemon = start_daemon()
    assert daemon.get("/health/live")[0] == 200
    before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir(f"/proc/{daemon.pid}/fd")) + 1  # noqa: PTH208 - only the names are needed
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (used, before[1]))
    with ExitStack() as opened:
        for _ in range(connections):
            opened.enter_context(closing(_connect(daemon)))
        daemon.said("http.no_files" if connections == 1 else "listener.listening")
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        eventually(lambda: _is_live(daemon))
    shop.ready(1)
    eventually(lambda: shop.count("READY") == 1)
    assert not daemon.events("service.died")
    assert daemon.stop() == 0


def _is_live(daemon: Daemon) -> bool:
    with suppress(OSError):
        return daemon.get("/health/live")[0] == 200
    return False


def test_many_requests_for_metrics_share_one_query(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.job("true")
    daemon = start_daemon()
    shop.connection.execute("CREATE SEQUENCE public.asked")
    shop.connection.execute("GRANT USAGE ON SEQUENCE public.asked TO PUBLIC")
    shop.connection.execute("ALTER FUNCTION dataflow.status RENAME TO status_before")
    shop.connection.execute(
        "CREATE FUNCTION dataflow.status() RETURNS TABLE (jobid text, ready bigint, running bigint, failed bigint, resubmit bigint,"
        " held bigint, queued bigint, retry_later bigint, oldest_queued timestamptz) LANGUAGE sql"
        " AS $$ SELECT jobid, nextval('public.asked'), 0, 0, 0, 0, 0, 0, now() FROM dataflow.job $$"
    )
    began = time.monotonic()
    answers = [daemon.get("/metrics") for _ in range(50)]
    seconds = time.monotonic() - began
    assert {status for status, _ in answers} == {200}
    assert shop.value("SELECT last_value FROM public.asked") <= 1 + seconds / health.METRICS_SECONDS


def test_a_database_that_answers_nonsense_costs_an_answer_and_not_the_daemon(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("true")
    daemon = start_daemon()
    shop.connection.execute("DROP FUNCTION dataflow.status CASCADE")
    shop.connection.execute(
        "CREATE FUNCTION dataflow.status() RETURNS TABLE (jobid text, ready text, running text, failed text, resubmit text,"
        " held text, queued text, retry_later text, oldest_queued timestamptz) LANGUAGE sql"
        " AS $$ SELECT E'work\\n# HELP forged', 'many', NULL, '1e999', 'x', '', '-', '0x', now() $$"
    )
    status, text = daemon.get("/metrics")
    assert status == 200
    assert "forged" not in text
    assert daemon.get("/health/live")[0] == 200
    assert daemon.stop() == 0
