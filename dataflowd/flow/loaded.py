"""The flow files of this host, as the daemon last read them. Only they say which code a job runs.

A reload that finds mistakes keeps the flows of before, so that a half-edited file stops no job. When a daemon starts,
there is nothing to keep: a job whose script or module is missing is left out, and the others run. A job with a dataset that
this host may not access (allowed_roots, allowed_hosts) is always left out: another host may run it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd import flow
from dataflowd.flow import Flow, FlowMistakesError, Job, Mistake
from dataflowd.model.errors import NotFoundError
from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.host.settings import Settings


@dataclass(frozen=True, kw_only=True)
class ScriptFlow(Flow):
    """A script that a person named, for a job of the database. It has no flow file."""

    stored_hash: str | None

    def config_hash(self, job: str) -> str:  # noqa: ARG002 - it has one job
        return self.stored_hash or ""


def needs_spark(flow: Flow, job: Job) -> bool:
    """Whether Spark must run the job, or check its outputs."""
    return job.kind != "command" or any(flow.checks_inside(job, output) for output in job.outputs)


class Declared:
    def __init__(self, settings: Settings) -> None:
        self.lacking: dict[str, FlowMistakesError] = {}  # by job
        self.elsewhere: dict[str, AttemptError] = {}  # by job
        self.flows = self._read(settings, self.lacking, self.elsewhere)
        self._settings = settings
        self._fresh: dict[Path, tuple[tuple[int, ...], Flow]] = {}
        self._likes: dict[str, str] = {}

    def load(self, settings: Settings) -> None:
        """Reads all flow files again. If one has mistakes, raises FlowMistakesError and changes nothing."""
        elsewhere: dict[str, AttemptError] = {}
        self.flows = self._read(settings, None, elsewhere)
        self._settings = settings
        self.lacking, self.elsewhere = {}, elsewhere

    def unserved(self) -> dict[str, str]:
        """The jobs that were left out, each with the reason."""
        lacking = {job: error.mistakes[0].told(error.path) for job, error in self.lacking.items()}
        return lacking | {job: f"{error.message}; {error.remedy}" for job, error in self.elsewhere.items()}

    def read_again(self) -> dict[str, Flow]:
        """The flows as their files are now; for a file with mistakes, the flow of before. Changes no job's code."""
        return {name: self._current(one) for name, one in self.flows.items()}

    def as_applied(self, known: Flow, job: Job, applied: str | None) -> tuple[Flow, Job]:
        """The flow and the job as applied: of the file as it is now, if only this one matches `applied`."""
        name = job.like or job.name
        if applied is None or known.config_hash(name) == applied:
            return known, job
        now = self._current(known)
        if name not in now.jobs or now.config_hash(name) != applied:
            return known, job
        return now, replace(now.jobs[name], name=job.name, like=job.like)

    def _current(self, known: Flow) -> Flow:
        if isinstance(known, ScriptFlow):
            return known
        try:
            found = known.path.stat()
            mark = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
            if known.path not in self._fresh or self._fresh[known.path][0] != mark:
                # Missing code does not matter here: only the declarations of datasets and jobs are compared.
                self._fresh[known.path] = mark, flow.load(known.path, self._settings, {}, {})
        except (OSError, FlowMistakesError):
            return known
        return self._fresh[known.path][1]

    @staticmethod
    def _read(
        settings: Settings, lacking: dict[str, FlowMistakesError] | None, elsewhere: dict[str, AttemptError]
    ) -> dict[str, Flow]:
        found = {}
        for path in settings.flows:
            left_out: dict[str, Mistake] = {}
            away: dict[str, Mistake] = {}
            loaded = flow.load(path, settings, None if lacking is None else left_out, away)
            found[loaded.name] = loaded
            elsewhere |= {
                job: AttemptError("INVALID_PATH", f"{path}:{mistake.line}: {mistake.what}", mistake.remedy)
                for job, mistake in away.items()
            }
            if lacking is not None:
                lacking |= {job: FlowMistakesError(path, [mistake]) for job, mistake in left_out.items()}
        return found

    def add_script(self, jobid: str, script: Path, stored_hash: str | None) -> None:
        """Lets a script run as the job's code, in the working directory of the person who named it."""
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
        # The script comes first, so that it is the job's code. The other flows still declare their datasets.
        self.flows = {name: script_flow, **self.flows}

    def add_command(self, jobid: str, words: Sequence[str], stored_hash: str | None) -> None:
        """Lets a person's command run in place of the job's code, in the person's working directory."""
        job = Job(
            name=jobid,
            kind="command",
            code=(),
            inputs={},
            outputs=(),
            params={},
            spark={},
            checks={},
            words=tuple(words),
            is_replaced=True,
        )
        name = f"command of {jobid}"
        command_flow = ScriptFlow(
            name=name, path=Path.cwd() / "command", datasets={}, jobs={jobid: job}, stored_hash=stored_hash
        )
        self.flows = {name: command_flow, **self.flows}

    def add_words(self, jobid: str, words: Sequence[str]) -> None:
        """Appends words to the job's command, for this process only."""
        known, job = self.job(jobid)
        said = replace(known, jobs={**known.jobs, jobid: replace(job, words=tuple(words))})
        self.flows = {name: said if one is known else one for name, one in self.flows.items()}

    def add_like(self, jobid: str, base: str) -> None:
        """Registers a job that was created like another, `base`: it runs the code of `base`."""
        if jobid != base:
            self._likes[jobid] = base

    def likes_of(self, bases: frozenset[str]) -> frozenset[str]:
        return frozenset(jobid for jobid, base in self._likes.items() if base in bases)

    def is_known(self, jobid: str) -> bool:
        return (
            jobid in self.lacking
            or jobid in self.elsewhere
            or any(jobid in one.jobs for one in self.flows.values())
        )

    def jobs(self, *, commands_only: bool = False) -> list[str]:
        return sorted(
            jobid
            for one in self.flows.values()
            for jobid, job in one.jobs.items()
            if job.kind != "outside"
            and (not commands_only or (job.kind == "command" and not needs_spark(one, job)))
        )

    def has_fixed_paths(self, dataset: str) -> bool:
        """Whether chunks of this dataset may have fixed paths. True also for a dataset of no file, as of a created job."""
        found = [one.datasets[dataset] for one in self.flows.values() if dataset in one.datasets]
        return not found or any(one.publish == "rename" for one in found)

    def job(self, jobid: str) -> tuple[Flow, Job]:
        for one in self.flows.values():
            if jobid in one.jobs:
                return one, one.jobs[jobid]
        if jobid in self.lacking:
            raise self.lacking[jobid]
        if jobid in self.elsewhere:
            raise self.elsewhere[jobid]
        if jobid in self._likes:
            base_flow, base = self.job(self._likes[jobid])
            return base_flow, replace(base, name=jobid, like=base.name)
        raise NotFoundError(
            f"no flow file of this host declares the job {jobid}",
            "add its flow to DATAFLOW_FLOWS on this host and reload the daemon",
        )
