"""Watches, while the faults go on, for runs that could run and are not queued.

Every `apply` rebuilds the queue, so it finds forgotten runs again, and at the end nothing shows that they were missing. So
each run is evaluated here as a claim does it, in a transaction that changes nothing. A run that could run and is not queued
for longer than any fault and any open transaction was forgotten.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from tests.chaos.stage import LEASE_SECONDS
from tests.chaos.verdict import Violation

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

EVERY_SECONDS = 3.0
FORGOTTEN_SECONDS = 5.0 * LEASE_SECONDS
LATEST = 150  # runs of each job

FIT = """
    WITH open AS MATERIALIZED (
        SELECT r.jobid, r.dataid FROM pg_catalog.unnest(%s::pg_catalog.text[], %s::pg_catalog.text[]) AS r (jobid, dataid)
        JOIN dataflow.job j ON j.jobid = r.jobid AND j.retired IS NULL
        WHERE NOT EXISTS (
            SELECT FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid
            WHERE o.jobid = r.jobid AND s.dataid = r.dataid AND s.locktype = 'OUT' AND s.status IN ('READY', 'RUNNING'))
    )
    SELECT e.jobid, e.dataid
    FROM (SELECT pg_catalog.array_agg(o.jobid) AS jobids, pg_catalog.array_agg(o.dataid) AS dataids FROM open o) AS a
    CROSS JOIN LATERAL dataflow._evaluate(a.jobids, a.dataids) AS e
    WHERE COALESCE(e.not_ready, e.wrong_data, e.invalid_path, e.not_validated, e.locked) IS NULL
        AND NOT EXISTS (SELECT FROM dataflow.work w WHERE w.jobid = e.jobid AND w.dataid = e.dataid)
"""


@dataclass
class Patience:
    found: list[Violation] = field(default_factory=list)
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    _due: float = 0.0

    def look(self, stage: Stage, now: float) -> None:
        if now < self._due:
            return
        self._due = now + EVERY_SECONDS
        runs = [
            (f"{branch.prefix}_{job.step}", dataid)
            for branch in stage.branches
            for job in branch.declared
            for dataid in branch.dataids(job.outputs[0])[-LATEST:]
        ]
        try:
            fit = stage.rows(FIT, [job for job, _ in runs], [dataid for _, dataid in runs])
        except psycopg.Error:
            # While the server is down, no daemon can queue anything.
            self._since.clear()
            return
        self.judge({(job, dataid) for job, dataid in fit}, now)

    def judge(self, fit: set[tuple[str, str]], now: float) -> None:
        """`fit`: the runs that could run now and are not queued."""
        self._since = {run: self._since.get(run, now) for run in fit}
        for run, since in self._since.items():
            if now - since > FORGOTTEN_SECONDS:
                moment = time.strftime("%H:%M:%S")
                self.found.append(
                    Violation(
                        "forgotten",
                        f"{'/'.join(run)} could run for {now - since:.0f} s at {moment}, and is not queued",
                    )
                )
                self._since[run] = float("inf")  # report it only once
