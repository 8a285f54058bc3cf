"""The faults of a four-week migration: killed daemons, a restarted server, connections that are cut, slow, or blackholed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import conninfo

from dataflowd.database import migrate
from dataflowd.host.embedded import postgres
from tests.fix_daemon import PROMPT_SECONDS, Shop, StartDaemon, daemons, eventually
from tests.fix_postgres import TEST_SERVER_SETTINGS, running_server
from tests.fix_proxy import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.host.settings import Settings

NO_POLL = {"DATAFLOW_POLL": "600"}
SHORT_LEASE = {"DATAFLOW_LEASE": "3"}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def pids(directory: Path) -> list[int]:
    """The processes of jobs that wrote their pid to a file."""
    found = [path.read_text(encoding="ascii") for path in sorted(directory.glob("*.pid"))]
    return [int(pid) for pid in found if pid]


def gated(directory: Path) -> str:
    """A command that writes its pid to a file, and ends when the file `go` exists."""
    return f"echo $$ > {directory}/$$.pid; until [ -e {directory}/go ]; do sleep 0.05; done"


def states(shop: Shop) -> dict[str, str]:
    return dict(shop.connection.execute("SELECT daemon, state FROM dataflow.daemons").fetchall())


@pytest.fixture
def wire(dsn: str) -> Iterator[Relay]:
    with closing(Relay(dsn)) as relay:
        yield relay


@pytest.fixture
def wires(dsn: str) -> Iterator[tuple[Relay, Relay]]:
    """Two relays to the same database."""
    with closing(Relay(dsn)) as first, closing(Relay(dsn)) as second:
        yield first, second


# For every attempt: how many attempts ran at its claim, including itself, and the limit of that moment. A process runs only
# between its claim and the report of its end, so these intervals contain those of the processes.
AT_EACH_CLAIM = """
    SELECT
        (SELECT count(*) FROM dataflow.attempt b WHERE b.claimed <= a.claimed AND coalesce(b.ended > a.claimed, true)),
        (SELECT e.to_status::int FROM dataflow.event e
            WHERE e.kind = 'control' AND e.reason = 'global' AND e.at <= a.claimed ORDER BY e.event DESC LIMIT 1)
    FROM dataflow.attempt a ORDER BY a.attempt
