"""`python -m tests.keep_schema`: saves the schema of this release, so that tests of later releases can upgrade it.

Run it once for every release, when its files are final. Commit the result, and never change it again. It writes to
tests/upgrade/kept/<version>: `dump.sql`, a database of this release with runs in every state; `queries.sql`, the queries of
its programs; and `kept.json`, the checksums of its migrations and the columns that each query returns.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import conninfo, pq
from psycopg.types.json import Jsonb

from dataflowd import __version__
from dataflowd.database import migrate
from dataflowd.host import sqlfiles
from dataflowd.host.embedded import programs
from tests.fix_postgres import TEST_SERVER_SETTINGS, running_server

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT = Path(__file__).parent / "upgrade" / "kept"
DUMP, QUERIES, DESCRIBED = "dump.sql", "queries.sql", "kept.json"
_PARAMETER = re.compile(r"%\(([a-z_]+)\)s|%%")
DAYS = tuple(f"2026-01-{day:02}" for day in range(1, 11))

DECLARED: LiteralString = """
    INSERT INTO dataflow.dataset (datasetid, location, format)
    VALUES ('raw', '/data/raw/{dataid}', 'csv'), ('clean', '/data/clean', 'parquet'), ('sums', '/data/sums', 'parquet'),
        ('ordered', '/data/ordered', 'parquet');
    INSERT INTO dataflow.job (jobid, max_attempts, retry_delay, strict_order)
    VALUES ('clean_orders', 3, '1 second', false), ('sum_orders', 1, '1 second', false), ('in_order', 1, '1 second', true);
    INSERT INTO dataflow.job_input (jobid, datasetid) VALUES ('clean_orders', 'raw'), ('sum_orders', 'clean'), ('in_order', 'raw');
    INSERT INTO dataflow.job_output (jobid, datasetid) VALUES ('clean_orders', 'clean'), ('sum_orders', 'sums'), ('in_order', 'ordered');
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.keep_schema", description="Keeps the schema of a release."
    )
    parser.add_argument(
        "--again", action="store_true", help="replace it; only right while the release is not out"
    )
    again, directory = parser.parse_args().again, KEPT / __version__
    if directory.exists() and not again:
        sys.exit(
            f"{directory} is there: a released schema does not change. Raise the version, or say --again"
        )
    with running_server(TEST_SERVER_SETTINGS) as server:
        dsn = server.dsn
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate.init(connection)
            populate(connection)
            described = {
                "migrations": checksums(),
                "queries": describe(connection, queries(sqlfiles.sql_dir() / QUERIES)),
            }
        dumped = dump(dsn, "--schema=dataflow", "--inserts", "--rows-per-insert=50")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / DUMP).write_text(dumped, encoding="utf-8")
    (directory / QUERIES).write_bytes((sqlfiles.sql_dir() / QUERIES).read_bytes())
    (directory / DESCRIBED).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"kept {directory}\n")


def checksums() -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sqlfiles.migrations()}


