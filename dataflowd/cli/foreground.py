"""A run in the foreground: a daemon inside this process that claims only what a person has named, with the same claim, engines
and finish as any daemon.

`run`, `force` and `exec --publish` share this module: which job and which flow file are meant, the question before the run, and
the report at its end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dataflowd.cli.ask import ask, call, connected, explain
from dataflowd.cli.output import JobOutput, say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import as_json, cell, confirm, first_line
from dataflowd.model.errors import EXIT, InvalidPathError, InvalidValueError, NotAllowedError, NotFoundError
from dataflowd.model.faults import AttemptError
from dataflowd.model.plural import agreeing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.daemon.state import Wanted
    from dataflowd.flow import Flow, Job
    from dataflowd.flow.loaded import Declared
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt, Result

FLOW_FILE = "flow.toml"


@dataclass
class Foreground:
    json: bool
    ended: list[dict[str, Any]] = field(default_factory=list)

    def run(self, context: typer.Context, job: str, wanted: Wanted, words: Sequence[str] = ()) -> None:

        settings, declared = _prepared(context, job, wanted.jobid)
        _, known = declared.job(wanted.jobid)
        if words and known.kind not in {"command", "spark_submit"}:
            raise NotAllowedError(
                f"job {wanted.jobid} is of kind {known.kind}, which takes no words",
                f"change a parameter: dataflowctl resubmit {wanted.jobid} --param NAME=VALUE",
            )
        if words:
            declared.add_words(wanted.jobid, words)
        self.start(settings, declared, wanted)

    def start(self, settings: Settings, declared: Declared, wanted: Wanted) -> None:
        from dataflowd.daemon.start import run_wanted

        echo = JobOutput(sys.stderr if self.json else sys.stdout)
        run_wanted(settings, declared, wanted, self.told, echo)

    def told(self, attempt: Attempt, result: Result) -> None:
        self.ended.append(
            {
                "jobid": attempt.jobid,
                "dataid": attempt.dataid,
                "attempt": attempt.attempt,
                "outcome": result.outcome,
                "code": result.code,
                "error": result.error,
                "remedy": result.remedy,
            }
        )
        if not self.json:
            code = f" {result.code}" if result.code else ""
            why = f": {cell(first_line(result.error))}" if result.error else ""
            say(f"{attempt.jobid} {attempt.dataid}: {result.outcome}{code}{why}")

    def end(self) -> None:
        """Prints the result and sets the exit status. If one run failed for one of the five questions, that question's status."""
        if self.json:
            as_json(self.ended)
        failed = [one for one in self.ended if one["outcome"] != "DONE"]
        if failed:
            code = str(failed[0]["code"]) if len(self.ended) == 1 else "FAILED"
            raise typer.Exit(EXIT.get(code, EXIT["FAILED"]))


def confirm_force(  # noqa: PLR0913
    context: typer.Context,
    jobid: str,
    dataid: str,
    what: str,
    *,
    i_know: bool,
    yes: bool,
    json: bool,
    explained: bool,
    reason: str | None = None,
) -> None:
    """Shows which questions are answered no, and asks. If the setting production is on, --i-know is needed, too."""
    asked = call("five_questions", jobid=jobid, dataid=dataid)
    if explained:
        explain(
            asked,
            call(
                "daemon_claim_run",
                daemon="...",
                incarnation="...",
                jobid=jobid,
                dataid=dataid,
                forced=True,
                reason=reason,
            ),
        )
    settings = settings_of(context)
    if settings.production and not i_know:
        raise NotAllowedError(
            f"environment {settings.environment} is production: force needs --i-know there",
            "find out with `dataflowctl why` what keeps the run; if you have to force it, give --i-know",
        )
    noes = [row for row in ask(context, asked, explained=False) if not row["answer"]]
    if not json:
        for row in noes:
            say(f"{row['number']}. {row['question']} {row['code']}: {cell(row['detail'])}")
    confirm(
        f"{what} {jobid} {dataid} although {agreeing(len(noes), 'question', 'is', 'are')} answered no?",
        yes=yes,
    )


def jobid_of(context: typer.Context, job: str) -> str:
    """Returns the job. For a script: the job whose command names it; if no flow names the script, the job of the same name."""
    if "/" not in job:
        return job
    script = Path(job)
    if not script.is_file():
        raise NotFoundError(f"there is no script {job}", "name it by its path, or a job by its name")
    _, named = _declaring(settings_of(context), script) or (None, [])
    if len(named) > 1 and script.stem not in named:
        raise InvalidValueError(
            f"{job} is the script of {', '.join(named)}",
            f"name the job: DATAFLOW_FLOWS={FLOW_FILE} dataflowctl run {named[0]}",
        )
    return named[0] if len(named) == 1 else script.stem


