"""Run a job here and now: run, force, exec; and what its script would find: env.

A run in the foreground is a daemon of its own that wants one thing: the same claim, the same engines, the same finish.
Its exit status says how it went, as the wrappers of scripts expect.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call, connected, explain
from dataflowd.cli.output import JobOutput, say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import as_json, cell, confirm, first_line
from dataflowd.model.plural import agreeing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.daemon.state import Wanted
    from dataflowd.flow import Flow, Job
    from dataflowd.flow.loaded import Declared
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt, Result

FLOW_FILE = "flow.toml"
JobOrScript = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Name of the job, or path of the script that a job's command names: ./load.sh."
    ),
]


def register(app: typer.Typer) -> None:
    options.add(app, run, kind=options.WithWords)
    options.add(app, exec_, name="exec", kind=options.WithWords)
    for command in (force, env):
        options.add(app, command)


def run(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: JobOrScript,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Catch up: everything of the job that is ready.")
    ] = False,
    dataid: Annotated[str | None, typer.Option(help="This chunk; default: the next.")] = None,
    new: Annotated[
        bool,
        typer.Option("--new", help="Of a job without inputs: a new dataid, made of the current time (UTC)."),
    ] = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Run the next chunk of a job here, in the foreground, without a daemon; what it says is shown.

    The five questions are asked, the limits hold, and the status is recorded, as if a daemon had run it. Ctrl-C stops the
    run and gives it back. The job's code is named by a flow file: one of DATAFLOW_FLOWS, or flow.toml of the current
    directory. A script belongs to the job whose command names it, in one of these files or in a flow.toml beside the script;
    if no file names it, ./load.sh belongs to the job load. Words behind -- are added to the job's command as they are. They
    are kept with the attempt, and `attempts` shows them: put no secret there.

    Exit status: 0 the run is done, 1 it failed, 10 to 14 the question that is answered no.

    Examples:
    dataflowctl run ./load.sh               the script of the job load, on the next chunk
    dataflowctl run ./load.sh --all         on all that are ready
    dataflowctl run clean_orders --dataid 2026-01-31
    dataflowctl run ./load.sh -- --verbose  with a further word for the script
    dataflowctl run fetch_rates --new       of a job without inputs
    """
    from dataflowd.daemon.state import Wanted

    if sum((every, dataid is not None, new)) > 1:
        raise typer.BadParameter("--all, --dataid and --new exclude each other")
    jobid = _jobid(context, job)
    if explained:
        asked = (
            call("five_questions", jobid=jobid, dataid=dataid) if dataid else call("next_inputs", jobid=jobid)
        )
        explain(call("new_run", jobid=jobid) if new else asked)
    require_here(context, jobid)
    if dataid is not None:
        _require(context, jobid, dataid)
    foreground = _Foreground(json=json)
    foreground.run(context, job, Wanted(jobid, dataid, every=every, is_new=new), options.words(context))
    if not foreground.ended and not every:
        raise nothing(context, jobid, dataid)
    foreground.end()


