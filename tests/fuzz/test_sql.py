"""Calls every public function of the schema with good, random and hostile values of its types, several calls in a row.

A call is accepted, or refused by one of our errors, or by Postgres because a value does not fit its type. There is no internal
error, no timeout, and no lock that a refused call keeps. Postgres rolls a refused call back, except for session-level locks:
they are checked after each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.fuzz.words import DATAIDS, Speaker, cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_world import Daemon, World

ROWS = 1000
CALLS = 3  # a case makes so many calls in a row
OUR_STATES = (
    "DF",
    "22",
    "23514",
    "23502",
)  # our errors; a value that does not fit its type or domain; a missing value
FUNCTIONS = """
    SELECT p.proname::text, array_agg(t.type ORDER BY t.position), array_agg(t.name ORDER BY t.position), p.pronargdefaults
    FROM pg_proc p
    CROSS JOIN LATERAL (
        SELECT a.position, format_type(a.type, NULL) AS type, p.proargnames[a.position] AS name
        FROM unnest(p.proargtypes) WITH ORDINALITY AS a (type, position)
    ) AS t
    WHERE p.pronamespace = 'dataflow'::regnamespace AND p.prokind = 'f' AND NOT starts_with(p.proname, '_')
        AND p.prorettype <> 'trigger'::regtype
    GROUP BY p.oid, p.proname ORDER BY p.proname, p.oid
