"""What operators do meanwhile: limits, pauses, holds, resubmits, cancels, new code, and plain UPDATEs in psql.

Their statements go through SQL, some through dataflowctl as a process of its own. A statement that fails because the server
is away has had no effect, or has had its effect without an answer, and nobody relies on it; what the server has confirmed
is noted, and must be found in history.
"""

from __future__ import annotations

import signal
import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Jsonb

from dataflowd.errors import DataflowError
from tests.chaos import stage as stages
from tests.chaos.pipeline import COLUMNS
from tests.chaos.steps import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tests.chaos.pipeline import Branch
    from tests.chaos.schedule import Step
    from tests.chaos.stage import Stage

RECENT = 120  # chunks among which an operator chooses
PROGRAMS_AT_ONCE = 2
GLOBAL_LIMIT = 6

RUNNING = (
    "SELECT jobid, dataid FROM dataflow.attempt WHERE ended IS NULL AND jobid <> ALL (%s) ORDER BY attempt"
)
RESUBMIT = """
    UPDATE dataflow.datastatus SET status = 'RESUBMIT'
    WHERE datasetid = %s AND dataid = ANY (%s::text[]) AND locktype = 'OUT'
    RETURNING datasetid, dataid, clock_timestamp()
"""


class Operators(ABC):
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.confirmed: dict[
            tuple[str, str], datetime
        ] = {}  # chunk -> its last RESUBMIT by hand, by the server's clock

    @abstractmethod
    def later(self, seconds: float, action: Callable[[], object]) -> None: ...

    def _branch(self, step: Step) -> Branch:
        quick = [branch for branch in self.stage.branches if branch.engine != "spark"]
        return step.choose(quick if step.spares_spark else self.stage.branches, 2)

    def _running(self, step: Step) -> tuple[str, str] | None:
        """A run that is being executed."""
        slow = [
            branch.jobs for branch in self.stage.branches if branch.engine == "spark" and step.spares_spark
        ]
        found = self.stage.rows(RUNNING, [job for jobs in slow for job in jobs])
        return step.choose(found) if found else None

    def _chunk(self, step: Step) -> tuple[str, int]:
        """A recent one, of any dataset of any flow, whether it is there or not."""
        branch = self._branch(step)
        name = step.choose([name for name in COLUMNS if name != "raw"])
        fed = branch.fed // WINDOW if name == "total" else branch.fed
        return f"{branch.prefix}_{name}", max(0, fed - 1 - int(step.picks[1] * min(fed, RECENT)))

    def concurrency(self, step: Step) -> bool:
        """Between claims, so that history is exact; now and then what is too much is cancelled."""
        jobs = [f"job:{job}" for branch in self.stage.branches for job in branch.jobs]
        scopes = ["global", *jobs, *(f"daemon:{daemon.name}" for daemon in self.stage.daemons)]
        scope = step.choose(scopes) if step.picks[2] < 0.5 else "global"
        value = step.whole(1, GLOBAL_LIMIT * 2 if scope == "global" else 6)
        # What is done without an answer is to be undone too.
        if scope != "global":
            self.later(step.between(5, 30), lambda: self._unlimit(scope))
        if step.picks[3] < 0.2:
            self.stage.between_claims("SELECT * FROM dataflow.shed(%s, %s)", scope, value)
        else:
            self.stage.between_claims("SELECT dataflow.set_concurrency(%s, %s)", scope, value)
        return True

    def _unlimit(self, scope: str) -> None:
        self.stage.between_claims("SELECT dataflow.set_concurrency(%s, NULL)", scope)

    def pause(self, step: Step) -> bool:
        scopes = ["global", *(f"job:{job}" for branch in self.stage.branches for job in branch.jobs)]
        scope = step.choose(scopes)
        self.later(step.between(0.5, 5), lambda: self.stage.rows("SELECT dataflow.pause(%s, false)", scope))
        self.stage.between_claims("SELECT dataflow.pause(%s)", scope)
        return True

    def hold(self, step: Step) -> bool:
        dataset, number = self._chunk(step)
        self.later(step.between(0.5, 6), lambda: self._release(dataset, str(number)))
        self.stage.rows("SELECT dataflow.hold(%s, %s, 'chaos')", dataset, str(number))
        return True

    def _release(self, dataset: str, dataid: str) -> None:
        with suppress(psycopg.errors.RaiseException, psycopg.errors.InternalError):
            self.stage.rows(
                "SELECT dataflow.release(datasetid, dataid) FROM dataflow.datastatus"
                " WHERE datasetid = %s AND dataid = %s AND locktype = 'OUT' AND held_from IS NOT NULL",
                *(dataset, dataid),
            )

    def resubmit(self, step: Step) -> bool:
        dataset, number = self._chunk(step)
        selector = Jsonb({"dataset": dataset, "dataid": str(number)})
        return bool(self.stage.rows("SELECT * FROM dataflow.resubmit(%s, %s)", selector, step.picks[3] < 0.5))

    def cancel(self, step: Step) -> bool:
        running = self._running(step)
        return running is not None and bool(self.stage.value("SELECT dataflow.cancel(%s, %s)", *running))

    def sql_update(self, step: Step) -> bool:
        """In the middle of everything: chunks that are READY, FAILED, or being written at this moment."""
        dataset, number = self._chunk(step)
        dataids = [str(number + more) for more in range(step.whole(1, 5, 3))]
        if step.picks[3] < 0.5 and (running := self._running(step)):
            jobid, dataid = running
            [[dataset]] = self.stage.rows(
                "SELECT datasetid FROM dataflow.job_output WHERE jobid = %s ORDER BY datasetid LIMIT 1", jobid
            )
            dataids = [dataid]
        return self._note(self.stage.rows(RESUBMIT, dataset, dataids))

    def _note(self, changed: list[tuple[Any, ...]]) -> bool:
        for dataset, dataid, moment in changed:
            self.confirmed[dataset, dataid] = max(moment, self.confirmed.get((dataset, dataid), moment))
        return bool(changed)

    def open_transaction(self, step: Step) -> bool:
        """An operator who types UPDATE in a transaction, and thinks for a while before he ends it."""
        dataset, number = self._chunk(step)
        connection = self.stage.connect()
        connection.autocommit = False
        try:
            changed = connection.execute(RESUBMIT, [dataset, [str(number), str(number + 1)]]).fetchall()
        except psycopg.Error:
            connection.close()
            raise
        is_kept = step.picks[3] < 0.6

        def end() -> None:
            with suppress(psycopg.Error), connection:
                if is_kept:
                    connection.commit()
                    self._note(changed)
                else:
                    connection.rollback()

        self.later(step.between(0.3, 4, 2), end)
        return True

    def new_code(self, step: Step) -> bool:
        """A new version is applied, and some daemons hear of it at once; others go on with the old one for a while."""
        branch = self._branch(step)
        branch.write_next_version()
        if step.picks[3] < 0.4:
            self._program(branch, "apply", str(branch.flow))
        else:
            with suppress(DataflowError):
                self.stage.apply(branch)
        for place, daemon in enumerate(each for each in self.stage.daemons if each.branch is branch):
            if step.picks[place % 2] < 0.7:
                daemon.signal(signal.SIGHUP)
        return True

    def operator_program(self, step: Step) -> bool:
        dataset, number = self._chunk(step)
        branch = self._branch(step)
        job = step.choose(branch.jobs)
        programs = [
            ("status",),
            ("resubmit", job, "--yes"),
            ("resubmit", job, "--stale", "--dataid", str(number), "--downstream", "--yes"),
            ("hold", "--dataset", dataset, "--dataid", str(number), "--reason", "chaos", "--yes"),
            ("cancel", job, "--dataid", str(number), "--yes"),
            ("concurrency", str(step.whole(2, GLOBAL_LIMIT, 1)), "--yes"),
            ("why", job, str(number)),
            ("gc", "--grace", "5s", "--yes"),
        ]
        chosen = step.choose(programs, 3)
        if not self._program(branch, *chosen):
            return False
        if chosen[0] == "hold":
            self.later(step.between(4, 8), lambda: self._release(dataset, str(number)))
        return True

    def _program(self, branch: Branch, *arguments: str) -> bool:
        alive = [process for _, process in self.stage.commands if process.poll() is None]
        if len(alive) >= PROGRAMS_AT_ONCE:
            return False
        self.stage.ctl(branch, *arguments)
        return True

    def await_programs(self) -> list[str]:
        """Those that do not end."""
        stuck = []
        for words, process in self.stage.commands:
            try:
                process.wait(stages.END_SECONDS)
            except subprocess.TimeoutExpired:
                stuck.append(f"dataflowctl {' '.join(words)} does not end")
        return stuck
