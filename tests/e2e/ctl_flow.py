"""For the tests of dataflowctl: a small flow, and a daemon that only calls the SQL functions."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from dataflowd.cli.json_keys import KEYS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from tests.fix_postgres import RunCtl

TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "time": str,
    "list": list,
    "object": dict,
    "any": object,
}


def declare(
    connection: psycopg.Connection, jobs: dict[str, tuple[Sequence[str], str]], **columns: Any
) -> None:
    """Declares jobs by name, each with its inputs and its output."""
    names = {name for inputs, output in jobs.values() for name in (*inputs, output)}
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO dataflow.dataset (datasetid, flow, location) VALUES (%s, 'test', '/data/' || %s) ON CONFLICT DO NOTHING",
            [(name, name) for name in sorted(names)],
        )
        cursor.executemany(
            "INSERT INTO dataflow.job (jobid, flow, max_running, max_attempts, params) VALUES (%s, 'test', %s, %s, %s)",
            [
                (name, columns.get("max_running"), columns.get("max_attempts", 1), Jsonb({"currency": "EUR"}))
                for name in jobs
            ],
        )
        cursor.executemany(
            "INSERT INTO dataflow.job_input (jobid, datasetid) VALUES (%s, %s)",
            [(job, name) for job, (inputs, _) in jobs.items() for name in inputs],
        )
        cursor.executemany(
            "INSERT INTO dataflow.job_output (jobid, datasetid) VALUES (%s, %s)",
            [(job, output) for job, (_, output) in jobs.items()],
        )


def retail(connection: psycopg.Connection) -> None:
    declare(
        connection, {"clean_orders": (["raw_orders"], "orders"), "roll_up": (["orders", "prices"], "totals")}
    )


class Daemon:
    """Claims and finishes as a daemon would, in a session of its own."""

    def __init__(self, connection: psycopg.Connection[dict[str, Any]], name: str, host: str) -> None:
        self.connection, self.name = connection, name
        # The lease is long, because no test renews it.
        registered = "SELECT dataflow.register_daemon(%s, %s, 4711, '1 hour') AS x"
        self.incarnation = self._one(registered, name, host)["x"]

    def claim(self, want: int = 1000) -> list[dict[str, Any]]:
        return self.connection.execute(
            "SELECT * FROM dataflow.claim(%s, %s, %s)", [self.name, self.incarnation, want]
        ).fetchall()

    def finish(self, attempts: Sequence[dict[str, Any]], outcome: str = "DONE", **result: Any) -> None:
        results = [
            {"attempt": a["attempt"], "token": str(a["token"]), "outcome": outcome, **result}
            for a in attempts
        ]
        verdicts = self.connection.execute("SELECT * FROM dataflow.finish(%s)", [Jsonb(results)]).fetchall()
        assert {row["verdict"] for row in verdicts} <= {"accepted"}

    def run_all(self) -> list[tuple[str, str]]:
        """Claims and finishes until the queue is empty, and returns the runs in their order."""
        done: list[tuple[str, str]] = []
        while claimed := self.claim():
            done += [(row["jobid"], row["dataid"]) for row in claimed]
            self.finish(claimed)
        return done

    def _one(self, statement: Any, *parameters: Any) -> dict[str, Any]:
        row = self.connection.execute(statement, parameters).fetchone()
        assert row is not None
        return row


@contextmanager
def running_daemon(dsn: str, name: str = "alpha", host: str = "host1") -> Iterator[Daemon]:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        yield Daemon(connection, name, host)


def limit(connection: psycopg.Connection, concurrency: int) -> None:
    connection.execute("UPDATE dataflow.control SET concurrency = %s WHERE scope = 'global'", [concurrency])


def ready(connection: psycopg.Connection, dataset: str, *dataids: str) -> None:
    connection.execute("SELECT dataflow.ready(%s, %s::text[])", [dataset, list(dataids)])


def ok(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def asked(run_ctl: RunCtl, *arguments: str) -> Any:
    """Runs a command, and returns its JSON, after comparing its keys with those of the help."""
    value = json.loads(ok(run_ctl(*arguments, "--json")))
    name = " ".join(arguments[:2]) if arguments[0] in {"job", "partition", "quarantine"} else arguments[0]
    shape = KEYS[name]
    assert isinstance(value, list if shape.is_list else dict)
    for each in value if isinstance(value, list) else [value]:
        assert_shape(each, shape.keys)
    return value


def assert_shape(value: dict[str, Any], keys: dict[str, str]) -> None:
    assert list(value) == list(keys) or sorted(value) == sorted(keys)
    for key, kind in keys.items():
        expected, _, members = kind.partition(" of ")
        is_optional = expected.endswith("?")
        if is_optional and value[key] is None:
            continue
        wanted = TYPES[expected.rstrip("?")]
        assert isinstance(value[key], wanted), f"{key} is no {expected}: {value[key]!r}"
        assert expected.startswith("boolean") or not isinstance(value[key], bool), key
        for member in value[key] if members else ():
            assert sorted(member) == sorted(members.strip("{}").split(", ")), key
