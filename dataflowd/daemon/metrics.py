"""Counts and times for Prometheus, in a registry of this daemon's own.

The daemon counts what it does when it does it. What the database knows (runs by state, the queue) it asks for at each
scrape, in one cheap call. While the database does not answer, these metrics are missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dataflowd.daemon.listener import ListenerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dataflowd.daemon.state import State

CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
START_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
RUN_STATES = ("ready", "running", "failed", "resubmit", "held")


class Metrics:
    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.claim_seconds = Histogram(
            "dataflow_claim_seconds", "Time of one claim", buckets=CALL_BUCKETS, registry=registry
        )
        self.finish_seconds = Histogram(
            "dataflow_finish_seconds",
            "Time to store one batch of results",
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.start_seconds = Histogram(
            "dataflow_start_seconds",
            "From the claim of a run to the start of its job's code",
            buckets=START_BUCKETS,
            registry=registry,
        )
        self.wait_seconds = Histogram(
            "dataflow_wait_seconds",
            "From the moment a run is ready to the start of its job's code",
            buckets=START_BUCKETS,
            registry=registry,
        )
        self.attempts = Counter(
            "dataflow_attempts", "Attempts that ended here", ["job", "outcome"], registry=registry
        )
        self.runner_starts = Counter(
            "dataflow_runner_starts",
            "Attempts by the runner they got: cold was started for it, warm was there",
            ["kind"],
            registry=registry,
        )
        self._running = Gauge("dataflow_running", "Attempts of this daemon now", registry=registry)
        self._limit = Gauge(
            "dataflow_limit", "Attempts that this daemon may run at a time", registry=registry
        )
        self._paused = Gauge("dataflow_paused", "1: nothing is claimed", registry=registry)
        self._lease_left = Gauge(
            "dataflow_lease_seconds", "Until the lease ends unless it is renewed", registry=registry
        )
        self._listener = Gauge(
            "dataflow_listener", "1 for the state that the listener is in", ["state"], registry=registry
        )
        self._database = Gauge(
            "dataflow_database_up", "1: the claiming session is connected", registry=registry
        )
        self._runs = Gauge("dataflow_runs", "Runs by job and state", ["job", "state"], registry=registry)
        self._queued = Gauge(
            "dataflow_queue_depth", "Runs that are ready to start", ["job"], registry=registry
        )
        self._oldest = Gauge(
            "dataflow_oldest_waiting_seconds", "Age of the oldest of them", ["job"], registry=registry
        )

    def ended(self, outcomes: Mapping[tuple[str, str], int]) -> None:
        for (job, outcome), count in outcomes.items():
            self.attempts.labels(job, outcome).inc(count)

    def expose(self, state: State, now: float, jobs: Iterable[tuple[object, ...]]) -> bytes:
        """The text that Prometheus reads; `jobs` are the rows of the query daemon_status."""
        self._running.set(len(state.attempts.running))
        self._limit.set(state.limits.limit)
        self._paused.set(state.limits.paused)
        self._lease_left.set(state.lease.proven - now)
        self._database.set(state.claims.link.is_up)
        for each in ListenerState:
            self._listener.labels(each.value).set(state.hearing.state is each)
        for gauge in (self._runs, self._queued, self._oldest):
            gauge.clear()
        for job, *counts, queued, _later, oldest in jobs:
            for name, count in zip(RUN_STATES, counts, strict=True):
                self._runs.labels(job, name).set(_number(count))
            self._queued.labels(job).set(_number(queued))
            self._oldest.labels(job).set(_number(oldest))
        return generate_latest(self.registry)


def _number(value: object) -> float:
    return float(str(value))
