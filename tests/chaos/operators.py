"""Acts of operators: limits, pauses, holds, resubmits, cancels, and plain UPDATEs in psql.

Most acts are SQL statements; some are processes of dataflowctl. If a statement fails because the server is down, it had no
effect, or its effect without an answer; the checks do not rely on it. An act that the server has confirmed is noted, and must
be in the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from tests.chaos.actor import RESUBMIT, Actor

if TYPE_CHECKING:
    from tests.chaos.schedule import Step

GLOBAL_LIMIT = 9  # more than the daemons' own limits, so that there is room for runs by hand


class Operators(Actor):
    def concurrency(self, step: Step) -> bool:
        """Changes a limit between two claims, so that the history is exact. Sometimes cancels the runs above the new limit."""
        jobs = [f"job:{job}" for branch in self.stage.branches for job in branch.jobs]
        scopes = ["global", *jobs, *(f"daemon:{daemon.name}" for daemon in self.stage.daemons)]
        scope = step.choose(scopes) if step.picks[2] < 0.5 else "global"
        value = step.whole(1, GLOBAL_LIMIT * 2 if scope == "global" else 6)
        # Undo it also if no answer arrived: it may have been done.
        if scope != "global":
            self.later(step.between(5, 30), lambda: self._unlimit(scope))
        if step.picks[3] < 0.2:
            self.stage.between_claims("SELECT * FROM dataflow.shed(%s, %s)", scope, value)
        else:
            self.stage.between_claims("SELECT dataflow.set_concurrency(%s, %s)", scope, value)
        return True

    def _unlimit(self, scope: str) -> None:
        [*own] = [daemon.places for daemon in self.stage.daemons if scope == f"daemon:{daemon.name}"]
        # An UPDATE, because the job may not be declared yet; then setting its limit was refused.
        self.stage.between_claims(
            "UPDATE dataflow.control SET concurrency = %s WHERE scope = %s", own[0] if own else None, scope
        )

    def pause(self, step: Step) -> bool:
        scopes = ["global", *(f"job:{job}" for branch in self.stage.branches for job in branch.jobs)]
        scope = step.choose(scopes)
        resume = "UPDATE dataflow.control SET paused = false WHERE scope = %s"
        self.later(step.between(0.5, 5), lambda: self.stage.rows(resume, scope))
        self.stage.between_claims("SELECT dataflow.pause(%s)", scope)
        return True

    def hold(self, step: Step) -> bool:
        dataset, dataid = self._chunk(step)
        self.later(step.between(0.5, 6), lambda: self._release(dataset, dataid))
        self.stage.rows("SELECT dataflow.hold(%s, %s, 'chaos')", dataset, dataid)
        return True

    def resubmit(self, step: Step) -> bool:
        dataset, dataid = self._chunk(step)
        selector = Jsonb({"dataset": dataset, "dataid": dataid})
        return bool(self.stage.rows("SELECT * FROM dataflow.resubmit(%s, %s)", selector, step.picks[3] < 0.5))

    def cancel(self, step: Step) -> bool:
        running = self._running(step)
        return running is not None and bool(self.stage.value("SELECT dataflow.cancel(%s, %s)", *running[:2]))

    def sql_update(self, step: Step) -> bool:
        """Sets RESUBMIT by a plain UPDATE, on chunks that are READY, FAILED or RUNNING."""
        dataset, dataids = self._chunks(step, self._branch(step), step.whole(1, 5, 3))
        if step.picks[3] < 0.5 and (running := self._running(step)):
            jobid, dataid, *_ = running
            found = self.stage.rows(
                "SELECT datasetid FROM dataflow.job_output WHERE jobid = %s ORDER BY datasetid LIMIT 1", jobid
            )
            # A job that is being retired has no runs.
            dataset, dataids = (found[0][0], [dataid]) if found else (dataset, dataids)
        return self._note(self.stage.rows(RESUBMIT, dataset, dataids))

    def operator_program(self, step: Step) -> bool:
        branch = self._branch(step)
        dataset, [dataid] = self._chunks(step, branch)
        job = self._job_of(branch, dataset)
        programs = [
            ("status",),
            ("resubmit", job, "--yes"),
            ("resubmit", job, "--stale", "--dataid", dataid, "--downstream", "--yes"),
            ("hold", "--dataset", dataset, "--dataid", dataid, "--reason", "chaos", "--yes"),
            ("cancel", job, "--dataid", dataid, "--yes"),
            ("concurrency", str(step.whole(2, GLOBAL_LIMIT, 1)), "--yes"),
            ("why", job, dataid),
            ("gc", "--grace", "5s", "--yes"),
        ]
        chosen = step.choose(programs, 3)
        if self._program(branch, *chosen) is None:
            return False
        if chosen[0] == "hold":
            self.later(step.between(4, 8), lambda: self._release(dataset, dataid))
        return True