def queries(path: Path) -> dict[str, str]:
    """The named queries of a file, as a program of that release sends them."""
    found = re.split(r"^-- ([a-z_]+): .+$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(found[1::2], found[2::2], strict=True)}


def describe(connection: psycopg.Connection, found: Mapping[str, str]) -> dict[str, list[list[str]]]:
    """Name and type of each column that a query returns. Executes nothing; skips queries of several statements."""
    columns = {}
    for name, text in found.items():
        numbers: dict[str, int] = {}
        numbered = _PARAMETER.sub(lambda part, seen=numbers: _number(part, seen), text)  # type: ignore[misc]
        if ";" in numbered.rstrip().rstrip(";"):
            continue
        prepared = connection.pgconn.prepare(b"", numbered.encode())
        if prepared.status != pq.ExecStatus.COMMAND_OK:
            raise RuntimeError(f"{name} cannot be sent: {prepared.error_message.decode()}")
        shown = connection.pgconn.describe_prepared(b"")
        columns[name] = [
            [(shown.fname(index) or b"").decode(), _type(connection, shown.ftype(index))]
            for index in range(shown.nfields)
        ]
    return columns


def _number(part: re.Match[str], seen: dict[str, int]) -> str:
    return "%" if part[0] == "%%" else f"${seen.setdefault(part[1], len(seen) + 1)}"


def _type(connection: psycopg.Connection, oid: int) -> str:
    [[name]] = connection.execute("SELECT format_type(%s, NULL)", [oid]).fetchall()
    return str(name)


def dump(dsn: str, *options: str) -> str:
    """The output of pg_dump without the lines that differ each time."""
    done = subprocess.run(
        [str(programs.binary("pg_dump")), *options, "--dbname", dsn],
        check=True,
        capture_output=True,
        text=True,
    )
    return "".join(
        line
        for line in done.stdout.splitlines(keepends=True)
        if not line.startswith(("\\restrict", "\\unrestrict"))
    )


def restore(dsn: str, dumped: Path) -> None:
    subprocess.run(
        [
            *(str(programs.binary("psql")), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"),
            *("--dbname", conninfo.make_conninfo(dsn), "--file", str(dumped)),
        ],
        check=True,
        capture_output=True,
    )


def populate(connection: psycopg.Connection) -> None:
    """Makes runs that are done, failed, retried, held, cancelled, running, lost and waiting."""
    connection.execute(DECLARED)
    connection.execute(
        "SELECT dataflow.set_concurrency('global', 100), dataflow.set_concurrency('job:in_order', 1)"
    )
    [[incarnation]] = connection.execute(
        "SELECT dataflow.register_daemon('old-1', 'gone', 1, '1 second')"
    ).fetchall()
    connection.execute("SELECT dataflow.ready('raw', %s::text[])", [list(DAYS)])
    taken = _claimed(connection, incarnation)
    _finish(connection, taken["clean_orders", DAYS[0]], outcome="DONE", quarantine=[{"item": "4711", "reason": "no date"}],
        outputs={"clean": {"location": "/data/clean/dataid=2026-01-01/attempt=1", "rows": 9, "bytes": 900, "files": []}},
        checks=[{"dataset": "clean", "name": "min_rows", "passed": True, "observed": "9", "expected": "1"}],
        nodes=[{"node": "read", "items": 10, "successes": 9, "failures": 1, "seconds": 0.5}])  # fmt: skip
    _finish(connection, taken["clean_orders", DAYS[1]], outcome="DONE")
    _finish(
        connection,
        taken["clean_orders", DAYS[2]],
        outcome="FAILED",
        code="JOB_FAILED",
        error="no such file",
        retry=False,
    )
    _finish(
        connection, taken["clean_orders", DAYS[3]], outcome="FAILED", code="NETWORK", error="no route to host"
    )
    _finish(connection, taken["clean_orders", DAYS[4]], outcome="RETURNED")
    _finish(connection, taken["in_order", DAYS[0]], outcome="DONE")
    connection.execute(
        "SELECT dataflow.hold('raw', 'held', 'bad feed'), dataflow.hold('clean', %s, 'look at it')", [DAYS[5]]
    )
    connection.execute("SELECT dataflow.cancel('clean_orders', %s)", [DAYS[6]])
    again = _claimed(connection, incarnation)
    _finish(connection, again["sum_orders", DAYS[0]], outcome="DONE")
    connection.execute(
        "UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE datasetid = 'clean' AND dataid = %s",
        [DAYS[1]],
    )
    connection.execute("SELECT dataflow.add_key('x25519', %s::bytea)", [bytes(range(32))])
    connection.execute("SELECT dataflow.create_partitioning('raw', 'every_2', ARRAY['id'], 'every', 2, '[]')")


def _claimed(connection: psycopg.Connection, incarnation: Any) -> dict[tuple[str, str], tuple[int, str]]:
    rows = connection.execute(
        "SELECT jobid, dataid, attempt, token::text FROM dataflow.claim('old-1', %s, 100)", [incarnation]
    ).fetchall()
    return {(jobid, dataid): (attempt, token) for jobid, dataid, attempt, token in rows}


def _finish(connection: psycopg.Connection, claimed: tuple[int, str], **result: Any) -> None:
    attempt, token = claimed
    verdicts = connection.execute(
        "SELECT verdict FROM dataflow.finish(%s)", [Jsonb([{"attempt": attempt, "token": token, **result}])]
    ).fetchall()
    if verdicts != [("accepted",)]:
        raise RuntimeError(f"attempt {attempt} was not accepted: {verdicts}")


if __name__ == "__main__":
    main()
