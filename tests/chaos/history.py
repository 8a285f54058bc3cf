"""What the database keeps of a run of chaos, read once, for the checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg.rows import class_row

if TYPE_CHECKING:
    from datetime import datetime

    import psycopg

Chunk = tuple[str, str]


@dataclass(frozen=True)
class Attempt:
    attempt: int
    jobid: str
    dataid: str
    number: int
    daemon: str
    inputs: dict[str, int]  # dataset/dataid -> version
    claimed: datetime
    ended: datetime | None
    outcome: str | None
    code_hash: str | None

    @property
    def run(self) -> tuple[str, str]:
        return self.jobid, self.dataid


@dataclass(frozen=True)
class Manifest:
    datasetid: str
    dataid: str
    version: int
    attempt: int
    location: str | None
    files: list[dict[str, Any]]
    rows: int | None
    is_collected: bool

    @property
    def chunk(self) -> Chunk:
        return self.datasetid, self.dataid


@dataclass(frozen=True)
class Event:
    """A transition of a chunk."""

    event: int
    at: datetime
    application: str
    datasetid: str
    dataid: str
    attempt: int | None
    was: str | None
    now: str | None

    @property
    def chunk(self) -> Chunk:
        return self.datasetid, self.dataid


@dataclass(frozen=True)
class Control:
    at: datetime
    application: str
    scope: str
    concurrency: int | None
    is_paused: bool


@dataclass(frozen=True)
class Status:
    datasetid: str
    dataid: str
    status: str
    version: int
    manifest: int | None
    code: str | None
    reason: str | None

    @property
    def chunk(self) -> Chunk:
        return self.datasetid, self.dataid


@dataclass
class History:
    outputs: dict[str, list[str]]  # job -> datasets
    attempts: dict[int, Attempt]
    manifests: list[Manifest]
    events: list[Event]
    controls: list[Control]
    statuses: dict[Chunk, Status]
    by_chunk: dict[Chunk, list[Event]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for event in self.events:
            self.by_chunk.setdefault(event.chunk, []).append(event)


OUTPUTS = "SELECT jobid::text, array_agg(datasetid::text ORDER BY datasetid) FROM dataflow.job_output GROUP BY jobid"
ATTEMPTS = """
    SELECT attempt, jobid::text, dataid::text, number, daemon::text, inputs, claimed, ended, outcome, code_hash
    FROM dataflow.attempt ORDER BY attempt
"""
MANIFESTS = """
    SELECT datasetid::text, dataid::text, version, attempt, location, files, rows, collected IS NOT NULL AS is_collected
    FROM dataflow.manifest ORDER BY datasetid, dataid, version
"""
EVENTS = """
    SELECT event, at, application, datasetid::text, dataid::text, attempt, from_status AS was, to_status AS now
    FROM dataflow.event
    WHERE kind = 'status' AND datasetid IS NOT NULL AND (from_status IS NOT NULL OR to_status IS NOT NULL)
    ORDER BY event
"""
CONTROLS = """
    SELECT at, application, split_part(reason, ' ', 1) AS scope, to_status::int AS concurrency, reason LIKE '%(paused)' AS is_paused
    FROM dataflow.event WHERE kind = 'control' ORDER BY event
"""
STATUSES = """
    SELECT datasetid::text, dataid::text, status, version, manifest, code, reason
    FROM dataflow.datastatus WHERE locktype = 'OUT'
"""


def load(connection: psycopg.Connection) -> History:
    def every(kind: type[Any], statement: str) -> list[Any]:
        with connection.cursor(row_factory=class_row(kind)) as cursor:
            return cursor.execute(statement.encode()).fetchall()

    return History(
        outputs=dict(connection.execute(OUTPUTS).fetchall()),
        attempts={attempt.attempt: attempt for attempt in every(Attempt, ATTEMPTS)},
        manifests=every(Manifest, MANIFESTS),
        events=every(Event, EVENTS),
        controls=every(Control, CONTROLS),
        statuses={status.chunk: status for status in every(Status, STATUSES)},
    )