def force(  # noqa: PLR0913
    context: typer.Context,
    job: JobOrScript,
    dataid: options.Dataid,
    *,
    i_know: Annotated[
        bool, typer.Option("--i-know", help="Needed where the setting production is on.")
    ] = False,
    reason: options.Reason = None,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Run a chunk here although a question is answered no; shows which, and asks.

    What was published before is replaced when it succeeds. An input that is not READY is not given to the job: a script finds
    its location empty. The attempt is marked as forced, with the answers that it was run against, and the history keeps
    who did it, and the --reason. `chunks`, `why`, `lineage` and `status` show the mark, and which inputs were missing; when one of these arrives,
    the chunk is stale, and `resubmit JOB --stale` makes it again. Never forced are two writers of one chunk, locations outside the
    allowed roots, and another environment.

    Examples:
    dataflowctl force clean_orders 2026-01-31 --reason 'without returns: their feed is a week late'
    """
    from dataflowd.daemon.state import Wanted

    jobid = _jobid(context, job)
    require_here(context, jobid)
    _confirm_force(
        context, jobid, dataid, "run", i_know=i_know, yes=yes, json=json, explained=explained, reason=reason
    )
    foreground = _Foreground(json=json)
    foreground.run(context, job, Wanted(jobid, dataid, forced=True, reason=reason))
    foreground.end()


def exec_(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    *,
    publish: Annotated[
        bool, typer.Option("--publish", help="Claim the run by force, and publish what the command makes.")
    ] = False,
    i_know: Annotated[
        bool, typer.Option("--i-know", help="With --publish: needed where the setting production is on.")
    ] = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Execute any command in the environment of a job: its variables and its opened passwords, on the real inputs.

    Whether the run may start is not asked. Without --publish nothing is claimed, locked or published: the output locations
    are directories of its own, which are removed when it ends, and the exit status is the command's. With --publish it is
    `force` with this command in the place of the job's code: it asks, the attempt is marked as forced and keeps the command's words.

    Examples:
    dataflowctl exec load 2026-01-31 -- sh -c 'wc -l "$raw_location"'
    dataflowctl exec load 2026-01-31 --publish -- ./repair.sh
    """
    from dataflowd.daemon.state import Wanted

    words = options.words(context)
    if not words:
        raise typer.BadParameter(
            "write the command behind --: dataflowctl exec JOB DATAID -- COMMAND WORD..."
        )
    if json and not publish:
        raise typer.BadParameter("--json goes with --publish: otherwise all output is the command's")
    require_here(context, job)
    if not publish:
        [row] = ask(context, call("preview_order", jobid=job, dataid=dataid), explained=explained)
        from dataflowd.cli.aside import execute

        raise typer.Exit(execute(settings_of(context), row["document"], job, dataid, words))
    from dataflowd.flow.loaded import Declared

    settings = _foreground_settings(context)
    declared = Declared(settings)
    if (known_here := declared_here(context, declared, job)) is not None:
        _require_asked(*known_here, dataid)
    _confirm_force(
        context, job, dataid, f"execute {words[0]}", i_know=i_know, yes=yes, json=json, explained=explained
    )
    with connected(context) as connection:
        [known] = call("declared_job", jobid=job).send(connection)
    declared.add_command(job, words, known["config_hash"])
    foreground = _Foreground(json=json)
    foreground.start(
        settings.model_copy(update={"engine": "process"}), declared, Wanted(job, dataid, forced=True)
    )
    foreground.end()


def env(
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    *,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """The variables that a script of this job would find, with secrets masked; whether it may run is not asked.

    The directory of an output ends in the number of the attempt, which is 0 here.

    Examples:
    dataflowctl env load 2026-01-31
    """
    from dataflowd.flow import script_variables
    from dataflowd.model.masking import MASK
    from dataflowd.model.work_order import Order

    [row] = ask(context, call("preview_order", jobid=job, dataid=dataid), explained=explained)
    told = {
        "attempt": 0,
        "jobid": job,
        "dataid": dataid,
        "tag": "",
        "kind": "command",
        "code": "",
        "directory": "",
    }
    order = Order.parse(row["document"] | told)
    secrets = script_variables.password_variables(order)
    sealed = {script_variables.variable(dataset.name, "encryptedpass") for dataset in secrets.values()}
    found = script_variables.variables(order) | dict.fromkeys([*secrets, *sealed], MASK)
    if json:
        as_json([{"name": name, "value": value} for name, value in sorted(found.items())])
        return
    for name, value in sorted(found.items()):
        say(f"{name}={cell(value)}")


def _confirm_force(  # noqa: PLR0913
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
    """Shows what is answered no, and asks; where the setting production is on, a person has to know it before."""
    from dataflowd.model.errors import NotAllowedError

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
            f"environment {settings.environment} is production: nothing is forced there by habit",
            "find out with `dataflowctl why` what keeps it; if it has to be, say --i-know",
        )
    noes = [row for row in ask(context, asked, explained=False) if not row["answer"]]
    if not json:
        for row in noes:
            say(f"{row['number']}. {row['question']} {row['code']}: {cell(row['detail'])}")
    confirm(
        f"{what} {jobid} {dataid} although {agreeing(len(noes), 'question', 'is', 'are')} answered no?",
        yes=yes,
    )


@dataclass
class _Foreground:
    json: bool
    ended: list[dict[str, Any]] = field(default_factory=list)

    def run(self, context: typer.Context, job: str, wanted: Wanted, words: Sequence[str] = ()) -> None:
        from dataflowd.model.errors import NotAllowedError

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
        """One run that failed for a question ends with that question's status."""
        from dataflowd.model.errors import EXIT

        if self.json:
            as_json(self.ended)
        failed = [one for one in self.ended if one["outcome"] != "DONE"]
        if failed:
            code = str(failed[0]["code"]) if len(self.ended) == 1 else "FAILED"
            raise typer.Exit(EXIT.get(code, EXIT["FAILED"]))


def _jobid(context: typer.Context, job: str) -> str:
    """Of a script: the job whose command names it; without a flow that does, the one that is called as it."""
    from dataflowd.model.errors import InvalidValueError, NotFoundError

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
    """A script that is named by its path needs no flow file, for the database knows the job; one that names it counts."""
    from dataflowd.flow.loaded import Declared, needs_spark
    from dataflowd.model.errors import NotAllowedError, NotFoundError

    settings = _foreground_settings(context)
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
    """The flows of this host, or flow.toml of the current directory where only that file declares the job."""
    from dataflowd.flow.loaded import Declared

    file = Path(FLOW_FILE)
    if declared.is_known(jobid) or not file.is_file():
        return declared
    here = Declared(settings.model_copy(update={"flows": [file.absolute()]}))
    return here if here.is_known(jobid) else declared


def _foreground_settings(context: typer.Context) -> Settings:
    """Ctrl-C stops what runs; what the job says is shown, what the daemon would log is not."""
    from dataflowd.host.settings import load

    loaded = load(context.obj)
    given: dict[str, Any] = {"drain_timeout": 0.0}
    if loaded.origins["log_level"] == "default":
        given["log_level"] = "error"
    return loaded.settings.model_copy(update=given)


def _declaring(settings: Settings, script: Path) -> tuple[Declared, list[str]] | None:
    """The first flows with jobs whose command names that very script, and these jobs.

    Those of this host come first, then a flow.toml here, then one beside the script. Where none of them does, a job that was
    left out for its code may be the one.
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
    """A dataset of another environment is neither read nor written here, also by force."""
    from dataflowd.model.errors import InvalidPathError

    environment = settings_of(context).environment
    with connected(context) as connection:
        [row] = call("bound_elsewhere", jobid=jobid, environment=environment).send(connection)
    if row["reason"] is not None:
        raise InvalidPathError(f"{jobid}: {row['reason']}", "run it on a host of that environment")


def declared_here(context: typer.Context, declared: Declared, jobid: str) -> tuple[Flow, Job] | None:
    """As a flow file of this host has it, or the job that it was created like; None: no file has."""
    from dataflowd.model.errors import NotFoundError

    if not declared.is_known(jobid):
        with connected(context) as connection:
            [code] = call("code_of", jobid=jobid).send(connection)
        declared.add_like(jobid, code["base"])
    try:
        return declared.job(jobid)
    except NotFoundError:
        return None


def _require_asked(flow: Flow, job: Job, dataid: str) -> None:
    """Raises where checks would be left out: a command is asked no more than the rows that it tells, by what the datasets declare."""
    from dataflowd.model.errors import NotAllowedError

    custom = ["custom"] if job.custom_checks else []
    inside = [check for output in job.outputs for check in flow.checks_inside(job, output)]
    if unasked := sorted({*job.checks, *custom, *inside}):
        raise NotAllowedError(
            f"what a command makes in the place of job {job.name} would be published without its checks: {', '.join(unasked)}",
            f"let the job make it: `dataflowctl force {job.name} {dataid}`; without --publish the command can be tried",
        )


def _require(context: typer.Context, jobid: str, dataid: str) -> None:
    from dataflowd.model.faults import AttemptError

    with connected(context) as connection:
        answers = call("five_questions", jobid=jobid, dataid=dataid).send(connection)
    for row in answers:
        if not row["answer"]:
            raise AttemptError(
                row["code"], f"{jobid} {dataid}: {row['detail']}", f"dataflowctl why {jobid} {dataid}"
            )


def nothing(context: typer.Context, jobid: str, dataid: str | None) -> Exception:
    """Why nothing was run: the question that keeps most of the job's runs, or that there are none."""
    from dataflowd.model.errors import EXIT
    from dataflowd.model.faults import AttemptError

    if dataid is not None:
        _require(context, jobid, dataid)
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
