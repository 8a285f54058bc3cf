"""A chaos run from start to end: feed and inject faults, mend, drain, stop, check.

While faults are injected, there is always work. Then everything is repaired once. From there the pipeline must finish by
itself, with every chunk READY; only failed runs are resubmitted, as an operator would do.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tests.chaos import history, opening, remains, schedule
from tests.chaos import stage as stages
from tests.chaos.hand import Hand
from tests.chaos.operators import GLOBAL_LIMIT
from tests.chaos.patience import Patience
from tests.chaos.report import Report
from tests.chaos.verdict import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.history import History
    from tests.chaos.pipeline import Branch
    from tests.chaos.stage import Stage

TICK_SECONDS = 0.05
FEED_SECONDS = 1.0
RECOVER_SECONDS = 8.0  # between two looks of an operator for failed runs
GC_SECONDS = 600
# More chunks arrive if fewer runs wait than this.
ENOUGH = {"process": 12, "noop": 40, "spark": 3}
SHOWN = 20

OPEN = """
    SELECT count(*) FROM dataflow.datastatus WHERE locktype = 'OUT' AND datasetid = ANY (%s) AND status <> 'READY'
"""
QUEUED = "SELECT count(*) FROM dataflow.work WHERE jobid = ANY (%s)"
LIVE = "SELECT count(*) FROM dataflow.attempt WHERE ended IS NULL"
RECOVER = """SELECT count(*) FROM dataflow.resubmit('{"status": "FAILED"}')"""

# A job with a new output makes it from then on. For chunks that were READY before, an operator must resubmit.
COMPLETE = """
    SELECT dataflow.resubmit(jsonb_build_object('job', k.jobid, 'dataid', k.dataid)) FROM (
        SELECT o.jobid, s.dataid FROM dataflow.job_output o
        JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT'
        GROUP BY o.jobid, s.dataid
        HAVING bool_and(s.status = 'READY') AND count(*) < (SELECT count(*) FROM dataflow.job_output p WHERE p.jobid = o.jobid)
    ) AS k