"""


def set_limit_between_claims(shop: Shop, concurrency: int) -> None:
    """Sets a limit under the claim lock, so that the history tells whether a claim came before or after the change."""
    with shop.connection.transaction():
        shop.connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0))")
        shop.limit(concurrency)


def test_a_killed_daemon_takes_its_processes_along_and_its_restart_goes_on_at_once(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    shop.limit(8)
    shop.ready(*range(20))
    first = start_daemon(env=NO_POLL)
    children = eventually(lambda: found if len(found := pids(tmp_path)) == 8 else [])
    first.kill()
    eventually(lambda: not any(alive(child) for child in children), seconds=PROMPT_SECONDS)
    (tmp_path / "go").touch()
    second = start_daemon(env=NO_POLL)
    assert len(second.events("attempt.rescued")) == 8
    eventually(lambda: shop.count("READY") == 20)
    assert sorted(shop.outcomes()) == ["DONE"] * 20 + ["LOST"] * 8
    assert shop.value("SELECT max(tries) FROM dataflow.attempt") == 1
    # The files of the killed daemon in the data directory are removed too.
    eventually(lambda: not list((tmp_path / "dataflowd" / "run").iterdir()))


def test_a_daemon_that_is_killed_again_and_again_loses_nothing_and_does_nothing_twice(
    shop: Shop, start_daemon: StartDaemon
) -> None:
    shop.job("true", "max_lost = 10")
    shop.limit(200)
    shop.ready(*range(3000))
    for kill in range(5):
        # The attempts take no time, so the daemon is always in the middle of a claim or a finish.
        daemon = start_daemon(engine="noop", env=NO_POLL, wait=False)
        eventually(lambda: shop.count("READY") > 400 * kill)  # noqa: B023 - called before the next iteration
        daemon.kill()
    start_daemon(engine="noop", env=NO_POLL)
    eventually(lambda: shop.count("READY") == 3000)
    outcomes = Counter(shop.outcomes())
    assert outcomes["DONE"] == 3000
    assert set(outcomes) <= {"DONE", "LOST"}
    assert shop.value("SELECT max(version) FROM dataflow.datastatus WHERE datasetid = 'clean'") == 1
    assert shop.value("SELECT max(tries) FROM dataflow.attempt") == 1


def test_another_daemon_takes_over_when_the_lease_of_a_dead_one_has_ended(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    shop.ready(1, 2)
    shop.limit(1, "daemon:d1")
    first = start_daemon(env=NO_POLL | SHORT_LEASE)
    eventually(lambda: shop.live() == 1)
    second = start_daemon(name="d2", env=NO_POLL | SHORT_LEASE)
    eventually(lambda: shop.live() == 2)
    first.kill()
    [rescued] = second.said("attempt.rescued", seconds=PROMPT_SECONDS)
    assert rescued["lost_by"] == "d1"
    (tmp_path / "go").touch()
    eventually(lambda: shop.count("READY") == 2)


@pytest.mark.parametrize("number", [2, 5])
def test_daemons_together_never_exceed_the_global_limit(
    shop: Shop, start_daemon: StartDaemon, number: int
) -> None:
    shop.job("sleep 0.05")
    set_limit_between_claims(shop, 3)
    for which in range(number):
        shop.limit(2, f"daemon:d{which}")  # so that one daemon alone cannot run all
    started = [start_daemon(name=f"d{which}", wait=False) for which in range(number)]
    for daemon in started:
        daemon.said("listener.listening")
    shop.ready(*range(60))
    for ready, concurrency in ((20, 1), (25, 4), (45, 2)):
        eventually(lambda: shop.count("READY") >= ready)  # noqa: B023 - called before the next iteration
        set_limit_between_claims(shop, concurrency)
    eventually(lambda: shop.count("READY") == 60)
    claims = shop.connection.execute(AT_EACH_CLAIM).fetchall()
    assert shop.outcomes() == ["DONE"] * 60
    assert [claim for claim in claims if claim[0] > claim[1]] == []
    assert {1, 3, 4} <= {running for running, _ in claims}
    assert shop.value("SELECT count(DISTINCT daemon) FROM dataflow.attempt") > 1


@pytest.mark.parametrize("how", ["dies", "swallows everything"])
def test_attempts_go_on_through_another_address_when_the_first_one(
    shop: Shop, start_daemon: StartDaemon, wires: tuple[Relay, Relay], tmp_path: Path, how: str
) -> None:
    first, second = wires
    shop.job(gated(tmp_path))
    both = conninfo.make_conninfo(
        first.dsn,
        host="127.0.0.1,127.0.0.1",
        port=f"{first.port},{second.port}",
        target_session_attrs="read-write",
    )
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_DSN": both, "DATAFLOW_CONNECT_TIMEOUT": "2"})
    shop.ready(*range(4))
    children = eventually(lambda: found if len(found := pids(tmp_path)) == 4 else [])
    assert second.connections == 0
    first.close() if how == "dies" else first.blackhole()
    daemon.said("lease.retaken")
    daemon.said("listener.listening", times=2)
    # the connections of claims, services and listener
    eventually(lambda: second.connections >= 3)
    assert all(alive(child) for child in children)
    assert daemon.get("/health/ready")[0] == 200
    (tmp_path / "go").touch()
    eventually(lambda: shop.count("READY") == 4)
    shop.ready(5)
    eventually(lambda: shop.count("READY") == 5)
    assert shop.outcomes() == ["DONE"] * 5


def test_without_notifications_a_daemon_polls_warns_and_recovers(
    shop: Shop, start_daemon: StartDaemon, wire: Relay
) -> None:
    shop.job("true")
    wire.deafen()
    daemon = start_daemon(env={"DATAFLOW_DSN": wire.dsn, "DATAFLOW_POLL": "1"}, wait=False)
    [polling] = daemon.said("listener.polling")
    assert (polling["level"], polling["poll"]) == ("warning", 1)
    status, health = daemon.get("/health")
    assert (status, json.loads(health)["listener"]) == (200, "polling")
    assert 'dataflow_listener{state="polling"} 1.0' in daemon.get("/metrics")[1].splitlines()
    shop.ready(1)
    shop.limit(7)
    eventually(lambda: shop.count("READY") == 1)
    eventually(lambda: "dataflow_limit 7.0" in daemon.get("/metrics")[1].splitlines())
    assert daemon.events("listener.listening") == []
    wire.resume()
    daemon.said("listener.listening")
    assert json.loads(daemon.get("/health")[1])["listener"] == "listening"


def test_another_daemon_takes_the_free_places_of_a_stopping_one(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(f"until [ -e {tmp_path}/go-$dataid ]; do sleep 0.05; done")
    shop.limit(1)
    shop.ready(1, 2)
    first = start_daemon(env=NO_POLL)
    first.said("attempt.started")
    second = start_daemon(name="d2", env=NO_POLL)
    first.signal(signal.SIGTERM)
    first.said("drain.waiting")
    (tmp_path / "go-1").touch()
    assert first.ended() == 0
    second.said("attempt.started", seconds=20)
    (tmp_path / "go-2").touch()
    eventually(lambda: shop.count("READY") == 2)


def test_attempts_survive_a_restart_of_postgres_under_load(settings: Settings, tmp_path: Path) -> None:
    with running_server(TEST_SERVER_SETTINGS) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            migrate.init(connection)
            shop = Shop(connection, tmp_path / "shop.toml", settings)
            shop.job(f"echo $dataid >> {tmp_path}/ran; sleep 1")
            shop.limit(6)
            shop.ready(*range(12))
        with daemons(server.dsn, shop.flow, tmp_path) as start:
            daemon = start()
            eventually((tmp_path / "ran").exists)
            postgres.stop(server.data_dir)
            daemon.said("lease.unproven")
            assert daemon.get("/health/ready")[0] == 503
            assert daemon.get("/health/live")[0] == 200
            assert "dataflow_database_up 0.0" in daemon.get("/metrics")[1]
            postgres.ensure_running(server.data_dir)
            daemon.said("lease.retaken")
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                shop = Shop(connection, shop.flow, settings)
                eventually(lambda: shop.count("READY") == 12)
                assert shop.outcomes() == ["DONE"] * 12
            assert daemon.stop() == 0
    ran = (tmp_path / "ran").read_text(encoding="ascii").split()
    assert sorted(ran, key=int) == [str(number) for number in range(12)]


def test_a_cut_connection_costs_no_attempt(
    shop: Shop, start_daemon: StartDaemon, wire: Relay, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_DSN": wire.dsn})
    shop.ready(*range(4))
    children = eventually(lambda: found if len(found := pids(tmp_path)) == 4 else [])
    for times in (1, 2, 3):
        wire.reset()
        daemon.said("lease.retaken", times=times, seconds=PROMPT_SECONDS)
        daemon.said("listener.listening", times=times + 1)
    assert all(alive(child) for child in children)
    (tmp_path / "go").touch()
    eventually(lambda: shop.count("READY") == 4)
    assert shop.outcomes() == ["DONE"] * 4
    shop.ready(5)
    eventually(lambda: shop.count("READY") == 5)


def test_a_session_that_could_not_be_restored_whole_is_restored_again(
    shop: Shop, start_daemon: StartDaemon, wire: Relay, dsn: str
) -> None:
    """Another session locks the daemon's row during the reconnect. A session that is only half restored claims nothing."""
    shop.job("true")
    env = {"DATAFLOW_DSN": wire.dsn, "DATAFLOW_STATEMENT_TIMEOUT": "1", "DATAFLOW_POLL": "1"}
    daemon = start_daemon(env=env)
    with psycopg.connect(dsn) as somebody:
        somebody.execute("SELECT FROM dataflow.daemon FOR UPDATE")
        wire.reset()
        daemon.said("lease.unproven", times=2)
    shop.ready(1)
    eventually(lambda: shop.count("READY") == 1)
    assert daemon.events("lease.retaken")


