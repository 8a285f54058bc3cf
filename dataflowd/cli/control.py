"""Limits and pauses, effective at once: pause, resume, concurrency."""

from __future__ import annotations

from typing import Annotated

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call, connected, explain
from dataflowd.cli.output import say
from dataflowd.cli.show import as_json, confirm, preview, table
from dataflowd.model.plural import counted

Jobs = Annotated[
    list[str] | None, typer.Argument(metavar="JOB...", help="Names or globs (load_*); without: everything.")
]
Producer = Annotated[str | None, typer.Option("--dataset", help="The job that produces this dataset.")]
Daemon = Annotated[str | None, typer.Option("--daemon", help="This daemon.")]
NO_LIMIT = "none"
LIMIT_MOST = 2**31 - 1  # the column is four bytes wide


def register(app: typer.Typer) -> None:
    for command in (pause, resume, concurrency):
        options.add(app, command)


def pause(  # noqa: PLR0913
    context: typer.Context,
    jobs: Jobs = None,
    *,
    dataset: Producer = None,
    daemon: Daemon = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Start no new attempts; what runs goes on.

    Examples:
    dataflowctl pause                 everything
    dataflowctl pause 'load_*'
    """
    _set(context, jobs, dataset, daemon, paused=True, json=json, explained=explained)


def resume(  # noqa: PLR0913
    context: typer.Context,
    jobs: Jobs = None,
    *,
    dataset: Producer = None,
    daemon: Daemon = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Go on after pause, with the same arguments. A job stays paused while everything is.

    Examples:
    dataflowctl resume
    dataflowctl resume 'load_*'
    """
    _set(context, jobs, dataset, daemon, paused=False, json=json, explained=explained)


def _set(  # noqa: PLR0913
    context: typer.Context,
    jobs: list[str] | None,
    dataset: str | None,
    daemon: str | None,
    *,
    paused: bool,
    json: bool,
    explained: bool,
) -> None:
    asked = call("pause", jobs=jobs or None, dataset=dataset, daemon=daemon, paused=paused)
    found = ask(context, asked, explained=explained)
    if json:
        as_json(found)
        return
    state = "paused" if paused else "goes on"
    for row in found:
        say(f"{row['scope']} {state}" + (" (as before)" if row["was"] == paused else ""))


def concurrency(  # noqa: PLR0913
    context: typer.Context,
    limit: Annotated[
        str | None, typer.Argument(metavar="N", help="Attempts at a time; `none`: no limit of its own.")
    ] = None,
    *,
    job: Annotated[str | None, typer.Option("--job", help="Of this job.")] = None,
    daemon: Annotated[str | None, typer.Option("--daemon", help="Of this daemon.")] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Stop what is beyond it at once; it runs again later.")
    ] = False,
    runners: Annotated[
        str | None,
        typer.Option(
            "--runners", metavar="N", help="Spark applications of each daemon; `none`: as its settings say."
        ),
    ] = None,
    slots: Annotated[
        str | None,
        typer.Option(
            "--slots",
            metavar="N",
            help="Chunks side by side in one Spark application, where a job does not say; `none`: as the settings say.",
        ),
    ] = None,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Show the limits, or set one. A lowered limit waits for what runs, unless --now.

    A daemon starts as many Spark applications as the limit needs and its host has memory for. --runners and --slots say
    another number, of all daemons or of one; applications with other slots start when these are used up.

    Examples:
    dataflowctl concurrency
    dataflowctl concurrency 20
    dataflowctl concurrency 2 --job load_orders --now
    dataflowctl concurrency --daemon alpha --runners 3 --slots 4
    """
    scope = _scope(job, daemon)
    if job and (runners or slots):
        raise typer.BadParameter(
            "--runners and --slots are of daemons; `slots` of a job is declared in its flow"
        )
    sizes = [
        *([] if runners is None else [call("set_runners", scope=scope, runners=_size(runners))]),
        *([] if slots is None else [call("set_slots", scope=scope, slots=_size(slots))]),
    ]
    shown = call("limits", scope=None if limit is None and scope == "global" else scope)
    if limit is not None:
        _limit(context, scope, _number(limit), now=now, yes=yes, json=json, explained=explained)
    if sizes:
        if explained:
            explain(*sizes)
        with connected(context) as connection, connection.transaction():
            for each in sizes:
                each.send(connection)
    found = ask(context, shown, explained=explained)
    if json:
        as_json(found)
        return
    shown_sizes = [name for name in ("runners", "slots") if any(row[name] for row in found)]
    table(
        ["scope", "running", "limit", "paused", "set in", *shown_sizes],
        [
            [row["scope"], row["running"], row["concurrency"], row["paused"], row["declared_in"]]
            + [row[name] for name in shown_sizes]
            for row in found
        ],
    )


def _limit(  # noqa: PLR0913
    context: typer.Context,
    scope: str,
    number: int | None,
    *,
    now: bool,
    yes: bool,
    json: bool,
    explained: bool,
) -> None:
    setting = call("set_concurrency", scope=scope, concurrency=number)
    deed = call("shed", scope=scope, concurrency=number, dry_run=False)
    if explained:
        explain(setting, *([deed] if now else []))
    with connected(context) as connection:
        # The preview is asked before the question, so that no lock is held while the person decides.
        surplus = call("shed", scope=scope, concurrency=number, dry_run=True).send(connection) if now else []
        if surplus:
            if not json:
                preview(
                    ["job", "dataid", "daemon", "since"],
                    [[row["jobid"], row["dataid"], row["daemon"], row["claimed"]] for row in surplus],
                )
            confirm(f"stop {counted(len(surplus), 'attempt')} now, to run again later?", yes=yes)
        with connection.transaction():
            setting.send(connection)
            if now:
                deed.send(connection)


def _scope(job: str | None, daemon: str | None) -> str:
    if job and daemon:
        raise typer.BadParameter("a limit is of a job or of a daemon, not of both")
    return f"job:{job}" if job else f"daemon:{daemon}" if daemon else "global"


def _size(text: str) -> int | None:
    number = _number(text)
    if number == 0:
        raise typer.BadParameter(f"it is 1 or more, or `{NO_LIMIT}`")
    return number


def _number(text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a whole number nor `{NO_LIMIT}`")
    if len(text) > len(str(LIMIT_MOST)) or int(text) > LIMIT_MOST:
        raise typer.BadParameter(f"{text:.20} is too many; a limit is 0 to {LIMIT_MOST}, or `{NO_LIMIT}`")
    return int(text)
