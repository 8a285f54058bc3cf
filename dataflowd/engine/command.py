"""What a command job runs: the words of its flow file, in the flow's directory, with dataid and jobid in the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dataflowd.engine.process import ProcessEngine, Program
from dataflowd.errors import NotAllowedError

if TYPE_CHECKING:
    from dataflowd.attempt import Attempt
    from dataflowd.declared import Declared
    from dataflowd.settings import Settings

INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "HOME")


def command_engine(settings: Settings, declared: Declared) -> ProcessEngine:
    def program(attempt: Attempt) -> Program:
        flow, job = declared.job(attempt.jobid)
        if job.kind != "command" or isinstance(job.code, str):
            raise NotAllowedError(
                f"the job {attempt.jobid} is of kind {job.kind}, and this daemon runs only commands",
                "run the daemon with --engine spark",
            )
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        return Program(
            job.code, inherited | {"dataid": attempt.dataid, "jobid": attempt.jobid}, flow.directory
        )

    return ProcessEngine(program, settings.effective_log_dir)