"""


@dataclass(frozen=True)
class Options:
    seed: int
    minutes: float
    engines: tuple[str, ...]
    daemons: int = 2
    windows: int = 4  # windows of raw chunks at the start
    mean_pause: float = schedule.MEAN_PAUSE_SECONDS
    drain_minutes: float = 15.0
    without: frozenset[str] = frozenset()  # kinds of faults to skip
    keep: bool = False
    say: Callable[[str], None] = print


def run(options: Options) -> Report:
    began = time.monotonic()
    report = Report(options.seed, options.minutes, list(options.engines))
    found: list[Violation] = []
    with opening.opened(options.engines, options.daemons, keep=options.keep) as stage:
        options.say(f"chaos: seed {options.seed}, stage {stage.directory}")
        report.not_to_be_had = _not_to_be_had(stage, options)
        hand = Hand(stage)
        found += _hurt(stage, hand, options)
        options.say("chaos: faults are over, waiting for the pipeline to drain")
        mended = time.monotonic()
        hand.mend()
        found += _settle(stage, options.drain_minutes * 60)
        hand.apply_last_versions()
        found += _drain(stage, hand, options.drain_minutes * 60)
        report.drain_seconds = round(time.monotonic() - mended, 1)
        found += [Violation("program_stuck", each) for each in hand.await_programs()]
        found += remains.queue(stage)
        found += remains.paths(stage)
        found += [Violation("daemon_ended_badly", each) for each in stage.stop_daemons()]
        found += remains.derived(stage)
        found += remains.leftovers(stage)
        with stage.connect() as connection:
            connection.execute("SET statement_timeout = 0")
            story = history.load(connection, remains.outputs(stage))
        found += remains.judged(story, stage, hand.confirmed)
        found += remains.directories(stage, story)
        found += remains.crashes(stage)
        found += remains.excuses(stage)
        found += [Violation("two_processes", each) for each in stage.witness.found]
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


def _hurt(stage: Stage, hand: Hand, options: Options) -> list[Violation]:
    stage.between_claims("SELECT dataflow.set_concurrency('global', %s)", GLOBAL_LIMIT)
    for daemon in stage.daemons:
        stage.between_claims(
            "SELECT dataflow.set_concurrency(%s, %s)", f"daemon:{daemon.name}", daemon.places
        )
    for branch in stage.branches:
        stage.feed(branch, options.windows if branch.engine != "spark" else 2)
    every = schedule.steps(options.seed, options.mean_pause)
    steps = (step for step in every if step.kind not in options.without)
    step = next(steps)
    patience = Patience()
    start = time.monotonic()
    due, fed, recovered, said = start + step.pause, start, start, start
    while (now := time.monotonic()) < start + options.minutes * 60:
        hand.undo_what_is_due()
        stage.look()
        patience.look(stage, now)
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
        stage.rest(TICK_SECONDS)
    return patience.found


def _feed(stage: Stage) -> None:
    for branch in stage.branches:
        _try(lambda: _feed_branch(stage, branch))  # noqa: B023 - called before the next iteration


def _feed_branch(stage: Stage, branch: Branch) -> None:
    if branch.unregistered or stage.value(QUEUED, branch.jobs) < ENOUGH[branch.engine]:
        stage.feed(branch, 1)


def _try(action: Callable[[], object]) -> None:
    """Ignores errors of a server that is down, or of a full disk: the act is repeated later."""
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


def _settle(stage: Stage, seconds: float) -> list[Violation]:
    """Waits until no run is running; then no run may wait that could run.

    This comes before the last version is applied, because `apply` rebuilds the queue and would hide forgotten runs.
    """
    deadline = time.monotonic() + seconds
    recovered = 0.0
    while time.monotonic() < deadline:
        stage.look()
        if time.monotonic() > recovered + RECOVER_SECONDS:
            _feed_what_is_left(stage)
            stage.rows(RECOVER)
            recovered = time.monotonic()
        served = [f"{branch.prefix}_{job.step}" for branch in stage.branches for job in branch.declared]
        if not stage.value(LIVE) and not stage.value(QUEUED, served):
            break
        stage.rest(stages.POLL_SECONDS * 10)
    return remains.queue(stage)


def _feed_what_is_left(stage: Stage) -> None:
    for branch in stage.branches:
        if branch.unregistered:
            stage.feed(branch, 0)


def _drain(stage: Stage, hand: Hand, seconds: float) -> list[Violation]:
    """Waits until all expected chunks are READY, no run is running and the queue is empty."""
    deadline = time.monotonic() + seconds
    recovered = 0.0
    while time.monotonic() < deadline:
        stage.look()
        hand.undo_what_is_due()
        if time.monotonic() > recovered + RECOVER_SECONDS:
            _feed_what_is_left(stage)
            stage.rows(RECOVER)
            stage.rows(COMPLETE)
            _release_what_came_late(stage)
            recovered = time.monotonic()
        if all(_is_drained(stage, branch) for branch in stage.branches) and not stage.value(LIVE):
            return []
        stage.rest(stages.POLL_SECONDS * 10)
    return [Violation("did_not_drain", each) for each in _why(stage)] or [
        Violation("did_not_drain", "work is left")
    ]


def _release_what_came_late(stage: Stage) -> None:
    """Releases chunks that a dataflowctl, started before the end, put on hold after it."""
    if not any(process.poll() is None for _, process in stage.commands):
        stage.rows(
            "SELECT dataflow.release(datasetid, dataid) FROM dataflow.datastatus"
            " WHERE locktype = 'OUT' AND status IN ('HOLD', 'PENDING')"
        )


def _is_drained(stage: Stage, branch: Branch) -> bool:
    ready = stage.rows(
        "SELECT datasetid, dataid FROM dataflow.datastatus WHERE locktype = 'OUT' AND datasetid = ANY (%s) AND status = 'READY'",
        branch.datasets,
    )
    is_made = branch.expected_chunks() <= set(ready)
    return is_made and not stage.value(OPEN, branch.datasets) and not stage.value(QUEUED, branch.jobs)


def _why(stage: Stage) -> list[str]:
    found = stage.rows(
        "SELECT format('%s/%s is %s (%s)', s.datasetid, s.dataid, s.status, s.reason) FROM dataflow.datastatus s"
        " WHERE s.locktype = 'OUT' AND s.status <> 'READY' ORDER BY s.modified LIMIT 10"
    )
    return [text for [text] in found]


def _fill(report: Report, story: History, stage: Stage, hand: Hand) -> None:
    report.faults = dict(sorted(hand.done.items()))
    report.without_target = dict(hand.without_target)
    report.unanswered = dict(hand.unanswered)
    report.chunks = len(story.statuses)
    report.runs = len({attempt.run for attempt in story.attempts.values()})
    report.attempts = dict(Counter(attempt.outcome or "LIVE" for attempt in story.attempts.values()))
    report.rescues = report.attempts.get("LOST", 0)
    report.publications = len(story.manifests)
    report.published_by_flow = {
        branch.name: sum(manifest.datasetid in branch.datasets for manifest in story.manifests)
        for branch in stage.branches
    }
    report.versions_compared = sum(m.location is not None and not m.is_collected for m in story.manifests)
    report.daemon_starts = sum(daemon.starts for daemon in stage.daemons)
    report.code_versions = sum(branch.version for branch in stage.branches)
    report.operator_programs = len(stage.commands)
    report.program_ends = dict(
        Counter(f"{words[0]} {process.returncode}" for words, process in stage.commands)
    )
    report.forced = sum(attempt.forced for attempt in story.attempts.values())
    report.deleted = sum(attempt.deleted is not None for attempt in story.attempts.values())
    report.scripts_seen = stage.witness.seen
