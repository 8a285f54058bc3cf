"""The flow files of this host, as the daemon last read them: which code a job runs is known here and nowhere else.

A reload that finds mistakes keeps what was good, so that a half-edited file stops nothing that runs. At the start there is
nothing to keep: a job whose script or module is not there is left out, and the others run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd import flow
from dataflowd.errors import NotFoundError
from dataflowd.flow import Flow, FlowMistakesError, Job, Mistake

if TYPE_CHECKING:
    from dataflowd.settings import Settings


@dataclass(frozen=True, kw_only=True)
class ScriptFlow(Flow):
    """A script that a person has named, for a job that the database knows; there is no flow file."""

    stored_hash: str | None

    def config_hash(self, job: str) -> str:  # noqa: ARG002 - it has one job
        return self.stored_hash or ""


class Declared:
    def __init__(self, settings: Settings) -> None:
        self.lacking: dict[str, FlowMistakesError] = {}  # by job
        self.flows = self._read(settings, self.lacking)
        self._settings = settings
        self._fresh: dict[Path, tuple[tuple[int, ...], Flow]] = {}

    def load(self, settings: Settings) -> None:
        """Raises FlowMistakesError and changes nothing if a file is wrong."""
        self.flows = self._read(settings, None)
        self._settings = settings
        self.lacking = {}

    def read_again(self) -> dict[str, Flow]:
        """The flows as their files say now. Which code runs does not change by this; a file that is wrong now is left as it was."""
        return {name: self._as_it_lies(one) for name, one in self.flows.items()}

    def _as_it_lies(self, known: Flow) -> Flow:
        if isinstance(known, ScriptFlow):
            return known
        try:
            found = known.path.stat()
            mark = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
            if known.path not in self._fresh or self._fresh[known.path][0] != mark:
                # A job that lacks its code says nothing about datasets.
                self._fresh[known.path] = mark, flow.load(known.path, self._settings, {})
        except (OSError, FlowMistakesError):
            return known
        return self._fresh[known.path][1]

    @staticmethod
    def _read(settings: Settings, lacking: dict[str, FlowMistakesError] | None) -> dict[str, Flow]:
        found = {}
        for path in settings.flows:
            left_out: dict[str, Mistake] = {}
            loaded = flow.load(path, settings, None if lacking is None else left_out)
            found[loaded.name] = loaded
            if lacking is not None:
                lacking |= {job: FlowMistakesError(path, [mistake]) for job, mistake in left_out.items()}
        return found

    def add_script(self, jobid: str, script: Path, stored_hash: str | None) -> None:
        """It runs in the working directory of whoever has named it."""
        job = Job(
            name=jobid,
            kind="command",
            code=(str(script.absolute()),),
            inputs={},
            outputs=(),
            params={},
            spark={},
            checks={},
        )
        beside = Path.cwd() / script.name
        name = f"script {script}"
        script_flow = ScriptFlow(
            name=name, path=beside, datasets={}, jobs={jobid: job}, stored_hash=stored_hash
        )
        # First, for the job is this script; the others still say what their datasets are.
        self.flows = {name: script_flow, **self.flows}

    def jobs(self, *, commands_only: bool = False) -> list[str]:
        return sorted(
            jobid
            for one in self.flows.values()
            for jobid, job in one.jobs.items()
            if job.kind == "command" or not commands_only
        )

    def job(self, jobid: str) -> tuple[Flow, Job]:
        for one in self.flows.values():
            if jobid in one.jobs:
                return one, one.jobs[jobid]
        if jobid in self.lacking:
            raise self.lacking[jobid]
        raise NotFoundError(
            f"no flow file of this host declares the job {jobid}",
            "add its flow to DATAFLOW_FLOWS on this host and reload the daemon",
        )
