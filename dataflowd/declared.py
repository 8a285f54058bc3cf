"""The flow files of this host, as the daemon last read them: which code a job runs is known here and nowhere else.

A reload that finds mistakes keeps what was good, so that a half-edited file stops nothing that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflowd import flow
from dataflowd.errors import NotFoundError

if TYPE_CHECKING:
    from dataflowd.flow import Flow, Job
    from dataflowd.settings import Settings


class Declared:
    def __init__(self, settings: Settings) -> None:
        self.flows: dict[str, Flow] = {}
        self.load(settings)

    def load(self, settings: Settings) -> None:
        """Raises FlowMistakesError and changes nothing if a file is wrong."""
        loaded = [flow.load(path, settings) for path in settings.flows]
        self.flows = {one.name: one for one in loaded}

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
