"""Runs a job in the foreground: run, force.

Such a run is executed by a daemon inside this process that claims nothing else (foreground.py). The exit status says how the
run ended, as wrappers of scripts expect.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import call, explain
from dataflowd.cli.foreground import Foreground, confirm_force, jobid_of, nothing, require_here, require_yes

JobOrScript = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Name of the job, or path of the script that a job's command names: ./load.sh."
    ),
]


def register(app: typer.Typer) -> None:
    options.add(app, run, kind=options.WithWords)
    options.add(app, force)


def run(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: JobOrScript,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Catch up: run everything of the job that is ready.")
    ] = False,
    dataid: Annotated[str | None, typer.Option(help="This chunk; default: the next.")] = None,
    new: Annotated[
        bool,
        typer.Option("--new", help="For a job without inputs: a new dataid, made of the current time (UTC)."),
    ] = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Run the next chunk of a job here, in the foreground, without a daemon, and show what the job prints.

    The five questions are asked, the limits apply, and the status is recorded, as if a daemon had run it. Ctrl-C stops the
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
    from dataflowd.daemon.state import Wanted, Which  # noqa: PLC0415 - slow; `--help` does without

    if sum((every, dataid is not None, new)) > 1:
        raise typer.BadParameter("--all, --dataid and --new exclude each other")
    jobid = jobid_of(context, job)
    if explained:
        asked = (
            call("five_questions", jobid=jobid, dataid=dataid) if dataid else call("next_inputs", jobid=jobid)
        )
        explain(call("new_run", jobid=jobid) if new else asked)
    require_here(context, jobid)
    if dataid is not None:
        require_yes(context, jobid, dataid)
    foreground = Foreground(json=json)
    which = Which.EVERY if every else Which.NEW if new else Which.NAMED if dataid is not None else Which.NEXT
    foreground.run(context, job, Wanted(jobid, which, dataid or ""), options.words(context))
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

    If the run succeeds, it replaces the published version. An input that is not READY is not given to the job: a script finds
    its location empty. The attempt is marked as forced and stores the answers of the five questions; the history stores who
    forced it, and the --reason. `chunks`, `why`, `lineage` and `status` show the mark, and which inputs were missing. When a missing input arrives,
    the chunk is stale, and `resubmit JOB --stale` makes it again. Force never allows two writers of one chunk, locations outside the
    allowed roots, or another environment.

    Examples:
    dataflowctl force clean_orders 2026-01-31 --reason 'without returns: their feed is a week late'
    """
    from dataflowd.daemon.state import Wanted, Which  # noqa: PLC0415 - slow; `--help` does without

    jobid = jobid_of(context, job)
    require_here(context, jobid)
    confirm_force(
        context, jobid, dataid, "run", i_know=i_know, yes=yes, json=json, explained=explained, reason=reason
    )
    foreground = Foreground(json=json)
    foreground.run(context, job, Wanted(jobid, Which.FORCED, dataid, reason=reason))
    foreground.end()
