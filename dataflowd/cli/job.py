"""Jobs over one application: job create, drop."""

from __future__ import annotations

import json as encoder
from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import call, connected, explain
from dataflowd.cli.output import say
from dataflowd.cli.show import as_json, confirm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.cli.ask import Row

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the new job.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Jobs that run the code of another one."
    )
    options.add(group, create, prefix="job")
    options.add(group, drop, prefix="job")
    app.add_typer(group, name="job")


def create(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    name: Name,
    *,
    like: Annotated[str, typer.Option(metavar="JOB", help="The job whose code it runs; a flow declares it.")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[INPUT=]DATASET",
            help="What it reads in the place of an input of JOB. May be repeated; default: what JOB reads.",
        ),
    ] = None,
    partitioning: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the batches of this partitioning of its source.")
    ] = None,
    description: Annotated[str, typer.Option(help="What it is, for people.")] = "",
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="In the place of JOB's own parameter. May be repeated."),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[OUTPUT=]DATASET",
            help="A declared dataset that it writes; default: NAME.OUTPUT is made, beside that of JOB.",
        ),
    ] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Create a job that runs the code of another one, over a source and with parameters of its own.

    It is stored in the database alone. Daemons that have JOB run it at once. All that is not said here comes from JOB, and follows its
    flow file: limits, retries, checks, other parameters. The code goes on to call its datasets by the names that JOB has for them.

    Examples:
    dataflowctl job create load_eu --like load --source customers_eu --partitioning size_5000 --description 'Europe' --param currency=EUR
    dataflowctl job create load_test --like load --partitioning every_200
    """
    asked = call(
        "job_create",
        jobid=name,
        base=like,
        sources=encoder.dumps(_datasets(source or (), "--source")),
        partitioning=partitioning,
        description=description,
        params=encoder.dumps(options.pairs(param or (), "--param")),
        outputs=encoder.dumps(_datasets(output or (), "--output")),
    )
    if explained:
        explain(asked)
    with connected(context) as connection, connection.transaction(force_rollback=dry_run):
        call("long_timeout").send(connection)
        changes = asked.send(connection)
    _told(changes, dry_run=dry_run, json=json)


def drop(  # noqa: PLR0913
    context: typer.Context,
    name: Name,
    *,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Retire a job that was created like another, with the datasets that were made for it. Its history and its data stay.

    Refused while it runs. A job that a flow file declares is removed there, and by `apply --prune`.

    Examples:
    dataflowctl job drop load_eu
    """
    shown, deed = (call("job_drop", jobid=name, dry_run=is_dry) for is_dry in (True, False))
    if explained:
        explain(shown if dry_run else deed)
    with connected(context) as connection:
        changes = shown.send(connection)
        if not dry_run:
            confirm(f"retire {', '.join(_named(change) for change in changes)}?", yes=yes)
            with connection.transaction():
                call("long_timeout").send(connection)
                changes = deed.send(connection)
    _told(changes, dry_run=dry_run, json=json)


def _datasets(written: Sequence[str], option: str) -> dict[str, str]:
    """The datasets by their name in the code. The database replaces "" if there is only one."""
    return options.pairs(
        [each if "=" in each else f"={each}" for each in written], option, may_lack_name=True
    )


def _told(changes: list[Row], *, dry_run: bool, json: bool) -> None:
    if json:
        as_json({"dry_run": dry_run, "changes": changes})
        return
    for change in changes:
        say(f"{'would be ' if dry_run else ''}{change['action']} {_named(change)}")


def _named(change: Row) -> str:
    return f"{change['kind']} {change['name']}"
