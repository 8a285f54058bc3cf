"""A run of chaos from beginning to end: feed and hurt, mend, drain, stop, look.

While the faults go on there is always work. Then everything is put right once, and from there the pipeline has to come to
rest by itself, with every chunk READY; only what has failed is resubmitted, as an operator would.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.chaos import history, schedule, verdict
from tests.chaos import stage as stages
from tests.chaos.hand import Hand
from tests.chaos.operators import GLOBAL_LIMIT
from tests.chaos.steps import Rows, read
from tests.chaos.verdict import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.history import History, Manifest
    from tests.chaos.pipeline import Branch
    from tests.chaos.stage import Stage

TICK_SECONDS = 0.05
FEED_SECONDS = 1.0
RECOVER_SECONDS = 8.0  # between an operator's looks for what has failed
GC_SECONDS = 600
# Runs that wait, below which more chunks arrive.
ENOUGH = {"process": 12, "noop": 40, "spark": 3}
SHOWN = 20

OPEN = """
    SELECT count(*) FROM dataflow.datastatus WHERE locktype = 'OUT' AND datasetid = ANY (%s) AND status <> 'READY'
"""
QUEUED = "SELECT count(*) FROM dataflow.work WHERE jobid = ANY (%s)"
LIVE = "SELECT count(*) FROM dataflow.attempt WHERE ended IS NULL"
RECOVER = """SELECT count(*) FROM dataflow.resubmit('{"status": "FAILED"}')"""
LOCKS = """
    SELECT l.classid, l.objid, a.application_name FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory'
