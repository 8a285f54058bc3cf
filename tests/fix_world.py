"""A small world for tests of the rules in SQL: datasets, jobs, an operator in psql and any number of daemons.

`world` acts as an operator: the rules for changes by hand apply to its connection. A `Daemon` is a session of its own, as a
real daemon has; it claims, finishes and dies. `later` lets time pass without sleeping.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

PLENTY = 100
Row = tuple[Any, ...]


class Attempt(NamedTuple):
    attempt: int
    token: UUID
    job: str
    dataid: str
    number: int
    tag: str
    inputs: dict[str, int]
    params: dict[str, Any]
    timeout: float | None

    @property
    def run(self) -> tuple[str, str]:
        return self.job, self.dataid


@dataclass
class Daemon:
    """A daemon's claiming session."""

    name: str
    dsn: str
    connection: psycopg.Connection
    incarnation: UUID

    @classmethod
    def start(cls, dsn: str, name: str, environment: str = "dev") -> Daemon:
        connection = psycopg.connect(dsn, autocommit=True, application_name=f"dataflowd {name}")
        register = "SELECT dataflow.register_daemon(%s, 'host', 1, '1 hour', %s)"
        try:
            [[incarnation]] = connection.execute(register, [name, environment]).fetchall()
        except psycopg.Error:
            connection.close()
            raise
        return cls(name, dsn, connection, incarnation)

    def claim(self, want: int = PLENTY) -> list[Attempt]:
        """Claims from the whole queue. Without the setting, how much a claim looks at depends on the time of the last one."""
        self.connection.execute("SELECT set_config('dataflow.look_seconds', '0', false)")
        found = self.connection.execute(
            "SELECT * FROM dataflow.claim(%s, %s, %s)", [self.name, self.incarnation, want]
        )
        return sorted((Attempt(*row) for row in found.fetchall()), key=lambda a: a.attempt)

    def claim_one(self) -> Attempt:
        [attempt] = self.claim(1)
        return attempt

    def runs(self, want: int = PLENTY) -> set[tuple[str, str]]:
        return {attempt.run for attempt in self.claim(want)}

    def finish(self, *attempts: Attempt, outcome: str = "DONE", **details: Any) -> str:
        """Finishes the attempts, and returns the verdict, which must be the same for all of them."""
        results = [
            {"attempt": a.attempt, "token": str(a.token), "outcome": outcome, **details} for a in attempts
        ]
        found = self.connection.execute("SELECT DISTINCT verdict FROM dataflow.finish(%s)", [Jsonb(results)])
        [[verdict]] = found.fetchall()
        return str(verdict)

    def fail(self, *attempts: Attempt, code: str = "JOB_FAILED", **details: Any) -> str:
        return self.finish(*attempts, outcome="FAILED", code=code, error="no such file", **details)

    def offer(self, *attempts: Attempt, outcome: str = "DONE") -> dict[int, str]:
        """Finishes the attempts, and returns the verdicts. Busy ones are tried again until the other transaction ends."""
        verdicts: dict[int, str] = {}
        while left := [each for each in attempts if verdicts.get(each.attempt, "busy") == "busy"]:
            results = [{"attempt": a.attempt, "token": str(a.token), "outcome": outcome} for a in left]
            found = self.connection.execute(
                "SELECT attempt, verdict FROM dataflow.finish(%s)", [Jsonb(results)]
            )
            verdicts |= dict(found.fetchall())
        return verdicts

    def work_off(self) -> list[tuple[str, str]]:
        """Claims and finishes until the queue is empty, and returns the runs in the order of their claims."""
        done: list[tuple[str, str]] = []
        while attempts := self.claim():
            assert self.finish(*attempts) == "accepted"
            done += [attempt.run for attempt in attempts]
        return done

    def disconnect(self) -> None:
        """Closes the session, and returns when the server has released its locks."""
        pid = self.connection.info.backend_pid
        self.connection.close()
        with psycopg.connect(self.dsn, autocommit=True) as observer:
            while observer.execute("SELECT pid FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone():
                pass

    def reconnect(self) -> list[int]:
        """Opens a new session, and returns the attempts that this daemon still owns."""
        self.connection = psycopg.connect(
            self.dsn, autocommit=True, application_name=f"dataflowd {self.name}"
        )
        found = self.connection.execute(
            "SELECT attempt FROM dataflow.retake_attempts(%s, %s) WHERE is_live ORDER BY attempt",
            [self.name, self.incarnation],
        )
        return [attempt for [attempt] in found.fetchall()]

    def expire(self) -> None:
        """Ends the daemon's lease, from another session."""
        with psycopg.connect(self.dsn, autocommit=True) as other:
            other.execute("SELECT dataflow.expire_daemon(%s, %s)", [self.name, self.incarnation])

    def crash(self) -> None:
        self.disconnect()
        self.expire()


@dataclass
class World:
    dsn: str
    connection: psycopg.Connection
    daemons: list[Daemon] = field(default_factory=list)
    _digest: sql.Composed | None = None

    def rows(self, statement: LiteralString, *parameters: Any) -> list[Row]:
        return self.connection.execute(statement, parameters).fetchall()

    def value(self, statement: LiteralString, *parameters: Any) -> Any:
        [[value]] = self.rows(statement, *parameters)
        return value

    def do(self, statement: LiteralString, *parameters: Any) -> int:
        """Runs a statement of the operator, and returns the number of rows that it changed or returned."""
        return self.connection.execute(statement, parameters).rowcount

    def as_framework(self, *statements: LiteralString) -> None:
        """Runs statements that no person may run: the rules for changes by hand do not apply."""
        with self.connection.transaction():
            self.connection.execute("SET LOCAL ROLE dataflow_admin")
            for statement in statements:
                self.connection.execute(statement)

    def dataset(self, *names: str, **columns: Any) -> None:
        for name in names:
            self._insert("dataset", {"datasetid": name, "location": f"/data/{name}/{{dataid}}", **columns})

    def calendar(self, name: str, every: str, start: str, **columns: Any) -> None:
        # A bare date is midnight in UTC, whatever the time zone of the session.
        begins = start if ":" in start else f"{start} 00:00Z"
        moments = {"calendar_start": begins, "calendar_next": begins}
        self.dataset(name, location=None, format="none", calendar=every, **moments, **columns)

    def job(
        self,
        name: str,
        inputs: str | list[str] | Mapping[str, Mapping[str, Any]],
        outputs: str | list[str],
        **columns: Any,
    ) -> None:
        """Makes a job on these datasets, and the datasets that do not exist yet."""
        mapped: Mapping[str, Mapping[str, Any]] = (
            {dataset: {"kind": "identity"} for dataset in _several(inputs)}
            if isinstance(inputs, (str, list))
            else inputs
        )
        known = {found for [found] in self.rows("SELECT datasetid FROM dataflow.dataset")}
        self.dataset(*[each for each in {**mapped, **dict.fromkeys(_several(outputs))} if each not in known])
        self._insert("job", {"jobid": name, **columns})
        for dataset, mapping in mapped.items():
            self._insert("job_input", {"jobid": name, "datasetid": dataset, "mapping": Jsonb(mapping)})
        for dataset in _several(outputs):
            self._insert("job_output", {"jobid": name, "datasetid": dataset})

    def daemon(self, name: str = "alpha", environment: str = "dev") -> Daemon:
        daemon = Daemon.start(self.dsn, name, environment)
        self.daemons.append(daemon)
        return daemon

    def session(self) -> psycopg.Connection:
        """The session of another operator, whose transaction stays open until a commit."""
        return psycopg.connect(self.dsn)

    def ready(self, dataset: str, *dataids: str, **arguments: Any) -> None:
        validated = arguments.get("validated", True)
        self.do("SELECT dataflow.ready(%s, %s::text[], %s)", dataset, list(dataids), validated)

    def resubmit(self, *, downstream: bool = False, **selector: Any) -> list[Row]:
        return self.rows(
            "SELECT jobid, dataid, was FROM dataflow.resubmit(%s, %s)", Jsonb(selector), downstream
        )

    def set_status(self, dataset: str, dataid: str, status: str) -> int:
        """The UPDATE that an operator types in psql."""
        return self.do(
            "UPDATE dataflow.datastatus SET status = %s WHERE datasetid = %s AND dataid = %s",
            *(status, dataset, dataid),
        )

    def status(self, dataset: str, dataid: str) -> str | None:
        found = self.rows(
            "SELECT status FROM dataflow.datastatus WHERE datasetid = %s AND dataid = %s AND locktype = 'OUT'",
            *(dataset, dataid),
        )
        return found[0][0] if found else None

    def consumed(self, dataset: str, dataid: str, job: str) -> str | None:
        """The status of the IN row of a job whose run has the same dataid."""
        found = self.rows(
            "SELECT status FROM dataflow.datastatus WHERE datasetid = %s AND dataid = %s"
            " AND locktype = 'IN' AND jobid = %s AND run = dataid",
            *(dataset, dataid, job),
        )
        return found[0][0] if found else None

    def version(self, dataset: str, dataid: str) -> int:
        return int(
            self.value(
                "SELECT version FROM dataflow.datastatus WHERE datasetid = %s AND dataid = %s AND locktype = 'OUT'",
                *(dataset, dataid),
            )
        )

    def queue(self) -> set[tuple[str, str]]:
        return {(job, dataid) for job, dataid in self.rows("SELECT jobid, dataid FROM dataflow.work")}

    def rebuilt_queue(self) -> set[tuple[str, str]]:
        """The queue that rebuild_work() would make. Changes nothing."""
        with self.connection.transaction(force_rollback=True):
            self.do("SELECT dataflow.rebuild_work()")
            return self.queue()

    def no(self, job: str, dataid: str) -> dict[str, str]:
        """The codes and details of the questions that are answered no."""
        return dict(
            self.rows(
                "SELECT code, detail FROM dataflow.five_questions(%s, %s) WHERE NOT answer", job, dataid
            )
        )

    def outcomes(self, job: str, dataid: str) -> list[str]:
        """The outcomes of a run's attempts, in order."""
        return [
            outcome
            for [outcome] in self.rows(
                "SELECT outcome FROM dataflow.attempt WHERE jobid = %s AND dataid = %s ORDER BY number",
                *(job, dataid),
            )
        ]

    def history(self, job: str, dataid: str) -> list[str]:
        """The events of a run and its outputs: transitions as FROM->TO, all others as kind and code."""
        found = self.rows(
            "SELECT kind, from_status, to_status, code FROM dataflow.history(%s, %s) AS h"
            " WHERE kind IN ('status', 'queued', 'blocked', 'refused', 'accepted') AND (datasetid IS NULL OR EXISTS ("
            " SELECT FROM dataflow.job_output o WHERE o.jobid = %s AND o.datasetid = h.datasetid))",
            *(job, dataid, job),
        )
        return [
            f"{was or '-'}->{now or '-'}" if kind == "status" else " ".join(filter(None, [kind, code]))
            for kind, was, now, code in found
        ]

    def counts(self) -> dict[tuple[str, str, str], int]:
        counted = self.rows("SELECT datasetid, jobid, status, chunks FROM dataflow.chunk_count")
        return {(dataset, job, status): chunks for dataset, job, status, chunks in counted}

    def later(self) -> None:
        """Lets an hour pass: every waiting retry is due, and every recheck may be done again."""
        self.as_framework(
            "UPDATE dataflow.recheck SET looked = looked - interval '1 hour'",
            "UPDATE dataflow.attempt SET retry_at = retry_at - interval '1 hour' WHERE retry_at IS NOT NULL",
            "UPDATE dataflow.work SET not_before = not_before - interval '1 hour' WHERE not_before IS NOT NULL",
        )

    def everything(self) -> str:
        """A digest of every table, to show that a refused call changed nothing."""
        if self._digest is None:
            tables = self.rows(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'dataflow' ORDER BY tablename"
            )
            each = sql.SQL("SELECT {}, md5(string_agg(t::text, '' ORDER BY t::text)) FROM dataflow.{} t")
            digests = sql.SQL(" UNION ALL ").join(
                each.format(sql.Literal(table), sql.Identifier(table)) for [table] in tables
            )
            self._digest = digests + sql.SQL(" ORDER BY 1")
        return json.dumps(self.connection.execute(self._digest).fetchall())

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.connection.close()

    def _insert(self, table: str, row: Mapping[str, Any]) -> None:
        self.connection.execute(
            sql.SQL("INSERT INTO dataflow.{} ({}) VALUES ({})").format(
                sql.Identifier(table),
                sql.SQL(", ").join(map(sql.Identifier, row)),
                sql.SQL(", ").join(sql.Placeholder() * len(row)),
            ),
            list(row.values()),
        )


def _several(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


@pytest.fixture
def world(dsn: str, connection: psycopg.Connection) -> Iterator[World]:
    """A world with room for many attempts at a time. A statement that waits for a lock fails after 10 s."""
    connection.execute("SET lock_timeout = '10s'")
    made = World(dsn, connection)
    made.do("SELECT dataflow.set_concurrency('global', %s)", PLENTY)
    yield made
    made.close()


@pytest.fixture
def pipeline(world: World) -> World:
    """Raw -> clean_orders -> clean -> sum_orders -> sums."""
    world.job("clean_orders", "raw", "clean")
    world.job("sum_orders", "clean", "sums")
    return world