def test_results_are_kept_while_the_database_is_away(
    shop: Shop, start_daemon: StartDaemon, wire: Relay, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_DSN": wire.dsn})
    shop.ready(*range(4))
    children = eventually(lambda: found if len(found := pids(tmp_path)) == 4 else [])
    wire.refuse()
    (tmp_path / "go").touch()
    eventually(lambda: not any(alive(child) for child in children))
    assert shop.live() == 4
    wire.resume()
    daemon.said("lease.retaken")
    eventually(lambda: shop.count("READY") == 4)
    assert shop.outcomes() == ["DONE"] * 4


def test_no_service_spins_while_the_database_is_away(
    shop: Shop, start_daemon: StartDaemon, wire: Relay
) -> None:
    shop.job("true")
    often = {"DATAFLOW_GC_INTERVAL": "1", "DATAFLOW_POLL": "1", "DATAFLOW_LEASE": "30"}
    daemon = start_daemon(env=often | {"DATAFLOW_DSN": wire.dsn})
    wire.refuse()
    daemon.said("path.postponed")
    daemon.said("lease.unproven", times=8)
    said = Counter(event["event"] for event in daemon.events())
    assert {name: times for name, times in said.items() if times > 50} == {}
    [away] = daemon.events("database.away")
    assert (away["level"], away["running"], "doctor" in away["remedy"]) == ("error", 0, True)
    loud = Counter(event["event"] for event in daemon.events() if event["level"] != "debug")
    assert loud["control.unknown"] <= 1 >= loud["rescue.failed"]
    wire.resume()
    daemon.said("database.back")


def test_a_killed_daemon_is_gone_at_once_and_its_runs_are_its_own_until_its_lease_ends(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_LEASE": "600"})
    shop.ready(1)
    eventually(lambda: pids(tmp_path))
    assert states(shop) == {"d1": "ALIVE"}
    daemon.kill()
    eventually(lambda: states(shop) == {"d1": "GONE"}, seconds=PROMPT_SECONDS)
    [hand] = shop.value("SELECT dataflow.overview()")["needs_hand"]
    assert (hand["code"], hand["count"]) == ("LOST_DAEMON", 1)
    assert "it was killed, or cannot reach the database" in hand["remedy"]
    assert shop.connection.execute("SELECT * FROM dataflow.rescue()").fetchall() == []
    assert "that daemon is GONE" in shop.value(
        "SELECT detail FROM dataflow.why('work', '1') WHERE number = 0"
    )


def test_the_runs_of_a_daemon_that_is_frozen_are_taken_over_and_it_stops_them_when_it_wakes_up(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    frozen = start_daemon(env=NO_POLL | SHORT_LEASE)
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    session = shop.value("SELECT session_pid FROM dataflow.daemon")
    # The heir starts first: on a busy machine its start takes longer than the time between LOST and the end of the session.
    heir = start_daemon(name="d2", env=NO_POLL | SHORT_LEASE)
    frozen.signal(signal.SIGSTOP)
    try:
        # Its lease has ended, but its session still holds the locks.
        eventually(lambda: states(shop)["d1"] == "LOST")
        [hand] = shop.value("SELECT dataflow.overview()")["needs_hand"]
        assert "another daemon ends the session" in hand["remedy"]
        assert f"kill -KILL {frozen.pid}" in hand["remedy"]
        [ended] = heir.said("session.ended")
        assert (ended["frozen"], ended["session"]) == ("d1", session)
        heir.said("attempt.rescued")
        eventually(lambda: len(pids(tmp_path)) == 2)
    finally:
        frozen.signal(signal.SIGCONT)
    frozen.said("lease.retaken")
    eventually(lambda: not alive(child))
    (tmp_path / "go").touch()
    eventually(lambda: shop.count("READY") == 1)
    assert shop.outcomes() == ["LOST", "DONE"]
    assert shop.value("SELECT version FROM dataflow.datastatus WHERE datasetid = 'clean'") == 1
    told = shop.value("SELECT reason FROM dataflow.event WHERE kind = 'daemon' AND to_status = 'ENDED'")
    assert told.startswith(f"session {session} of d1, whose lease ended ")


def test_a_run_that_was_rescued_meanwhile_is_stopped(
    shop: Shop, start_daemon: StartDaemon, wire: Relay, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_DSN": wire.dsn})
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    wire.refuse()
    daemon.said("lease.unproven")
    eventually(lambda: shop.value("SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'"))
    shop.connection.execute("UPDATE dataflow.daemon SET lease_until = now()")
    shop.connection.execute("SELECT dataflow.rescue()")
    shop.connection.execute("SELECT dataflow.pause()")
    wire.resume()
    daemon.said("attempt.fenced")
    assert not alive(child)
    assert shop.outcomes() == ["LOST"]


def test_a_half_open_connection_is_found_and_the_daemon_goes_on(
    shop: Shop, start_daemon: StartDaemon, wire: Relay, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_DSN": wire.dsn, "DATAFLOW_LEASE": "30"})
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    wire.blackhole()
    daemon.said("listener.connecting", seconds=PROMPT_SECONDS)
    assert daemon.get("/health/ready")[0] == 503
    wire.resume()
    daemon.said("listener.listening", times=2)
    assert alive(child)
    (tmp_path / "go").touch()
    shop.ready(2)
    eventually(lambda: shop.count("READY") == 2)
    assert set(shop.outcomes()) == {"DONE"}


def test_a_daemon_that_cannot_prove_its_claims_stops_them_before_its_lease_ends(
    shop: Shop, start_daemon: StartDaemon, wire: Relay, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    daemon = start_daemon(env=NO_POLL | SHORT_LEASE | {"DATAFLOW_DSN": wire.dsn})
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    wire.blackhole()
    daemon.said("lease.ending", seconds=PROMPT_SECONDS)
    eventually(lambda: not alive(child), seconds=PROMPT_SECONDS)
    (tmp_path / "go").touch()
    wire.resume()
    eventually(lambda: shop.count("READY") == 1)
    assert shop.outcomes()[0] in {"RETURNED", "LOST"}


def test_a_daemon_whose_name_was_taken_and_given_up_again_stops_its_attempts_and_begins_again(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    daemon = start_daemon(env=NO_POLL | SHORT_LEASE)
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    shop.connection.execute("UPDATE dataflow.daemon SET incarnation = gen_random_uuid()")
    daemon.said("lease.lost")
    eventually(lambda: not alive(child))
    (tmp_path / "go").touch()
    eventually(lambda: shop.count("READY") == 1)
    assert shop.outcomes()[0] in {"RETURNED", "LOST"}


def test_a_daemon_ends_when_another_takes_its_name(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    daemon = start_daemon(env=NO_POLL | SHORT_LEASE)
    shop.ready(1)
    [child] = eventually(lambda: pids(tmp_path))
    shop.connection.execute(
        "UPDATE dataflow.daemon SET incarnation = gen_random_uuid(), session_pid = pg_backend_pid(),"
        " lease_until = now() + interval '1 hour'"
    )
    assert daemon.ended() == 8
    assert not alive(child)
    [died] = daemon.events("service.died")
    assert died["service"] == "leases"


def test_a_slow_network_slows_down_and_breaks_nothing(
    shop: Shop, start_daemon: StartDaemon, wire: Relay
) -> None:
    shop.job("true")
    start_daemon(env=NO_POLL | {"DATAFLOW_DSN": wire.dsn})
    wire.delay(0.1)
    shop.ready(*range(10))
    eventually(lambda: shop.count("READY") == 10)
    assert set(shop.outcomes()) == {"DONE"}


def test_a_result_whose_rows_somebody_holds_is_offered_again(
    shop: Shop, start_daemon: StartDaemon, dsn: str, tmp_path: Path
) -> None:
    shop.job(gated(tmp_path))
    daemon = start_daemon(env=NO_POLL)
    shop.ready(1, 2)
    eventually(lambda: shop.live() == 2)
    with psycopg.connect(dsn) as person:
        person.execute(
            "SELECT FROM dataflow.datastatus WHERE datasetid = 'clean' AND dataid = '1' FOR UPDATE"
        )
        (tmp_path / "go").touch()
        eventually(lambda: shop.count("READY") == 1)
        assert shop.live() == 1
    eventually(lambda: shop.count("READY") == 2, seconds=PROMPT_SECONDS)
    assert daemon.stop() == 0
