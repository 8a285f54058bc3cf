"""The environment of a job, for a person: exec executes any command in it (exec_process.py), env shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call, connected
from dataflowd.cli.foreground import (
    Foreground,
    confirm_force,
    declared_here,
    foreground_settings,
    require_here,
)
from dataflowd.cli.output import say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import as_json, cell
from dataflowd.model.errors import NotAllowedError
from dataflowd.model.masking import MASK

if TYPE_CHECKING:
    from dataflowd.flow import Flow, Job


def register(app: typer.Typer) -> None:
    options.add(app, exec_, name="exec", kind=options.WithWords)
    options.add(app, env)


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
    from dataflowd.daemon.state import Wanted, Which

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
        from dataflowd.cli.exec_process import execute

        raise typer.Exit(execute(settings_of(context), row["document"], job, dataid, words))
    from dataflowd.flow.loaded import Declared

    settings = foreground_settings(context)
    declared = Declared(settings)
    if (known_here := declared_here(context, declared, job)) is not None:
        _require_asked(*known_here, dataid)
    confirm_force(
        context, job, dataid, f"execute {words[0]}", i_know=i_know, yes=yes, json=json, explained=explained
    )
    with connected(context) as connection:
        [known] = call("declared_job", jobid=job).send(connection)
    declared.add_command(job, words, known["config_hash"])
    foreground = Foreground(json=json)
    foreground.start(
        settings.model_copy(update={"engine": "process"}), declared, Wanted(job, Which.FORCED, dataid)
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
    from dataflowd.cli.exec_process import previewed
    from dataflowd.flow import script_variables

    [row] = ask(context, call("preview_order", jobid=job, dataid=dataid), explained=explained)
    order = previewed(row["document"], job, dataid)
    secrets = script_variables.password_variables(order)
    sealed = {script_variables.variable(dataset.name, "encryptedpass") for dataset in secrets.values()}
    found = script_variables.variables(order) | dict.fromkeys([*secrets, *sealed], MASK)
    if json:
        as_json([{"name": name, "value": value} for name, value in sorted(found.items())])
        return
    for name, value in sorted(found.items()):
        say(f"{name}={cell(value)}")


def _require_asked(flow: Flow, job: Job, dataid: str) -> None:
    """Raises if checks would be left out: only the datasets' checks on the number of rows are judged for a command."""
    custom = ["custom"] if job.custom_checks else []
    inside = [check for output in job.outputs for check in flow.checks_inside(job, output)]
    if unasked := sorted({*job.checks, *custom, *inside}):
        raise NotAllowedError(
            f"what a command makes in the place of job {job.name} would be published without its checks: {', '.join(unasked)}",
            f"let the job make it: `dataflowctl force {job.name} {dataid}`; without --publish the command can be tried",
        )