"""


@dataclass(frozen=True)
class Options:
    seed: int
    minutes: float
    engines: tuple[str, ...]
    daemons: int = 2
    windows: int = 6  # of raw chunks that are there at the start
    mean_pause: float = schedule.MEAN_PAUSE_SECONDS
    drain_minutes: float = 15.0
    keep: bool = False
    say: Callable[[str], None] = print


@dataclass
class Report:
    seed: int
    minutes: float
    engines: list[str]
    faults: dict[str, int] = field(default_factory=dict)
    without_target: dict[str, int] = field(default_factory=dict)
    unanswered: dict[str, int] = field(default_factory=dict)
    not_to_be_had: list[str] = field(default_factory=list)
    chunks: int = 0
    runs: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    publications: int = 0
    versions_compared: int = 0
    daemon_starts: int = 0
    code_versions: int = 0
    operator_programs: int = 0
    drain_seconds: float = 0.0
    seconds: float = 0.0
    violations: list[dict[str, str]] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        return {**vars(self), "fault_count": sum(self.faults.values()), "fault_kinds": len(self.faults)}

    def text(self) -> str:
        lines = [
            f"seed {self.seed}, {self.minutes:g} minutes of faults, {self.seconds:.0f} s in all, engines {', '.join(self.engines)}",
            f"faults: {sum(self.faults.values())} of {len(self.faults)} kinds",
            *(f"  {kind:<18} {count}" for kind, count in sorted(self.faults.items())),
            *(f"  {what}" for what in self.not_to_be_had),
            f"chunks {self.chunks}, runs {self.runs}, attempts {sum(self.attempts.values())} ({_listed(self.attempts)})",
            f"publications {self.publications}, of which {self.versions_compared} compared row by row",
            f"daemons started {self.daemon_starts} times, {self.code_versions} versions of code, {self.operator_programs} calls of dataflowctl",
            f"drained in {self.drain_seconds:.0f} s",
            f"violations: {len(self.violations)}",
            *(f"  {each['kind']}: {each['what']}" for each in self.violations[:SHOWN]),
        ]
        if self.violations:
            lines.append(f"replay with --seed {self.seed}")
        return "\n".join(lines)


def run(options: Options) -> Report:
    began = time.monotonic()
    report = Report(options.seed, options.minutes, list(options.engines))
    found: list[Violation] = []
    with stages.opened(options.engines, options.daemons, keep=options.keep) as stage:
        options.say(f"chaos: seed {options.seed}, stage {stage.directory}")
        report.not_to_be_had = _not_to_be_had(stage, options)
        hand = Hand(stage)
        _hurt(stage, hand, options)
        options.say("chaos: faults are over, waiting for the pipeline to drain")
        mended = time.monotonic()
        hand.mend()
        found += _drain(stage, hand, options.drain_minutes * 60)
        report.drain_seconds = round(time.monotonic() - mended, 1)
        found += [Violation("program_stuck", each) for each in hand.await_programs()]
        found += _queue(stage)
        found += [Violation("daemon_ended_badly", each) for each in stage.stop_daemons()]
        found += _leftovers(stage)
        with stage.connect() as connection:
            connection.execute("SET statement_timeout = 0")
            story = history.load(connection)
        found += _judge(story, stage, hand)
        found += _directories(stage, story)
        found += _crashes(stage)
        _fill(report, story, stage, hand)
        if options.keep:
            options.say(f"chaos: everything is kept in {stage.directory}")
            shutil.copytree(stage.data, stage.directory / "data.kept", ignore_dangling_symlinks=True)
    report.violations = [vars(each) for each in found]
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _not_to_be_had(stage: Stage, options: Options) -> list[str]:
    missing = []
    if not stage.has_small_disk:
        missing.append("disk_full: not here, nothing may be mounted")
    if stage.faketime is None or "process" not in options.engines:
        missing.append("clock_jump: not here, there is no libfaketime")
    if "spark" not in options.engines:
        missing.append("jvm_kill: not without --spark")
    return missing


def _hurt(stage: Stage, hand: Hand, options: Options) -> None:
    stage.between_claims("SELECT dataflow.set_concurrency('global', %s)", GLOBAL_LIMIT)
    for branch in stage.branches:
        stage.feed(branch, options.windows if branch.engine != "spark" else 2)
    steps = schedule.steps(options.seed, options.mean_pause)
    step = next(steps)
    start = time.monotonic()
    due, fed, recovered, said = start + step.pause, start, start, start
    while (now := time.monotonic()) < start + options.minutes * 60:
        hand.undo_what_is_due()
        stage.look()
        if now >= due:
            hand.do(step)
            step = next(steps)
            due = time.monotonic() + step.pause
        if now >= fed + FEED_SECONDS:
            _feed(stage)
            fed = now
        if now >= recovered + RECOVER_SECONDS:
            _try(lambda: stage.rows(RECOVER))
            recovered = now
        if now >= said + 60:
            options.say(
                f"chaos: {(now - start) / 60:.0f} min, {sum(hand.done.values())} faults, {_progress(stage)}"
            )
            said = now
        time.sleep(TICK_SECONDS)


def _feed(stage: Stage) -> None:
    for branch in stage.branches:
        _try(lambda: _feed_branch(stage, branch))  # noqa: B023 - it is called before the next turn


def _feed_branch(stage: Stage, branch: Branch) -> None:
    if branch.unregistered or stage.value(QUEUED, branch.jobs) < ENOUGH[branch.engine]:
        stage.feed(branch, 1)


def _try(action: Callable[[], object]) -> None:
    """What an operator does while the server is away, or the disk is full, he does again later."""
    try:
        action()
    except (psycopg.Error, OSError):
        return


def _progress(stage: Stage) -> str:
    parts = []
    for branch in stage.branches:
        try:
            parts.append(
                f"{branch.name}: {branch.fed} chunks arrived, {stage.value(OPEN, branch.datasets)} open"
            )
        except psycopg.Error:
            parts.append(f"{branch.name}: the server is away")
    return "; ".join(parts)


def _drain(stage: Stage, hand: Hand, seconds: float) -> list[Violation]:
    """Until all that is expected is READY, nothing runs and nothing is queued."""
    deadline = time.monotonic() + seconds
    recovered = 0.0
    while time.monotonic() < deadline:
        stage.look()
        hand.undo_what_is_due()
        if time.monotonic() > recovered + RECOVER_SECONDS:
            for branch in stage.branches:
                if branch.unregistered:
                    stage.feed(branch, 0)
            stage.rows(RECOVER)
            _release_what_came_late(stage)
            recovered = time.monotonic()
        if all(_is_drained(stage, branch) for branch in stage.branches) and not stage.value(LIVE):
            return []
        time.sleep(stages.POLL_SECONDS * 4)
    return [Violation("did_not_drain", each) for each in _why(stage)] or [
        Violation("did_not_drain", "work is left")
    ]


def _release_what_came_late(stage: Stage) -> None:
    """A dataflowctl that was started before the end may hold a chunk after it."""
    if not any(process.poll() is None for _, process in stage.commands):
        stage.rows(
            "SELECT dataflow.release(datasetid, dataid) FROM dataflow.datastatus"
            " WHERE locktype = 'OUT' AND status IN ('HOLD', 'PENDING')"
        )


def _is_drained(stage: Stage, branch: Branch) -> bool:
    made = stage.value(
        "SELECT count(*) FROM dataflow.datastatus WHERE locktype = 'OUT' AND datasetid = ANY (%s) AND status = 'READY'",
        branch.datasets,
    )
    return bool(made == len(branch.expected_chunks())) and not stage.value(QUEUED, branch.jobs)


def _why(stage: Stage) -> list[str]:
    found = stage.rows(
        "SELECT format('%%s/%%s is %%s (%%s)', s.datasetid, s.dataid, s.status, s.reason) FROM dataflow.datastatus s"
        " WHERE s.locktype = 'OUT' AND s.status <> 'READY' ORDER BY s.modified LIMIT 10"
    )
    return [text for [text] in found]


def _queue(stage: Stage) -> list[Violation]:
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


def _leftovers(stage: Stage) -> Iterator[Violation]:
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
    for row in stage.rows(
        "SELECT relname FROM pg_class WHERE obj_description(oid, 'pg_class') LIKE 'dataflowd: staging%%'"
    ):
        yield Violation("staging_left", str(row))


def _judge(story: History, stage: Stage, hand: Hand) -> Iterator[Violation]:
    codes = {job: hashes for branch in stage.branches for job, hashes in branch.codes.items()}
    expected = {chunk for branch in stage.branches for chunk in branch.expected_chunks()}
    yield from verdict.completeness(story, expected)
    yield from verdict.productions(story)
    yield from verdict.pointers(story)
    yield from verdict.acknowledged(story, hand.acknowledged)
    yield from verdict.contents(story, lambda job, code: codes[job].get(code or ""), rows_of)
    yield from verdict.inputs(story)
    yield from verdict.limits(story)
    yield from verdict.overlaps(story)
    yield from verdict.transitions(story)
    yield from verdict.stories(story)


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


def _directories(stage: Stage, story: History) -> Iterator[Violation]:
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
        if (status := story.statuses.get(manifest.chunk)) is not None and status.manifest == manifest.version
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


def _crashes(stage: Stage) -> Iterator[Violation]:
    """A daemon may end because the database is away; neither it nor dataflowctl ever falls over."""
    for log in (*(daemon.log for daemon in stage.daemons), stage.directory / "ctl.log"):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        for number, line in enumerate(lines):
            # A failed script's last lines are part of an event; they are its own business.
            if line.startswith("Traceback") or ('"service.died"' in line and '"exception"' in line):
                yield Violation("crashed", f"{log.name}: {' '.join(lines[number : number + 40])[:3000]}")


def _fill(report: Report, story: History, stage: Stage, hand: Hand) -> None:
    report.faults = dict(sorted(hand.done.items()))
    report.without_target = dict(hand.without_target)
    report.unanswered = dict(hand.unanswered)
    report.chunks = len(story.statuses)
    report.runs = len({attempt.run for attempt in story.attempts.values()})
    report.attempts = dict(Counter(attempt.outcome or "LIVE" for attempt in story.attempts.values()))
    report.publications = len(story.manifests)
    report.versions_compared = sum(m.location is not None and not m.is_collected for m in story.manifests)
    report.daemon_starts = sum(daemon.starts for daemon in stage.daemons)
    report.code_versions = sum(branch.version for branch in stage.branches)
    report.operator_programs = len(stage.commands)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def write(report: Report, path: Path) -> None:
    path.write_text(json.dumps(report.document, indent=1) + "\n", encoding="utf-8")
