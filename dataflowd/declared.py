"""The flow files of this host, as the daemon last read them: which code a job runs is known here and nowhere else.

A reload that finds mistakes keeps what was good, so that a half-edited file stops nothing that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd import flow
from dataflowd.errors import NotFoundError
from dataflowd.flow import Flow, Job

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
        self.flows: dict[str, Flow] = {}
        self.load(settings)

    def load(self, settings: Settings) -> None:
        """Raises FlowMistakesError and changes nothing if a file is wrong."""
        loaded = [flow.load(path, settings) for path in settings.flows]
        self.flows = {one.name: one for one in loaded}

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
        self.flows = {
            name: ScriptFlow(name=name, path=beside, datasets={}, jobs={jobid: job}, stored_hash=stored_hash)
        }

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
        raise NotFoundError(
            f"no flow file of this host declares the job {jobid}",
            "add its flow to DATAFLOW_FLOWS on this host and reload the daemon",
        )
