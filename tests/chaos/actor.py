"""The base of all classes that act on the stage: chooses targets, and notes what was done."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg

from tests.chaos import stage as stages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.pipeline import Branch
    from tests.chaos.schedule import Step
    from tests.chaos.stage import Stage

RECENT = 120  # an operator chooses among so many chunks
PROGRAMS_AT_ONCE = 2
REFUSED = "DF"  # the SQLSTATEs of the product's own errors begin with this

# The time as a text that does not depend on the session's settings.
CLOCK = "pg_catalog.to_char(pg_catalog.clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
RUNNING = """
    SELECT jobid, dataid, attempt, daemon FROM dataflow.attempt
    WHERE ended IS NULL AND jobid <> ALL (%s::pg_catalog.text[]) ORDER BY attempt
"""
RESUBMIT = f"""
    UPDATE dataflow.datastatus SET status = 'RESUBMIT'
    WHERE datasetid = %s AND dataid = ANY (%s::pg_catalog.text[]) AND locktype = 'OUT'
    RETURNING datasetid, dataid, {CLOCK}
"""  # noqa: S608 - a constant


@contextmanager
def refusable() -> Iterator[None]:
    """Ignores refusals of the product: the act came too late or too early, and is not repeated."""
    try:
        yield
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith(REFUSED):
            raise


class Actor(ABC):
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.confirmed: dict[
            tuple[str, str], datetime
        ] = {}  # chunk -> the time of its last RESUBMIT by hand, by the server's clock

    @abstractmethod
    def later(self, seconds: float, action: Callable[[], object]) -> None: ...

    def _branch(self, step: Step) -> Branch:
        quick = [branch for branch in self.stage.branches if branch.engine != "spark"]
        return step.choose(quick if step.spares_spark else self.stage.branches, 2)

    def _quick_branch(self, step: Step, pick: int = 2) -> Branch:
        return step.choose([branch for branch in self.stage.branches if branch.engine != "spark"], pick)

    def _running(self, step: Step) -> tuple[str, str, int, str] | None:
        """A run that is being executed: job, dataid, attempt and daemon."""
        slow = [
            branch.jobs for branch in self.stage.branches if branch.engine == "spark" and step.spares_spark
        ]
        found = self.stage.rows(RUNNING, [job for jobs in slow for job in jobs])
        if not found:
            return None
        jobid, dataid, attempt, daemon = step.choose(found)
        return jobid, dataid, attempt, daemon

    def _chunks(self, step: Step, branch: Branch, most: int = 1) -> tuple[str, list[str]]:
        """Recent chunks of any dataset of the flow, also chunks that do not exist."""
        name = step.choose([name for name in branch.made if branch.dataids(name)])
        dataids = branch.dataids(name)
        first = max(0, len(dataids) - 1 - int(step.picks[1] * min(len(dataids), RECENT)))
        return f"{branch.prefix}_{name}", dataids[first : first + most]

    def _chunk(self, step: Step) -> tuple[str, str]:
        dataset, [dataid] = self._chunks(step, self._branch(step))
        return dataset, dataid

    def _job_of(self, branch: Branch, dataset: str) -> str:
        """The job that makes the dataset in the present version or, if there is none, in an earlier one."""
        name = dataset.removeprefix(f"{branch.prefix}_")
        made_by = [job.step for job in branch.declared if name in job.outputs]
        return f"{branch.prefix}_{made_by[0] if made_by else name}"

    def _note(self, changed: list[tuple[Any, ...]]) -> bool:
        for dataset, dataid, clock in changed:
            moment = datetime.fromisoformat(clock).replace(tzinfo=UTC)
            self.confirmed[dataset, dataid] = max(moment, self.confirmed.get((dataset, dataid), moment))
        return bool(changed)

    def _release(self, dataset: str, dataid: str) -> None:
        with refusable():
            self.stage.rows(
                "SELECT dataflow.release(datasetid, dataid) FROM dataflow.datastatus"
                " WHERE datasetid = %s AND dataid = %s AND locktype = 'OUT' AND held_from IS NOT NULL",
                *(dataset, dataid),
            )

    def _program(self, branch: Branch, *arguments: str) -> subprocess.Popen[bytes] | None:
        alive = [process for _, process in self.stage.commands if process.poll() is None]
        if len(alive) >= PROGRAMS_AT_ONCE:
            return None
        return self.stage.ctl(branch, *arguments)

    def await_programs(self) -> list[str]:
        """Waits for the started programs, and returns those that do not end."""
        stuck = []
        for words, process in self.stage.commands:
            try:
                process.wait(stages.END_SECONDS)
            except subprocess.TimeoutExpired:
                stuck.append(f"dataflowctl {' '.join(words)} does not end")
        return stuck
