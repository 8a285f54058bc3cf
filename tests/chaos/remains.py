"""What is left when all daemons have stopped: nothing but what is published, and that as the checks of verdict.py want it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tests.chaos import verdict
from tests.chaos.pipeline import COLUMNS, MAX_RUNNING, SLICE, WAREHOUSE
from tests.chaos.steps import Rows, read
from tests.chaos.verdict import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from tests.chaos.history import Chunk, History, Manifest
    from tests.chaos.stage import Stage

GC_SECONDS = 600

LOCKS = """
    SELECT l.classid, l.objid, a.application_name FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory'
"""


def queue(stage: Stage) -> list[Violation]:
    """Nothing waits that could run: the queue is what it would be if it were made anew, and that is nothing."""
    with stage.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL statement_timeout = 0")
        before = connection.execute("SELECT jobid, dataid FROM dataflow.work").fetchall()
        connection.execute("SELECT dataflow.rebuild_work()")
        after = connection.execute("SELECT jobid, dataid FROM dataflow.work").fetchall()
    return [
        Violation("waits_though_ready", f"{job}/{dataid} is not queued")
        for job, dataid in set(after) - set(before)
    ] + [Violation("queued_for_nothing", f"{job}/{dataid}") for job, dataid in set(before)]


def leftovers(stage: Stage) -> Iterator[Violation]:
    for pid in stage.strays():
        yield Violation("process_left", pid)
    for row in stage.rows(LOCKS):
        yield Violation("lock_left", str(row))
    for row in stage.rows("SELECT attempt, jobid, dataid FROM dataflow.attempt WHERE ended IS NULL"):
        yield Violation("attempt_left", str(row))
    for row in stage.rows(
        "SELECT datasetid, dataid, locktype, jobid, run FROM dataflow.datastatus WHERE status = 'RUNNING'"
    ):
        yield Violation("running_left", str(row))
    with psycopg.connect(stage.dsn, dbname=WAREHOUSE) as warehouse:
        for row in warehouse.execute("SELECT relname FROM pg_class WHERE relname LIKE '%__attempt_%'"):
            yield Violation("staging_left", str(row))


def judged(story: History, stage: Stage, confirmed: Mapping[Chunk, datetime]) -> Iterator[Violation]:
    codes = {job: hashes for branch in stage.branches for job, hashes in branch.codes.items()}
    declared = {
        f"job:{job}": MAX_RUNNING[branch.engine]
        for branch in stage.branches
        if branch.engine in MAX_RUNNING
        for job in branch.jobs
    }
    expected = {chunk for branch in stage.branches for chunk in branch.expected_chunks()}
    yield from verdict.completeness(story, expected)
    yield from verdict.productions(story)
    yield from verdict.pointers(story)
    yield from verdict.intents(story, confirmed)
    with psycopg.connect(stage.dsn, dbname=WAREHOUSE) as warehouse:
        yield from verdict.contents(
            story,
            lambda job, code: codes[job].get(code or ""),
            lambda manifest: (
                _rows_of_table(manifest, story, warehouse) if _is_table(manifest) else rows_of(manifest)
            ),
        )
    yield from verdict.inputs(story)
    yield from verdict.limits(story, declared)
    yield from verdict.overlaps(story)
    yield from verdict.transitions(story)
    yield from verdict.stories(story)


def _is_table(manifest: Manifest) -> bool:
    return (manifest.location or "").startswith("postgres")


def _rows_of_table(manifest: Manifest, story: History, warehouse: psycopg.Connection) -> Rows | None:
    """Of the current version, as who reads finds them: if the ledger names the manifest's attempt."""
    if story.statuses[manifest.chunk].manifest != manifest.version:
        return None
    columns = sql.SQL(", ").join(map(sql.Identifier, COLUMNS["total"]))
    table, chunk = sql.Identifier(manifest.datasetid), [manifest.dataid]
    [[attempt]] = warehouse.execute(
        "SELECT attempt FROM dataflow_published WHERE tablename = %s AND dataid = %s",
        [manifest.datasetid, *chunk],
    ).fetchall()
    if attempt != manifest.attempt:
        raise LookupError(f"the ledger names attempt {attempt}")
    found = sql.SQL("SELECT {} FROM {} WHERE {} = %s").format(columns, table, sql.Identifier(SLICE))
    return warehouse.execute(found, chunk).fetchall()


def rows_of(manifest: Manifest) -> Rows:
    """As a reader finds them who goes by the manifest: its files and no others."""
    location = Path((manifest.location or "").removeprefix("file://"))
    if not location.exists():
        raise FileNotFoundError(f"{location} is gone")
    names = {Path(str(file["path"])).name for file in manifest.files}
    there = {
        path.name for path in location.rglob("*") if path.is_file() and not path.name.startswith(("_", "."))
    }
    if names != there:
        raise LookupError(f"{location} has {sorted(there)}, the manifest says {sorted(names)}")
    if any(name.endswith(".parquet") for name in names):
        from pyarrow import parquet  # noqa: PLC0415 - only Spark's part needs it

        table = parquet.read_table(location)
        return [tuple(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    return read(location)


def directories(stage: Stage, story: History) -> Iterator[Violation]:
    """After a collection that waits for nothing, only what is published is there."""
    program = str(Path(sys.executable).parent / "dataflowctl")
    for branch in stage.branches:
        ended = subprocess.run(
            [program, "gc", "--grace", "0s", "--yes", "--json"],
            env=stage.variables(stage.dsn, branch) | {"DATAFLOW_GC_RETENTION": "0"},
            capture_output=True,
            text=True,
            timeout=GC_SECONDS,
            check=False,
        )
        if ended.returncode != 0:
            yield Violation("gc_failed", ended.stderr[-500:])
    current = {
        (manifest.location or "").removeprefix("file://")
        for manifest in story.manifests
        if not _is_table(manifest)
        and (status := story.statuses.get(manifest.chunk)) is not None
        and status.manifest == manifest.version
    }
    for path in stage.data.glob("*/**/*attempt=*"):
        if str(path) not in current:
            yield Violation("directory_left", str(path))
    for location in current - {""}:
        if not Path(location).is_dir():
            yield Violation("directory_gone", location)
    for place in (stage.data_dir / "run", stage.directory / "tmp"):
        for path in place.iterdir() if place.is_dir() else []:
            yield Violation("directory_left", str(path))


def crashes(stage: Stage) -> Iterator[Violation]:
    """A daemon may end because the database is away; neither it nor dataflowctl ever falls over."""
    for log in (*(daemon.log for daemon in stage.daemons), stage.directory / "ctl.log"):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        for number, line in enumerate(lines):
            # A failed script's last lines are part of an event; they are its own business.
            if line.startswith("Traceback") or ('"exception"' in line and '"logger"' in line):
                yield Violation("crashed", f"{log.name}: {' '.join(lines[number : number + 40])[:3000]}")
