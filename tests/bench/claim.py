"""Claim + finish cycles a second, by the SQL functions alone, compared with bare commits and with other queues.

There is one database for each number of waiting chunks, all on one server. A round measures a short window of each database,
of bare commits and of each peer, so that a disturbance of the machine affects all of them. Before the next window, as many
chunks are registered as the last one used up. A cycle at batch 64 is a sixty-fourth of a claim and of a finish.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import limit, peers, pipeline
from tests.bench.report import Result, at_least, at_most, ratio, say, short, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.pipeline import Line
    from tests.bench.server import Place

BENCH = "claim"
SIZES = (1_000, 100_000, 1_000_000)
FULL_SIZE = 10_000_000
CYCLES_OF_BATCH = {1: 128, 16: 512, 64: 1024}
LARGEST_BATCH = max(CYCLES_OF_BATCH)
ROUNDS = 7
WINDOW_SECONDS = 15
COMMIT_SECONDS = 2
JOBS_OF_PEER = {"pgqueuer": 5000, "procrastinate": 1000}

MAX_GROWTH = 1.2
MIN_VS_COMMIT_LIMIT = 3000 / 2800
MIN_VS_PEER = {"pgqueuer": 3, "procrastinate": 10}

WAITING = "SELECT sum(queued)::bigint FROM dataflow.status()"


@dataclass
class Waiting:
    """A database in which a constant number of runs waits."""

    size: int
    line: Line
    registered: int = 0
    rates: dict[int, list[float]] = field(default_factory=lambda: {batch: [] for batch in CYCLES_OF_BATCH})

    def fill(self) -> None:
        waiting = self.line.connection.execute(WAITING).fetchone()
        missing = self.size - (waiting[0] if waiting else 0)
        if missing > 0:
            pipeline.register(self.line.connection, "raw", self.registered, self.registered + missing)
            self.registered += missing

    def window(self, batch: int) -> float:
        self.fill()
        return self.line.cycles(batch, CYCLES_OF_BATCH[batch], WINDOW_SECONDS)


@dataclass
class Rival:
    peer: peers.Peer
    dsn: str
    jobs: int
    rates: list[float] = field(default_factory=list)


def run(place: Place) -> Iterator[Result]:
    with ExitStack() as stack:
        rivals = {name: _rival(place, stack, name) for name in peers.PEERS}
        databases = [_waiting(place, stack, size) for size in place.sizes(*SIZES, FULL_SIZE)]
        bare = stack.enter_context(place.database("bare"))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        script, commits = limit.prepare(bare, scratch), list[float]()
        for number in range(ROUNDS):
            commits.append(limit.commits_per_s(bare, script, COMMIT_SECONDS))
            for rival in rivals.values():
                rival.rates.append(rival.peer.drain(rival.dsn, rival.jobs))
            for batch in CYCLES_OF_BATCH:
                for database in databases:
                    database.rates[batch].append(database.window(batch))
            say(f"claim: round {number + 1} of {ROUNDS}")
    yield from _results(databases, commits, rivals)


def _rival(place: Place, stack: ExitStack, name: str) -> Rival:
    """The peer with its best setting on this machine."""
    dsn, jobs = stack.enter_context(place.database(name, template="template1")), JOBS_OF_PEER[name]
    candidates = peers.PEERS[name]
    candidates[0].install(dsn)
    rates = {peer: peer.drain(dsn, jobs) for peer in candidates}
    for peer, rate in rates.items():
        say(f"claim: {name} with {peer.setting}: {rate:.0f} jobs/s")
    return Rival(max(rates, key=lambda peer: rates[peer]), dsn, jobs)


def _waiting(place: Place, stack: ExitStack, size: int) -> Waiting:
    line = stack.enter_context(pipeline.line(stack.enter_context(place.database(f"claim_{size}"))))
    database = Waiting(size, line)
    database.fill()
    pipeline.settle_down(line.connection)
    for batch in CYCLES_OF_BATCH:
        database.window(batch)
    say(f"claim: {size} chunks wait")
    return database


def _results(databases: list[Waiting], commits: list[float], rivals: dict[str, Rival]) -> Iterator[Result]:
    smallest, target = databases[0], next(d for d in reversed(databases) if d.size <= max(SIZES))
    for database in databases:
        for batch, rates in database.rates.items():
            case, rate = f"{short(database.size)} waiting, batch {batch}", statistics.median(rates)
            yield Result(BENCH, case, "cycles_per_s", rate, "cycles/s", None, spread(rates))
    for database in databases[1:]:
        metric = f"growth_{short(smallest.size)}_{short(database.size)}"
        for batch in CYCLES_OF_BATCH:
            case = f"cost of a cycle, batch {batch}"
            goal = at_most(MAX_GROWTH) if database is target else None
            yield ratio((BENCH, case, metric), smallest.rates[batch], database.rates[batch], goal)
    ours, case = target.rates[LARGEST_BATCH], f"{short(target.size)} waiting, batch {LARGEST_BATCH}"
    rate, clients = statistics.median(commits), f"{limit.CLIENTS} clients"
    yield Result(BENCH, clients, "commits_per_s", rate, "commits/s", None, spread(commits))
    yield ratio((BENCH, case, "vs_commit_limit"), ours, commits, at_least(MIN_VS_COMMIT_LIMIT))
    for name, rival in rivals.items():
        rate = statistics.median(rival.rates)
        yield Result(
            BENCH, rival.peer.setting, f"{name}_jobs_per_s", rate, "jobs/s", None, spread(rival.rates)
        )
        yield ratio((BENCH, case, f"vs_{name}"), ours, rival.rates, at_least(MIN_VS_PEER[name]))
