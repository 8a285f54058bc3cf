"""How many no-op runs a second a whole daemon completes, compared with the peers and as many no-op jobs.

Both jobs of the pipeline run on every chunk. A window ends when the queue is empty or its time is over, so that a million
waiting chunks can be measured too. The rate counts the runs between the first claim and the last end, by the database's
clock.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg

from tests.bench import noop_daemon, peers, pipeline
from tests.bench.report import Result, at_least, at_most, ratio, say, short, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.server import Place

BENCH = "drain"
SIZES = (10_000, 100_000, 1_000_000)
ROUNDS = 3
WINDOW_SECONDS = 60.0
JOBS_OF_PEER = {"pgqueuer": 10_000, "procrastinate": 2000}
MIN_VS_PEER = {"pgqueuer": 3, "procrastinate": 10}
MAX_GROWTH = 1.2
POLL_SECONDS = 0.2

LEFT = (
    "SELECT EXISTS (SELECT FROM dataflow.work) OR EXISTS (SELECT FROM dataflow.attempt WHERE ended IS NULL)"
)
RATE = """
    SELECT count(*), count(*) / extract(epoch FROM max(ended) - min(claimed))::double precision
    FROM dataflow.attempt WHERE outcome = 'DONE'
"""


def run(place: Place) -> Iterator[Result]:
    sizes = place.sizes(*SIZES)
    rates: dict[int, list[float]] = {size: [] for size in sizes}
    rivals: dict[str, list[float]] = {name: [] for name in peers.PEERS}
    best = {name: _best(place, name) for name in peers.PEERS}
    costs: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        for name, jobs in JOBS_OF_PEER.items():
            rivals[name].append(_peer(place, best[name], jobs))
        for size in sizes:
            rate, cpu_per_run, peak = _drain(place, size)
            rates[size].append(rate)
            costs.append((cpu_per_run, peak))
            say(f"drain: {size} chunks: {rate:.0f} runs/s")
        say(f"drain: round {number + 1} of {ROUNDS}")
    for size, found in rates.items():
        yield Result(
            BENCH, f"{size} chunks", "runs_per_s", statistics.median(found), "runs/s", None, spread(found)
        )
    ours = rates[sizes[-1]]
    for name, found in rivals.items():
        rate = statistics.median(found)
        yield Result(BENCH, "no-op jobs", f"{name}_jobs_per_s", rate, "jobs/s", None, spread(found))
        yield ratio((BENCH, f"{sizes[-1]} chunks", f"vs_{name}"), ours, found, at_least(MIN_VS_PEER[name]))
    if len(sizes) > 1:
        metric = f"growth_{short(sizes[-2])}_{short(sizes[-1])}"
        yield ratio((BENCH, "cost of a run", metric), rates[sizes[-2]], ours, at_most(MAX_GROWTH))
    cpu, peak = (statistics.median(values) for values in zip(*costs, strict=True))
    yield Result(BENCH, "the daemon", "cpu_us_per_run", cpu * 1e6, "us")
    yield Result(BENCH, "the daemon", "max_rss", peak, "MiB")


def _drain(place: Place, size: int) -> tuple[float, float, float]:
    """Runs a second, CPU seconds of the daemon for each, and its largest size in MiB."""
    with ExitStack() as stack:
        dsn = stack.enter_context(place.database("drain"))
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        pipeline.register(connection, "raw", 0, size)
        pipeline.settle_down(connection)
        daemon = stack.enter_context(noop_daemon.running(dsn))
        deadline = time.monotonic() + WINDOW_SECONDS
        while time.monotonic() < deadline and connection.execute(LEFT).fetchone() == (True,):
            time.sleep(POLL_SECONDS)
        cpu, peak = noop_daemon.cost(daemon.pid)
        daemon.terminate()
        daemon.wait()
        done, rate = connection.execute(RATE).fetchone() or (0, 0.0)
        return rate, cpu / done, peak


def _best(place: Place, name: str) -> peers.Peer:
    """The peer with its best setting on this machine."""
    rates = {peer: _peer(place, peer, JOBS_OF_PEER[name] // 4) for peer in peers.PEERS[name]}
    return max(rates, key=lambda peer: rates[peer])


def _peer(place: Place, peer: peers.Peer, jobs: int) -> float:
    with place.database(peer.name, template="template1") as dsn:
        peer.install(dsn)
        return peer.drain(dsn, jobs)
