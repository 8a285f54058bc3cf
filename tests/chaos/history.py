"""The history of a chaos run, read once from the database for the checks. audit.py has kept the deleted rows."""

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
    forced: bool = False
    deleted: datetime | None = None

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
    published: datetime | None = None
    deleted: datetime | None = None

    @property
    def chunk(self) -> Chunk:
        return self.datasetid, self.dataid


@dataclass(frozen=True)
class Event:
    """One transition of a chunk's status."""

    event: int
    at: datetime
    application: str
    datasetid: str
    dataid: str
    attempt: int | None
    was: str | None
    now: str | None
    committed: datetime | None = None  # other sessions cannot have seen it before

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
class Vouched:
    """From this time on a chunk was validated, or not validated."""

    at: datetime
    datasetid: str
    dataid: str
    is_valid: bool


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
    vouched: list[Vouched] = field(default_factory=list)
    by_chunk: dict[Chunk, list[Event]] = field(default_factory=dict)
    written: dict[int, set[str]] = field(
        default_factory=dict
    )  # attempt -> the datasets whose writing it began

    def __post_init__(self) -> None:
        for event in self.events:
            self.by_chunk.setdefault(event.chunk, []).append(event)
            if event.now == "RUNNING" and event.attempt is not None:
                self.written.setdefault(event.attempt, set()).add(event.datasetid)


ATTEMPTS = """
    SELECT attempt, jobid::text, dataid::text, number, daemon::text, inputs, claimed, ended, outcome, code_hash, forced, deleted
    FROM (SELECT a.*, NULL::timestamptz AS deleted FROM dataflow.attempt a UNION ALL SELECT * FROM chaos.attempt) AS a ORDER BY attempt
"""
MANIFESTS = """
    SELECT datasetid::text, dataid::text, version, attempt, location, files, rows, collected IS NOT NULL AS is_collected, published, deleted
    FROM (SELECT m.*, NULL::timestamptz AS deleted FROM dataflow.manifest m UNION ALL SELECT * FROM chaos.manifest) AS m
    ORDER BY datasetid, dataid, published, version
"""
VOUCHED = "SELECT at, datasetid, dataid, is_valid FROM chaos.vouched ORDER BY at"
EVENTS = """
    SELECT event, at, application, datasetid::text, dataid::text, attempt, from_status AS was, to_status AS now,
        pg_xact_commit_timestamp(xmin) AS committed
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


def load(connection: psycopg.Connection, outputs: dict[str, list[str]]) -> History:
    """Reads the history. `outputs`: the outputs that each job has in every version of its flow."""

    def every(kind: type[Any], statement: str) -> list[Any]:
        with connection.cursor(row_factory=class_row(kind)) as cursor:
            return cursor.execute(statement.encode()).fetchall()

    return History(
        outputs=outputs,
        attempts={attempt.attempt: attempt for attempt in every(Attempt, ATTEMPTS)},
        manifests=every(Manifest, MANIFESTS),
        events=every(Event, EVENTS),
        controls=every(Control, CONTROLS),
        statuses={status.chunk: status for status in every(Status, STATUSES)},
        vouched=every(Vouched, VOUCHED),
    )
