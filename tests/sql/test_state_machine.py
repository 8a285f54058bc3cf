"""Random histories compared with a small model: the rules hold after every step of people, daemons and faults.

The model knows statuses, versions, live attempts and who holds which run's lock. It derives from these alone which runs are
ready. The database has to agree after every step; its queue has to equal a rebuild; and when the faults stop, every run that
can be done gets done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.fix_world import Daemon
from tests.judge import judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_world import Attempt, World

Chunk = tuple[str, str]
Run = tuple[str, str]

DATAIDS = ["1", "2"]
SOURCES = ["raw", "rates"]
DAEMONS = ["alpha", "beta", "gamma"]
MAX_LOST = 2
HELD = {"HOLD", "PENDING"}


@dataclass(frozen=True)
class Job:
    inputs: list[str]
    outputs: list[str]
    max_attempts: int = 1
    max_running: int | None = None
    strict: bool = False
    mapping: dict[str, Any] = field(default_factory=lambda: {"kind": "identity"})
    inputs_of: Callable[[str], list[str]] = lambda run: [run]


def with_the_one_before(run: str) -> list[str]:
    return [run] if run == "0" else [run, str(int(run) - 1)]


JOBS = {
    "clean": Job(["raw"], ["cleaned"], max_attempts=2),
    "copy": Job(["cleaned"], ["copied"]),
    "join": Job(["cleaned", "rates"], ["joined", "rejects"]),
    "ledger": Job(["raw"], ["book"], strict=True),
    "trend": Job(
        ["cleaned"],
        ["trends"],
        max_running=1,
        mapping={"kind": "window", "last": 2, "unit": "number"},
        inputs_of=with_the_one_before,
    ),
}
PRODUCER = {output: name for name, job in JOBS.items() for output in job.outputs}
DATASETS = [*SOURCES, *PRODUCER]
CONSUMERS = {dataset: [name for name, job in JOBS.items() if dataset in job.inputs] for dataset in DATASETS}


@dataclass
class Last:
    """What is known of the last attempt of a run."""

    outcome: str | None = None
    tries: int = 0
    lost: int = 0
    retries: bool = False


@dataclass
class Live:
    attempt: Attempt
    daemon: str
    incarnation: Any


class Model:
    def __init__(self) -> None:
        self.status: dict[Chunk, str] = {}
        self.version: dict[Chunk, int] = {}
        self.held_from: dict[Chunk, str] = {}
        self.failed_by_hand: set[Chunk] = set()
        self.last: dict[Run, Last] = {}
        self.live: dict[Run, Live] = {}
        self.stopping: dict[Run, Live] = {}  # cancelled; the daemon has not said yet that its runner is gone
        self.dead: set[Any] = set()  # incarnations whose session, with its locks, has ended
        self.ended: list[Live] = []

    def inputs(self, run: Run) -> list[Chunk]:
        job, dataid = run
        return [(dataset, each) for dataset in JOBS[job].inputs for each in JOBS[job].inputs_of(dataid)]

    def outputs(self, run: Run) -> list[Chunk]:
        return [(dataset, run[1]) for dataset in JOBS[run[0]].outputs]

    def consumers(self, chunk: Chunk) -> list[Run]:
        return [
            (job, dataid)
            for job in CONSUMERS[chunk[0]]
            for dataid in [*DATAIDS, "3"]
            if chunk in self.inputs((job, dataid))
        ]

    def runs(self) -> list[Run]:
        return sorted({run for chunk in self.status for run in self.consumers(chunk)})

    def is_read(self, chunk: Chunk) -> bool:
        return any(chunk in self.inputs(run) for run in self.live)

    def is_open(self, run: Run) -> bool:
        """Whether the run is known and not READY, so that later runs in strict order wait for it."""
        statuses = [self.status[chunk] for chunk in self.outputs(run) if chunk in self.status]
        if statuses:
            return max(statuses) != "READY"
        return any(chunk in self.status for chunk in self.inputs(run))

    def is_writable(self, run: Run, chunk: Chunk) -> bool:
        status = self.status.get(chunk)
        if status is None:
            return True
        if status == "FAILED" and (chunk in self.failed_by_hand or not self.last_of(run).retries):
            return False
        return status in {"RESUBMIT", "FAILED"} and not self.is_read(chunk)

    def is_ready(self, run: Run) -> bool:
        job, dataid = run
        return (
            all(self.status.get(chunk) == "READY" for chunk in self.inputs(run))
            and all(self.is_writable(run, chunk) for chunk in self.outputs(run))
            and not (
                JOBS[job].strict
                and any(self.is_open((job, earlier)) for earlier in DATAIDS if int(earlier) < int(dataid))
            )
        )

    def ready(self) -> set[Run]:
        return {run for run in self.runs() if self.is_ready(run)}

    def last_of(self, run: Run) -> Last:
        return self.last.setdefault(run, Last())

    def set(self, chunk: Chunk, status: str) -> None:
        if status not in HELD:
            self.failed_by_hand.discard(chunk)
            self.held_from.pop(chunk, None)
        self.status[chunk] = status

    def publish(self, chunk: Chunk) -> None:
        self.version[chunk] = self.version.get(chunk, 0) + 1
        self.set(chunk, "READY")

    def cancel(self, run: Run) -> None:
        cancelled = self.live.pop(run)
        if cancelled.incarnation in self.dead:
            self.ended.append(cancelled)
        else:
            self.stopping[run] = cancelled
        self.last_of(run).outcome = "CANCELLED"
        self.last_of(run).retries = False

    def resubmit(self, chunk: Chunk) -> None:
        """Resubmits one output, and with it the other outputs of its run."""
        dataset, dataid = chunk
        if self.status.get(chunk) not in {"RUNNING", "READY", "FAILED"} or dataset in SOURCES:
            return
        run = (PRODUCER[dataset], dataid)
        if run in self.live:
            self.cancel(run)
        for output in self.outputs(run):
            if self.status.get(output) in {"RUNNING", "READY", "FAILED"}:
                self.set(output, "RESUBMIT")

    def hold(self, chunk: Chunk, status: str = "HOLD") -> None:
        dataset, dataid = chunk
        was = self.status.get(chunk)
        self.status[chunk] = status
        if was in HELD:
            return
        self.held_from[chunk] = "RESUBMIT" if was == "RUNNING" else was or "NONE"
        stopped = [run for run in self.live if chunk in self.inputs(run)]
        if was == "RUNNING":
            stopped.append((PRODUCER[dataset], dataid))
        for run in stopped:
            self.cancel(run)
            for output in self.outputs(run):
                if self.status.get(output) == "RUNNING":
                    self.set(output, "RESUBMIT")

    def release(self, chunk: Chunk) -> None:
        back_to = self.held_from.pop(chunk)
        if back_to == "NONE":
            del self.status[chunk]
        else:
            self.status[chunk] = back_to

    def fail_by_hand(self, chunk: Chunk) -> None:
        dataset, dataid = chunk
        was = self.status.get(chunk)
        if was in {None, "FAILED"}:
            return
        touched = [chunk]
        if was == "RUNNING":
            run = (PRODUCER[dataset], dataid)
            self.cancel(run)
            touched += [output for output in self.outputs(run) if self.status.get(output) == "RUNNING"]
        for each in touched:
            self.set(each, "FAILED")
            self.failed_by_hand.add(each)

    def can_be_ready_by_hand(self, chunk: Chunk) -> bool:
        """True for a chunk of a source, and for a chunk of which a job has made a version."""
        return self.held_from.get(chunk) == "READY" or chunk[0] in SOURCES or self.version.get(chunk, 0) > 0

    def ready_by_hand(self, chunk: Chunk) -> None:
        was = self.status.get(chunk)
        if was in {None, "READY"}:
            return
        if chunk[0] in SOURCES and self.held_from.get(chunk) != "READY":
            self.publish(chunk)
        else:
            self.set(chunk, "READY")


class Histories(RuleBasedStateMachine):
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.daemons: dict[str, Daemon] = {}
        self.limits: dict[str, int | None] = {}
        self.paused: set[str] = set()

    @initialize(
        arrived=st.sampled_from([[], ["raw"], SOURCES, SOURCES]), rounds=st.sampled_from([0, 1, 5, 5])
    )
    def begin(self, arrived: list[str], rounds: int) -> None:
        """Empties all tables but those of jobs and datasets; registers sources; then works for some rounds."""
        with self.world.connection.transaction():
            self.world.do("SET LOCAL session_replication_role = replica")
            self.world.do("DELETE FROM dataflow.datastatus")
            self.world.do("DELETE FROM dataflow.manifest")
            self.world.do("DELETE FROM dataflow.attempt")
            self.world.do("DELETE FROM dataflow.work")
            self.world.do("DELETE FROM dataflow.open_run")
            self.world.do("DELETE FROM dataflow.recheck")
            self.world.do("DELETE FROM dataflow.event")
            self.world.do("DELETE FROM dataflow.counter")
            self.world.do("DELETE FROM dataflow.daemon")
            self.world.do("DELETE FROM dataflow.control WHERE scope <> 'global'")
            self.world.do("UPDATE dataflow.control SET concurrency = 6, paused = false")
        self.limits = {"global": 6, "job:trend": JOBS["trend"].max_running}
        for name in DAEMONS:
            self.daemons[name] = Daemon.start(self.world.dsn, name)
        for dataset in arrived:
            for dataid in DATAIDS:
                self.register(dataset, dataid)
        for _ in range(rounds):
            self.claim_and_finish(DAEMONS[0], len(DATAIDS) * len(JOBS), "DONE")

    def teardown(self) -> None:
        try:
            if self.daemons:
                self.drain()
        finally:
            for daemon in self.daemons.values():
                daemon.connection.close()

    def made(self) -> list[Chunk]:
        return sorted(chunk for chunk in self.model.status if chunk[0] in PRODUCER)

    def in_use(self) -> list[Chunk]:
        """Chunks that live attempts read or write; operations on these find most faults."""
        return sorted(
            {chunk for run in self.model.live for chunk in self.model.inputs(run) + self.model.outputs(run)}
        )

    # Steps of people

    @rule(dataset=st.sampled_from(SOURCES), dataid=st.sampled_from(DATAIDS))
    def register(self, dataset: str, dataid: str) -> None:
        if self.model.status.get((dataset, dataid)) in HELD:
            with pytest.raises(psycopg.Error, match="cannot be registered"):
                self.world.ready(dataset, dataid)
        else:
            self.world.ready(dataset, dataid)
            self.model.publish((dataset, dataid))

    @precondition(lambda self: self.made())
    @rule(data=st.data(), downstream=st.booleans())
    def resubmit(self, data: st.DataObject, downstream: bool) -> None:
        dataset, dataid = data.draw(
            st.sampled_from([each for each in self.in_use() if each in self.made()] or self.made())
        )
        job = PRODUCER[dataset]
        self.world.resubmit(job=job, dataid=dataid, downstream=downstream)
        statuses = [
            self.model.status[chunk]
            for chunk in self.model.outputs((job, dataid))
            if chunk in self.model.status
        ]
        if not statuses or max(statuses) in HELD:
            return
        reached, frontier = {(job, dataid)}, [(job, dataid)]
        while downstream and frontier:
            run = frontier.pop()
            for consumer in (
                each for chunk in self.model.outputs(run) for each in self.model.consumers(chunk)
            ):
                known = any(chunk in self.model.status for chunk in self.model.outputs(consumer))
                if known and consumer not in reached:
                    reached.add(consumer)
                    frontier.append(consumer)
        for run in reached:
            for chunk in self.model.outputs(run):
                self.model.resubmit(chunk)

    @precondition(lambda self: self.model.status)
    @rule(data=st.data(), status=st.sampled_from(["RERUN", "RERUN", "HOLD", "PENDING", "ERROR", "COMPLETE"]))
    def type_status(self, data: st.DataObject, status: str) -> None:
        chunk = dataset, dataid = data.draw(st.sampled_from(self.in_use() or sorted(self.model.status)))
        was = self.model.status.get(chunk)
        refused = was == "RUNNING" or (was is not None and not self.model.can_be_ready_by_hand(chunk))
        if status == "COMPLETE" and refused:
            with pytest.raises(psycopg.Error, match="cannot be set to READY by hand"):
                self.world.set_status(dataset, dataid, status)
            return
        self.world.set_status(dataset, dataid, status)
        if status == "RERUN":
            self.model.resubmit(chunk)
        elif status == "ERROR":
            self.model.fail_by_hand(chunk)
        elif status == "COMPLETE":
            self.model.ready_by_hand(chunk)
        else:
            self.model.hold(chunk, status)

    @rule(dataid=st.sampled_from(DATAIDS))
    def type_resubmit_of_a_whole_day(self, dataid: str) -> None:
        self.world.do("UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE dataid = %s", dataid)
        for dataset in PRODUCER:
            self.model.resubmit((dataset, dataid))

    @rule(dataset=st.sampled_from(DATASETS), dataid=st.sampled_from(DATAIDS))
    def hold(self, dataset: str, dataid: str) -> None:
        self.world.do("SELECT dataflow.hold(%s, %s, 'why not')", dataset, dataid)
        self.model.hold((dataset, dataid))

    @precondition(lambda self: self.model.held_from)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        chunk = data.draw(st.sampled_from(sorted(self.model.held_from)))
        self.world.do("SELECT dataflow.release(%s, %s)", *chunk)
        self.model.release(chunk)

    @precondition(lambda self: len(self.model.held_from) > 1)
    @rule()
    def release_all(self) -> None:
        for chunk in sorted(self.model.held_from):
            self.world.do("SELECT dataflow.release(%s, %s)", *chunk)
            self.model.release(chunk)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.model.live)))
        assert self.world.value("SELECT dataflow.cancel(%s, %s)", *run) is True
        self.model.cancel(run)
        for chunk in self.model.outputs(run):
            if self.model.status[chunk] == "RUNNING":
                self.model.set(chunk, "FAILED")

    @rule(
        scope=st.sampled_from(["global", *[f"job:{job}" for job in JOBS]]),
        concurrency=st.sampled_from([1, 2, 5, 5]),
    )
    def limit(self, scope: str, concurrency: int) -> None:
        self.world.do("SELECT dataflow.set_concurrency(%s, %s)", scope, concurrency)
        self.limits[scope] = concurrency

    @rule(scope=st.sampled_from(["global", *[f"job:{job}" for job in JOBS], "daemon:alpha"]))
    def claim_during_a_pause(self, scope: str) -> None:
        self.world.do("SELECT dataflow.pause(%s)", scope)
        self.paused.add(scope)
        self.take("alpha", 1)
        self.world.do("SELECT dataflow.pause(%s, false)", scope)
        self.paused.remove(scope)

    # Steps of daemons

    @rule(name=st.sampled_from(DAEMONS), want=st.integers(1, 5))
    def claim(self, name: str, want: int) -> None:
        self.world.later()
        self.take(name, want)

    @rule(
        name=st.sampled_from(DAEMONS),
        want=st.integers(1, 3),
        outcome=st.sampled_from(["DONE", "DONE", "FAILED"]),
    )
    def claim_and_finish(self, name: str, want: int, outcome: str) -> None:
        self.world.later()
        for attempt in self.take(name, want):
            self.end(attempt.run, outcome)

    @precondition(lambda self: not self.model.live)
    @rule(name=st.sampled_from(DAEMONS))
    def claim_everything(self, name: str) -> None:
        self.claim(name, len(DATAIDS) * len(JOBS))

    def take(self, name: str, want: int) -> list[Attempt]:
        ready, model = self.model.ready(), self.model
        attempts = self.daemons[name].claim(want)
        assert not (attempts and {"global", f"daemon:{name}"} & self.paused)
        for attempt in attempts:
            run = attempt.run
            assert run in ready
            assert run not in model.stopping, (
                "claimed although the daemon of the cancelled attempt still holds its lock"
            )
            assert f"job:{run[0]}" not in self.paused
            assert attempt.inputs == {"/".join(chunk): model.version[chunk] for chunk in model.inputs(run)}
            assert all(model.status[chunk] == "READY" for chunk in model.inputs(run))
            last = model.last_of(run)
            statuses = [model.status[chunk] for chunk in model.outputs(run) if chunk in model.status]
            if last.outcome == "FAILED" and statuses and max(statuses) == "FAILED":
                last.tries += 1
            elif last.outcome not in {"LOST", "RETURNED"}:
                last.tries = 1
            if last.outcome == "LOST":
                last.lost = (last.lost + 1) % MAX_LOST
            elif last.outcome != "RETURNED":
                last.lost = 0
            last.outcome, last.retries = None, False
            model.live[run] = Live(attempt, name, self.daemons[name].incarnation)
            for chunk in model.outputs(run):
                model.set(chunk, "RUNNING")
        if attempts:
            assert len(attempts) <= want
            self.assert_within_limits({attempt.job for attempt in attempts})
        return attempts

    def assert_within_limits(self, claimed: set[str]) -> None:
        running = [job for job, _ in self.model.live]
        everywhere = self.limits["global"]
        assert everywhere is not None
        assert len(running) <= everywhere
        for job in claimed:
            limit = self.limits.get(f"job:{job}")
            assert limit is None or running.count(job) <= limit

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), outcome=st.sampled_from(["DONE", "DONE", "FAILED", "FAILED", "RETURNED"]))
    def finish(self, data: st.DataObject, outcome: str) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.model.live))), outcome)

    def end(self, run: Run, outcome: str) -> None:
        """Finishes the attempt. After a crash the next session of the same daemon does it: the token is valid until a rescue."""
        live = self.model.live[run]
        verdict = self.daemons[live.daemon].finish(
            live.attempt, outcome=outcome, code=None if outcome == "DONE" else "BAD"
        )
        assert verdict == "accepted"
        del self.model.live[run]
        self.model.ended.append(live)
        last = self.model.last_of(run)
        last.outcome = outcome
        last.retries = outcome == "FAILED" and last.tries < JOBS[run[0]].max_attempts
        for chunk in self.model.outputs(run):
            if outcome == "DONE":
                self.model.publish(chunk)
            else:
                self.model.set(chunk, "FAILED" if outcome == "FAILED" else "RESUBMIT")

    @precondition(lambda self: self.model.stopping)
    @rule(data=st.data(), outcome=st.sampled_from(["DONE", "FAILED"]))
    def cancelled_one_reports(self, data: st.DataObject, outcome: str) -> None:
        run = data.draw(st.sampled_from(sorted(self.model.stopping)))
        self.let_go(run, outcome)

    def let_go(self, run: Run, outcome: str) -> None:
        stopping = self.model.stopping.pop(run)
        assert self.daemons[stopping.daemon].finish(stopping.attempt, outcome=outcome) == "fenced"
        self.model.ended.append(stopping)

    @precondition(lambda self: self.model.ended)
    @rule(data=st.data(), name=st.sampled_from(DAEMONS))
    def zombie_finishes(self, data: st.DataObject, name: str) -> None:
        zombie = self.model.ended[data.draw(st.integers(0, len(self.model.ended) - 1))]
        assert self.daemons[name].finish(zombie.attempt) == "fenced"

    @rule(name=st.sampled_from(DAEMONS))
    def crash_and_start_again(self, name: str) -> None:
        self.daemons[name].crash()
        self.model.dead.add(self.daemons[name].incarnation)
        self.daemons[name] = Daemon.start(self.world.dsn, name)
        for run in [run for run, stopping in self.model.stopping.items() if stopping.daemon == name]:
            self.model.ended.append(self.model.stopping.pop(run))

    @rule(name=st.sampled_from(DAEMONS))
    def lose_the_connection(self, name: str) -> None:
        daemon = self.daemons[name]
        daemon.disconnect()
        own = [
            live.attempt.attempt
            for live in self.model.live.values()
            if (live.daemon, live.incarnation) == (name, daemon.incarnation)
        ]
        assert daemon.reconnect() == sorted(own)

    @rule()
    def rescue(self) -> None:
        orphans = {run: live for run, live in self.model.live.items() if live.incarnation in self.model.dead}
        rescued = self.world.rows("SELECT jobid, dataid FROM dataflow.rescue()")
        assert {(job, dataid) for job, dataid in rescued} == set(orphans)
        for run, live in orphans.items():
            del self.model.live[run]
            self.model.ended.append(live)
            last = self.model.last_of(run)
            last.outcome = "LOST"
            for chunk in self.model.outputs(run):
                self.model.set(chunk, "FAILED" if last.lost + 1 >= MAX_LOST else "RESUBMIT")

    # Checks after every step

    @invariant()
    def the_database_says_what_the_model_says(self) -> None:
        if not self.daemons:
            return
        stored = self.world.rows(
            "SELECT datasetid, dataid, status, version FROM dataflow.datastatus WHERE locktype = 'OUT'"
        )
        assert {(dataset, dataid): status for dataset, dataid, status, _ in stored} == self.model.status
        for dataset, dataid, _, version in stored:
            assert version == self.model.version.get((dataset, dataid), 0)
        live = self.world.rows("SELECT jobid, dataid, attempt FROM dataflow.attempt WHERE ended IS NULL")
        assert {(job, dataid): attempt for job, dataid, attempt in live} == {
            run: each.attempt.attempt for run, each in self.model.live.items()
        }
        assert len(live) == len(self.model.live), "two live attempts for one run"

    @invariant()
    def only_live_attempts_hold_their_inputs(self) -> None:
        if not self.daemons:
            return
        reading = self.world.rows(
            "SELECT jobid, run, datasetid, dataid FROM dataflow.datastatus WHERE locktype = 'IN' AND status = 'RUNNING'"
        )
        assert {((job, run), (dataset, dataid)) for job, run, dataset, dataid in reading} == {
            (run, chunk) for run in self.model.live for chunk in self.model.inputs(run)
        }

    @invariant()
    def everything_published_was_published_by_a_live_token(self) -> None:
        if not self.daemons:
            return
        assert (
            self.world.rows(
                "SELECT FROM dataflow.manifest m JOIN dataflow.attempt a USING (attempt) WHERE a.outcome IS DISTINCT FROM 'DONE'"
            )
            == []
        )

    @invariant()
    def the_queue_is_what_a_rebuild_makes_of_nothing(self) -> None:
        if not self.daemons:
            return
        self.world.do("SELECT dataflow.settle()")
        queue = self.world.queue()
        assert queue == self.model.ready()
        assert queue == self.world.rebuilt_queue()

    @invariant()
    def the_second_judge_finds_nothing(self) -> None:
        """Limits are left out: running attempts may exceed a lowered limit. `take` checks the limits at each claim."""
        if not self.daemons:
            return
        self.world.do("SELECT dataflow.settle()")
        assert [each for each in judge(self.world.connection) if each.kind != "limit"] == []

    def drain(self) -> None:
        """Works without faults until no run is left in the queue or RUNNING."""
        for scope in self.limits:
            self.world.do("SELECT dataflow.set_concurrency(%s, 100)", scope)
            self.limits[scope] = 100
        for run in list(self.model.stopping):
            self.let_go(run, "DONE")
        self.rescue()
        for run in list(self.model.live):
            self.end(run, "DONE")
        idle = 0
        while idle < len(DAEMONS):
            self.world.later()
            attempts = self.take(DAEMONS[idle], 100)
            for attempt in attempts:
                self.end(attempt.run, "DONE")
            idle = 0 if attempts else idle + 1
        assert self.world.queue() == self.model.ready() == set()
        assert "RUNNING" not in self.model.status.values()
        self.the_database_says_what_the_model_says()


def test_random_histories_keep_the_rules(world: World) -> None:
    for name, job in JOBS.items():
        world.job(
            name,
            dict.fromkeys(job.inputs, job.mapping),
            job.outputs,
            max_attempts=job.max_attempts,
            max_running=job.max_running,
            max_lost=MAX_LOST,
            strict_order=job.strict,
        )
    run_state_machine_as_test(
        type("HistoriesOfThisWorld", (Histories,), {"world": world}),
        settings=settings(
            max_examples=35,
            stateful_step_count=50,
            phases=set(Phase) - {Phase.explain},
            suppress_health_check=list(HealthCheck),
        ),
    )