def _prepared(context: typer.Context, job: str, jobid: str) -> tuple[Settings, Declared]:
    """Returns settings and flows for the run. A script that is named by its path needs no flow file, because the database knows the
    job; but a flow file that names the script is used.
    """
    from dataflowd.flow.loaded import Declared, needs_spark

    settings = foreground_settings(context)
    declared = Declared(settings)
    if "/" in job:
        with connected(context) as connection:
            [row] = call("declared_job", jobid=jobid).send(connection)
        if found := _declaring(settings, Path(job)):
            declared, _ = found
        else:
            declared.add_script(jobid, Path(job), row["config_hash"])
    if not declared.is_known(jobid):
        with connected(context) as connection:
            base = call("code_of", jobid=jobid).send(connection)[0]["base"]
        declared = _with_flow_here(settings, declared, base)
        declared.add_like(jobid, base)
    try:
        found_in, known = declared.job(jobid)
    except NotFoundError as error:
        command = f"DATAFLOW_FLOWS={FLOW_FILE} dataflowctl run {jobid}"
        raise NotFoundError(
            error.message,
            f"go to the directory of the {FLOW_FILE} that declares it, or name that file: {command}",
        ) from None
    if known.kind == "outside":
        raise NotAllowedError(
            f"job {jobid} is executed outside: there is no code to run here", f"dataflowctl begin {jobid}"
        )
    engine = "spark" if needs_spark(found_in, known) else "process"
    return settings.model_copy(update={"engine": engine}), declared


def _with_flow_here(settings: Settings, declared: Declared, jobid: str) -> Declared:
    """Returns the flows of this host; or flow.toml of the current directory, if only that file declares the job."""
    from dataflowd.flow.loaded import Declared

    file = Path(FLOW_FILE)
    if declared.is_known(jobid) or not file.is_file():
        return declared
    here = Declared(settings.model_copy(update={"flows": [file.absolute()]}))
    return here if here.is_known(jobid) else declared


def foreground_settings(context: typer.Context) -> Settings:
    """Returns the settings of a run in the foreground: Ctrl-C stops the attempt at once, and only errors are logged."""
    from dataflowd.host.settings import load

    loaded = load(context.obj)
    given: dict[str, Any] = {"drain_timeout": 0.0}
    if loaded.origins["log_level"] == "default":
        given["log_level"] = "error"
    return loaded.settings.model_copy(update=given)


def _declaring(settings: Settings, script: Path) -> tuple[Declared, list[str]] | None:
    """Returns the first flows that have jobs whose command names this script, and these jobs.

    The flows of this host come first, then a flow.toml in the current directory, then one beside the script. If none of them names
    the script, a job counts whose command could not be loaded.
    """
    from dataflowd.flow.loaded import Declared

    left_out: list[Exception] = []
    beside = [path for path in (Path(FLOW_FILE), script.parent / FLOW_FILE) if path.is_file()]
    for flows in (settings.flows, *([path.absolute()] for path in beside)):
        declared = Declared(settings.model_copy(update={"flows": flows}))
        if named := _naming(declared, script):
            return declared, named
        left_out += (*declared.lacking.values(), *declared.elsewhere.values())
    if left_out:
        raise left_out[0]
    return None


def _naming(declared: Declared, script: Path) -> list[str]:
    from dataflowd.flow.codehash import names_file

    return [
        jobid
        for flow in declared.flows.values()
        for jobid, job in flow.jobs.items()
        if job.kind == "command"
        and any(
            names_file(program) and program.samefile(script)
            for program in (flow.directory / word for word in job.code)
        )
    ]


def require_here(context: typer.Context, jobid: str) -> None:
    """Raises if a dataset of the job belongs to another environment: it is neither read nor written here, not even by force."""
    environment = settings_of(context).environment
    with connected(context) as connection:
        [row] = call("bound_elsewhere", jobid=jobid, environment=environment).send(connection)
    if row["reason"] is not None:
        raise InvalidPathError(f"{jobid}: {row['reason']}", "run it on a host of that environment")


def declared_here(context: typer.Context, declared: Declared, jobid: str) -> tuple[Flow, Job] | None:
    """Returns the job, or the job that it was created like, as a flow file of this host declares it; None: no file does."""
    if not declared.is_known(jobid):
        with connected(context) as connection:
            [code] = call("code_of", jobid=jobid).send(connection)
        declared.add_like(jobid, code["base"])
    try:
        return declared.job(jobid)
    except NotFoundError:
        return None


def require_yes(context: typer.Context, jobid: str, dataid: str) -> None:

    with connected(context) as connection:
        answers = call("five_questions", jobid=jobid, dataid=dataid).send(connection)
    for row in answers:
        if not row["answer"]:
            raise AttemptError(
                row["code"], f"{jobid} {dataid}: {row['detail']}", f"dataflowctl why {jobid} {dataid}"
            )


def nothing(context: typer.Context, jobid: str, dataid: str | None) -> Exception:
    """Returns why nothing was run: the question that keeps most runs of the job, or that the job has no runs."""
    if dataid is not None:
        require_yes(context, jobid, dataid)
    with connected(context) as connection:
        blockers = call("blockers", jobid=jobid).send(connection)
    questions = [row for row in blockers if row["code"] in EXIT]
    if not questions:
        return AttemptError(
            "DATA_NOT_READY",
            f"{jobid} has nothing to do",
            f"register data with `dataflowctl ready`, see `dataflowctl why {jobid}`; a job without inputs is run with --new",
        )
    return AttemptError(
        questions[0]["code"],
        f"{jobid} has nothing that may run: {questions[0]['detail']}",
        questions[0]["remedy"] or "",
    )