"""
LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
MOMENTS = (
    "now",
    "infinity",
    "-infinity",
    "2026-01-01",
    "4714-01-01 BC",
    "294276-12-31",
    "epoch",
    "2026-02-30",
    "x",
)
SPANS = ("0", "1 day", "-1 day", "100000000 years", "infinity", "1 month", "36h", "P1D", "x", "")


class Caller(Speaker):
    def value(self, kind: str) -> Any:
        say: dict[str, Callable[[], Any]] = {
            "text": self.text,
            "text[]": lambda: self.several(lambda: None if self.chance(0.1) else self.text(), 4),
            "jsonb": lambda: Jsonb(self.one((self.json, self.selector, self.results, self.flow))()),
            "boolean": lambda: self.chance(0.5),
            "integer": self.whole,
            "bigint": self.whole,
            "bigint[]": lambda: self.several(self.whole, 4),
            "double precision": self.number_,
            "uuid": lambda: f"{self.random.getrandbits(128):032x}",
            "interval": lambda: self.one(SPANS),
            "timestamp with time zone": lambda: self.one(MOMENTS),
            "timestamp without time zone": lambda: self.one(MOMENTS),
            "bytea": lambda: self.random.randbytes(self.random.randint(0, 40)),
        }
        return None if self.chance(0.1) else say[kind]()

    def selector(self) -> dict[str, Any]:
        return self.some_of(
            job=self.text, dataset=self.text, dataid=self.text, status=self.text, error=self.text,
            since=lambda: self.one(MOMENTS), stale=lambda: self.chance(0.5),
        )  # fmt: skip

    def results(self) -> list[dict[str, Any]]:
        """JSON values: results of attempts, splits, repaired records."""

        def outcome() -> str:
            return str(self.one(("DONE", "FAILED", "RETURNED")))

        return self.several(
            lambda: self.some_of(
                attempt=self.whole, token=lambda: self.value("uuid"), outcome=outcome, outputs=self.json, usage=self.json,
                dataid=self.text, itemid=self.text, item=self.text, bounds=self.json, items=self.whole, repaired=self.json,
            ),
            3,
        )  # fmt: skip

    def flow(self) -> dict[str, Any]:
        def dataset() -> dict[str, Any]:
            return {"datasetid": self.text()} | self.some_of(
                format=self.text, options=self.json, checks=self.json, calendar=self.text, calendar_start=self.text,
                calendar_zone=self.text, ordering=self.text, location=self.text, port=self.whole,
            )  # fmt: skip

        def job() -> dict[str, Any]:
            return {"jobid": self.text()} | self.some_of(
                inputs=lambda: {self.text(): {"kind": self.text()} | self.some_of(by=self.whole, unit=self.text)},
                outputs=lambda: [self.text()], params=self.json, max_running=self.whole, max_attempts=self.whole,
                retry_delay=self.text, timeout=self.text, priority=self.whole, strict_order=lambda: self.chance(0.5),
            )  # fmt: skip

        return {"name": self.text()} | self.some_of(
            datasets=lambda: self.several(dataset, 2), jobs=lambda: self.several(job, 2)
        )


@dataclass(frozen=True)
class Function:
    name: str
    kinds: list[str]
    arguments: list[str]
    defaults: int


@dataclass(frozen=True)
class Call:
    function: Function
    parameters: list[Any]

    @classmethod
    def said(cls, caller: Caller, function: Function, daemon: Daemon) -> Call:
        """The arguments of a call. A daemon and its incarnation are usually those of this session."""
        known = {"daemon": daemon.name, "incarnation": daemon.incarnation} if caller.chance(0.7) else {}
        count = caller.random.randint(len(function.kinds) - function.defaults, len(function.kinds))
        named = list(zip(function.arguments, function.kinds, strict=True))[:count]
        return cls(function, [known.get(name) or caller.value(kind) for name, kind in named])

    def statement(self) -> sql.Composed:
        kinds = self.function.kinds[: len(self.parameters)]
        given = [sql.SQL("%s::") + sql.SQL(kind) for kind in kinds]  # as the server writes them
        return sql.SQL("SELECT * FROM dataflow.{}({})").format(
            sql.Identifier(self.function.name), sql.SQL(", ").join(given)
        )


@pytest.fixture
def busy(pipeline: World) -> tuple[World, Daemon]:
    """A world with runs in every state (done, running, failed, held, waiting), and a daemon in this session."""
    pipeline.dataset("sealed", username="loader", hostname="db", database="x")
    pipeline.calendar("daily", "daily", "2026-01-01")
    pipeline.ready("raw", *DATAIDS, "done", "failed")
    daemon = pipeline.daemon()
    attempts = {attempt.run: attempt for attempt in daemon.claim(100)}
    daemon.finish(attempts["clean_orders", "done"], quarantine=[{"item": "4711", "reason": "no date"}])
    daemon.fail(attempts["clean_orders", "failed"])
    pipeline.do("SELECT dataflow.hold('raw', 'held', 'bad feed')")
    return pipeline, daemon


def test_every_function_accepts_or_refuses_with_a_clear_error(busy: tuple[World, Daemon]) -> None:
    world, daemon = busy
    connection = daemon.connection
    connection.execute("SET statement_timeout = '20s'")
    functions = [Function(*row) for row in connection.execute(FUNCTIONS).fetchall()]
    before, wrong = world.everything(), dict[tuple[str, str], str]()

    def try_one(number: int) -> None:
        caller = Caller(number)
        with connection.transaction(force_rollback=True):
            for _ in range(CALLS):
                call = Call.said(caller, caller.one(functions), daemon)
                if said := _said(connection, call):
                    wrong.setdefault((call.function.name, said[:5]), f"{said} by {call} of {number}")
        connection.execute("SELECT pg_advisory_unlock_all()")

    cases(ROWS, try_one)
    assert list(wrong.values()) == []
    assert world.everything() == before


def _said(connection: psycopg.Connection, call: Call) -> str | None:
    """What is wrong with the answer, or None."""
    held = connection.execute(LOCKS).fetchone()
    try:
        with connection.transaction():
            connection.execute(call.statement(), call.parameters).fetchall()
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith(OUR_STATES):
            return f"{error.sqlstate} {_first_and_last(error)}"
        if connection.execute(LOCKS).fetchone() != held:
            return f"locks are kept after {_first_and_last(error)}"
    return None


def _first_and_last(error: psycopg.Error) -> str:
    """What was wrong and in which function, without the statements between."""
    lines = str(error).splitlines()
    return " ... ".join([lines[0], *lines[1:][-1:]])
