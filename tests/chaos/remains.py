"""Checks what is left when all daemons have stopped: only published data, which also passes the checks of verdict.py."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tests import judge
from tests.chaos import rules, shape, verdict
from tests.chaos.pipeline import COLUMNS, RENAMED, SLICE, WAREHOUSE
from tests.chaos.stage import GC_INTERVAL_SECONDS, POLL_SECONDS
from tests.chaos.steps import Rows, read
from tests.chaos.verdict import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.chaos.history import Chunk, History, Manifest
    from tests.chaos.stage import Stage

GC_SECONDS = 600
EXCUSED_LEASES = 2
SHOWN_BEFORE = 6  # lines of a daemon's log, or events of a run, that are shown as the reason
LOOKS_AGAIN = 3
SECONDS_BETWEEN_LOOKS = 2.0
CURRENT = """
    SELECT s.datasetid, s.dataid, m.location FROM dataflow.datastatus s
    JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    WHERE s.locktype = 'OUT' AND s.status = 'READY' AND s.datasetid = ANY (%s::text[])
"""

LOCKS = """
    SELECT l.classid, l.objid, a.application_name FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory'
"""


def queue(stage: Stage) -> list[Violation]:
    """No run waits that could run: the queue is empty, and a rebuilt queue would be empty too.

    Looks several times: a lost run stays lost, but a daemon or a program of an operator may just be about to act.
    """
    found = _queue_differences(stage)
    for _ in range(LOOKS_AGAIN):
        if not found:
            break
        stage.rest(SECONDS_BETWEEN_LOOKS)
        later = _queue_differences(stage)
        found = {run: kind for run, kind in found.items() if later.get(run) == kind}
    return [
        Violation(kind, f"{job}/{dataid}: {_last_events(stage, job, dataid)}")
        for (job, dataid), kind in found.items()
    ]


def _queue_differences(stage: Stage) -> dict[tuple[str, str], str]:
    """The differences to a rebuilt queue. Runs of jobs that the present version does not declare may wait."""
    served = {f"{branch.prefix}_{job.step}" for branch in stage.branches for job in branch.declared}
    with stage.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL statement_timeout = 0")
        # Evaluate the rechecks that were left to the next claim, also those of a moment ago.
        connection.execute("UPDATE dataflow.recheck SET looked = NULL")
        connection.execute("SELECT dataflow.settle()")
        before = set(connection.execute("SELECT jobid, dataid FROM dataflow.work").fetchall())
        connection.execute("SELECT dataflow.rebuild_work()")
        after = set(connection.execute("SELECT jobid, dataid FROM dataflow.work").fetchall())
    return {
        run: "queued_for_nothing" if run in before else "waits_though_ready"
        for run in sorted(after | before)
        if run[0] in served
    }


def _last_events(stage: Stage, job: str, dataid: str) -> str:
    """The last events of a run in the database."""
    rows = stage.rows(
        "SELECT e.at, e.kind, e.datasetid, e.from_status, e.to_status, e.code, e.reason, e.actor FROM dataflow.event e"
        " WHERE e.jobid = %s AND e.dataid = %s ORDER BY e.event DESC LIMIT %s",
        job,
        dataid,
        SHOWN_BEFORE,
    )
    return " | ".join(" ".join(str(each) for each in row if each is not None) for row in reversed(rows))


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
    forms = {
        f"{branch.prefix}_{step}": each
        for branch in stage.branches
        for step, each in shape.every_job(branch.engine).items()
    }
    declared = {
        f"job:{job}": each[0].max_running for job, each in forms.items() if each[0].max_running is not None
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
    yield from _declared_rules(story, stage, forms, expected)


def _declared_rules(
    story: History, stage: Stage, forms: Mapping[str, list[shape.Job]], expected: set[Chunk]
) -> Iterator[Violation]:
    yield from rules.mapped(story, forms)
    yield from rules.vouched(story)
    prefixes = [branch.prefix for branch in stage.branches if branch.has_references]
    ledgers = {
        f"{prefix}_ledger": (f"{prefix}_total", [f"{prefix}_ledger", f"{prefix}_audit"])
        for prefix in prefixes
    }
    yield from rules.order(story, ledgers)
    due = {f"{branch.prefix}_clock": branch.periods() for branch in stage.branches if branch.has_references}
    yield from rules.calendars(story, due)
    made = [dataset for branch in stage.branches for dataset in branch.datasets]
    yield from rules.unexpected(story, made, expected)


def outputs(stage: Stage) -> dict[str, list[str]]:
    """The datasets that each job makes in every version."""
    return {
        f"{branch.prefix}_{step}": [f"{branch.prefix}_{name}" for name in names]
        for branch in stage.branches
        for step, names in shape.constant_outputs(branch.engine).items()
    }


def derived(stage: Stage) -> list[Violation]:
    """The violations that the second judge finds: queue, counters, open runs, locks, limits."""
    with stage.connect() as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute("SELECT dataflow.settle()")
        return [Violation("derived_wrongly", str(each)) for each in judge.judge(connection)]


def paths(stage: Stage) -> Iterator[Violation]:
    """The fixed path of each READY chunk leads to its current version: at once, or after a daemon has checked all paths."""
    deadline = time.monotonic() + 2 * GC_INTERVAL_SECONDS
    while (astray := _astray(stage)) and time.monotonic() < deadline:
        stage.look()
        time.sleep(POLL_SECONDS * 10)
    for each in astray:
        yield Violation("path_astray", each)


def _astray(stage: Stage) -> list[str]:
    datasets = [
        f"{branch.prefix}_{name}"
        for branch in stage.branches
        if branch.engine != "noop"
        for name in branch.made
        if name in RENAMED
    ]
    return astray(stage.data, stage.rows(CURRENT, datasets))


def astray(data: Path, current: Iterable[tuple[str, ...]]) -> list[str]:
    """The paths that lead elsewhere. `current`: dataset, dataid and the published directory."""
    found = []
    for dataset, dataid, location in current:
        link, wanted = data / dataset / f"dataid={dataid}", Path(location.removeprefix("file://"))
        if not link.is_symlink() or not link.is_dir() or link.resolve() != wanted.resolve():
            leads = link.readlink() if link.is_symlink() else "nowhere"
            found.append(f"{dataset}/{dataid} leads to {leads}, and {location} is current")
    return found


def excuses(stage: Stage) -> Iterator[Violation]:
    """A daemon that was awake and had its connection never stops its attempts because it could not renew its lease."""
    for daemon in stage.daemons:
        lines = daemon.log.read_text(encoding="utf-8", errors="replace").splitlines()
        late = stage.pulse.late if stage.pulse is not None else []
        disturbances = (*daemon.disturbances, *stage.starved, *late)
        for line in unexcused(lines, disturbances, EXCUSED_LEASES * daemon.lease):
            before = lines[: lines.index(line)][-SHOWN_BEFORE:]
            yield Violation("stopped_without_cause", f"{daemon.name}: {' '.join([*before, line])[:2000]}")


def unexcused(
    lines: Iterable[str], disturbances: Iterable[tuple[float, float]], seconds: float
) -> Iterator[str]:
    """The losses without an excuse. `seconds`: a fault that ended so long before still counts as an excuse."""
    for line in lines:
        if '"lease.ending"' in line:
            moment = datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp()
            if not any(start <= moment and end >= moment - seconds for start, end in disturbances):
                yield line


def _is_table(manifest: Manifest) -> bool:
    return (manifest.location or "").startswith("postgres")


def _rows_of_table(manifest: Manifest, story: History, warehouse: psycopg.Connection) -> Rows | None:
    """The rows of the current version, as a reader finds them: only if the ledger names the manifest's attempt."""
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
    """The rows as a reader of the manifest finds them: in its files and no others."""
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
        from pyarrow import parquet  # noqa: PLC0415 - only the deep flow needs it

        table = parquet.read_table(location)
        return [tuple(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    return read(location)


def directories(stage: Stage, story: History) -> Iterator[Violation]:
    """After a collection without grace, only published directories are left."""
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
        and manifest.deleted is None
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
    """A daemon may end because the database is down. Neither a daemon nor dataflowctl may crash."""
    for log in (*(daemon.log for daemon in stage.daemons), stage.directory / "ctl.log"):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        for number, line in enumerate(lines):
            # The last lines of a failed script are part of an event; a traceback there is no crash of ours.
            if line.startswith("Traceback") or ('"exception"' in line and '"logger"' in line):
                said = " ".join(lines[number : number + 40])
                # After Ctrl-C during the start of the program, Python itself prints a traceback.
                if "KeyboardInterrupt" in said and "importlib" in said:
                    continue
                yield Violation("crashed", f"{log.name}: {said[:3000]}")
