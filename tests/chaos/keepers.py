"""Acts of the pipeline's owners: new versions of the flow, deletes, runs by hand, and chunks that are not validated."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from dataflowd.model.errors import DataflowError
from tests.chaos import shape
from tests.chaos.actor import Actor, refusable
from tests.chaos.steps import WINDOW

if TYPE_CHECKING:
    from tests.chaos.pipeline import Branch
    from tests.chaos.schedule import Step

VALIDATED = "SELECT dataflow.validated(%s, %s, %s)"
READY = "SELECT dataflow.ready(%s::pg_catalog.text, %s::pg_catalog.text[])"
# Validates, at the end, the chunks that are not validated.
VOUCH = """
    SELECT dataflow.validated(datasetid, dataid) FROM dataflow.datastatus
    WHERE locktype = 'OUT' AND status = 'READY' AND NOT validated
"""
DELETE = "SELECT * FROM dataflow.delete_runs(%s, ARRAY[%s]::pg_catalog.text[])"


class Keepers(Actor):
    # --- the flow ---

    def new_code(self, step: Step) -> bool:
        """Applies a new version. Some daemons reload at once; others use the old version for a while."""
        branch = self._branch(step)
        branch.write_next_version()
        if step.picks[3] < 0.4:
            self._program(branch, "apply", str(branch.flow), "--prune", "--yes")
        else:
            with suppress(DataflowError):
                self.stage.apply(branch, prune=step.picks[3] < 0.8)
        for place, daemon in enumerate(each for each in self.stage.daemons if each.branch is branch):
            if step.picks[place % 2] < 0.7:
                daemon.signal(signal.SIGHUP)
        return True

    def apply_last_versions(self) -> None:
        """Applies, at the end, a version with every job, and lets every daemon read it."""
        for branch in self.stage.branches:
            branch.write_next_version(is_last=True)
            self.stage.apply(branch, prune=True)
            self.stage.reload(branch)

    # --- deletes: a deleted chunk is made again ---

    def delete(self, step: Step) -> bool:
        branch = self._quick_branch(step)
        dataset, dataids = self._chunks(step, branch)
        return bool(self.stage.rows(DELETE, self._job_of(branch, dataset), dataids[0]))

    def cancel_delete(self, step: Step) -> bool:
        """Cancels a run and deletes it at once: its runner may still be alive when the database has forgotten the run."""
        running = self._running(step)
        if running is None:
            return False
        jobid, dataid, *_ = running
        if not self.stage.value("SELECT dataflow.cancel(%s, %s)", jobid, dataid):
            return False
        with refusable():
            self.stage.rows(DELETE, jobid, dataid)
        return True

    def delete_program(self, step: Step) -> bool:
        branch = self._quick_branch(step)
        dataset, [dataid] = self._chunks(step, branch)
        words = ["delete", self._job_of(branch, dataset), "--dataid", dataid, "--yes"]
        return self._program(branch, *words, *(["--data"] if step.picks[3] < 0.5 else [])) is not None

    # --- runs by hand ---

    def run_program(self, step: Step) -> bool:
        """Runs a job in the foreground; sometimes the person interrupts it."""
        branch = self._files()
        dataset, [dataid] = self._chunks(step, branch)
        words = ["run", self._job_of(branch, dataset), *(["--dataid", dataid] if step.picks[3] < 0.5 else [])]
        return self._by_hand(step, branch, *words)

    def force_program(self, step: Step) -> bool:
        branch = self._files()
        dataset, [dataid] = self._chunks(step, branch)
        return self._by_hand(step, branch, "force", self._job_of(branch, dataset), dataid, "--yes")

    def _files(self) -> Branch:
        return next(branch for branch in self.stage.branches if branch.engine == "process")

    def _by_hand(self, step: Step, branch: Branch, *words: str) -> bool:
        process = self._program(branch, *words)
        if process is None:
            return False
        if step.picks[2] < 0.4:
            number = signal.SIGINT if step.picks[2] < 0.2 else signal.SIGKILL
            self.later(step.between(0.5, 4), lambda: process.send_signal(number))
        return True

    # --- chunks from outside ---

    def unvalidated(self, step: Step) -> bool:
        """Registers chunks that are not validated; later a person validates them, in one of two ways."""
        branch = self._quick_branch(step)
        before = branch.fed
        self.stage.feed(branch, 1, is_valid=False)
        dataids = [str(number) for number in range(before, before + WINDOW)]

        def vouch() -> None:
            with refusable():
                if step.picks[3] < 0.5:
                    self.stage.rows(READY, branch.raw, dataids)
                else:
                    self.stage.rows(VOUCH)

        self.later(step.between(0.5, 6), vouch)
        return True

    def withdrawn(self, step: Step) -> bool:
        """Withdraws the validation of a chunk for a while."""
        branch = self._quick_branch(step)
        if branch.fed == 0:
            return False
        dataid = str(max(0, branch.fed - 1 - step.whole(0, 2 * WINDOW)))
        self.later(step.between(0.5, 6), lambda: self._vouch(branch.raw, dataid))
        with refusable():
            self.stage.rows(VALIDATED, branch.raw, dataid, False)
        return True

    def reference(self, step: Step) -> bool:
        """The one chunk that every run of some jobs reads arrives late, is registered again, is held, or loses its validation."""
        branch = self._quick_branch(step)
        seconds = step.between(0.5, 6)
        if step.picks[3] < 0.4:
            self.bring_reference(branch)
        elif step.picks[3] < 0.7:
            self.later(seconds, lambda: self._release(branch.rates, shape.REFERENCE))
            self.stage.rows("SELECT dataflow.hold(%s, %s, 'chaos')", branch.rates, shape.REFERENCE)
        else:
            self.later(seconds, lambda: self._vouch(branch.rates, shape.REFERENCE))
            with refusable():
                self.stage.rows(VALIDATED, branch.rates, shape.REFERENCE, False)
        return True

    def bring_reference(self, branch: Branch) -> None:
        branch.bring_reference()
        with refusable():
            self.stage.rows(READY, branch.rates, [shape.REFERENCE])

    def _vouch(self, dataset: str, dataid: str) -> None:
        with refusable():
            self.stage.rows(VALIDATED, dataset, dataid, True)

    def vouch_for_all(self) -> None:
        with refusable():
            self.stage.rows(VOUCH)
        for branch in self.stage.branches:
            held = "SELECT count(*) FROM dataflow.datastatus WHERE datasetid = %s AND locktype = 'OUT'"
            if branch.has_references and not self.stage.value(held, branch.rates):
                self.bring_reference(branch)
