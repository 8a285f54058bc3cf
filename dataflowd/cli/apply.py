"""Flow files: apply."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - Typer reads the types of options at run time
from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli.output import say, say_json
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import confirm
from dataflowd.model.errors import DataflowError, NotAllowedError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    import psycopg

    from dataflowd.flow import Change, Flow
    from dataflowd.host.settings import Settings

MARKS = {"created": "+", "changed": "~", "retired": "-", "unchanged": "="}


def register(app: typer.Typer) -> None:
    app.command()(apply)


def apply(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    flow: Annotated[Path, typer.Argument(metavar="FLOW", help="The flow file.")],
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only check; against the database too if one is configured.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Retire what the flow no longer declares; history stays.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Retire without asking.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a flow file completely, show what will change, and store it in one transaction.

    Of the code only its hash is stored: what a job made with other code is stale, see `chunks --stale`. `accept` takes
    such chunks as they are, `resubmit --stale` makes them again.
    """
    from dataflowd.flow import FlowMistakesError, load
    from dataflowd.flow.unasked import unasked

    settings = settings_of(context)
    try:
        # The file is checked before the database is asked: a file with mistakes must not start an embedded Postgres.
        loaded = load(flow, settings)
        changes, kept, stale = (
            (_check(loaded, settings), [], [])
            if check
            else _store(loaded, settings, prune=prune, dry_run=dry_run, yes=yes)
        )
    except FlowMistakesError as error:
        if json:
            say_json({"file": str(error.path), "mistakes": [vars(mistake) for mistake in error.mistakes]})
        raise
    applied = not (check or dry_run)
    warnings = unasked(loaded)
    if json:
        say_json(
            {
                "flow": loaded.name,
                "applied": applied,
                "changes": [vars(change) for change in changes],
                "warnings": warnings,
            }
        )
    elif check:
        declared = f"{counted(len(loaded.datasets), 'dataset')}, {counted(len(loaded.jobs), 'job')}"
        say(f"{flow}: flow {loaded.name} is right: {declared}")
    else:
        _show(changes)
        say(f"{'applied' if applied else 'would apply'} flow {loaded.name}: {_summary(changes)}")
        if kept:
            say(f"no longer declared, and kept as it was: {', '.join(kept)}; --prune retires it")
        for job in stale:
            say(
                f"what {job} made with its code of before is stale: `dataflowctl resubmit {job} --stale` makes it again,"
                f" `dataflowctl accept {job}` takes it as it is"
            )
    if not json:
        sys.stdout.flush()
        for warning in warnings:
            sys.stderr.write(f"warning: {warning}\n")


def _check(flow: Flow, settings: Settings) -> list[Change]:
    from dataflowd.database import db, migrate
    from dataflowd.flow import conflicts

    if settings.dsn is not None:
        with db.connect(settings) as connection:
            migrate.require_release(connection)
            conflicts(connection, flow)
    return []


def _store(
    flow: Flow, settings: Settings, *, prune: bool, dry_run: bool, yes: bool
) -> tuple[list[Change], list[str], list[str]]:
    """Returns the changes, the names that the flow no longer declares but that stay because --prune was not given, and the
    jobs whose chunks were made by other code.
    """
    from dataflowd.database import db, migrate
    from dataflowd.flow import apply as apply_flow
    from dataflowd.flow import conflicts, plan
    from dataflowd.flow.compose import as_parameters, versions

    told = as_parameters(versions(flow))
    with db.connect(settings) as connection:
        migrate.require_release(connection)
        conflicts(connection, flow, prune)
        found = connection.execute(db.query("other_code"), told).fetchall()
        other_code, stale = {job for job, _ in found}, sorted(job for job, has_made in found if has_made)
        changes = _with_code(plan(connection, flow, prune), other_code)
        kept = [] if prune else _undeclared(connection, flow)
        if dry_run:
            return changes, kept, stale
        retiring = [change for change in changes if change.action == "retired"]
        if retiring and not yes:
            _confirm(retiring)
        with connection.transaction():
            applied = apply_flow(connection, flow, prune)
            connection.execute(db.query("code_versions"), told)
        return _with_code(applied, other_code), kept, stale


def _undeclared(connection: psycopg.Connection, flow: Flow) -> list[str]:
    from dataflowd.flow import plan

    try:
        found = plan(connection, flow, prune=True)
    except DataflowError:  # it could not be retired now, and nobody wants to
        return []
    return [f"{change.kind} {change.name}" for change in found if change.action == "retired"]


def _with_code(changes: list[Change], other_code: set[str]) -> list[Change]:
    """Adds the jobs whose code differs: what their earlier code made is stale from now on."""
    return [
        replace(change, action="changed", columns=(*change.columns, "code_hash"))
        if change.kind == "job" and change.action in {"unchanged", "changed"} and change.name in other_code
        else change
        for change in changes
    ]


def _confirm(retiring: list[Change]) -> None:

    if not sys.stdin.isatty():
        names = ", ".join(f"{change.kind} {change.name}" for change in retiring)
        raise NotAllowedError(f"this would retire {names}", "look at it with --dry-run, then give --yes")
    _show(retiring)
    confirm(f"retire these {len(retiring)}?", yes=False)


def _show(changes: list[Change]) -> None:

    for change in changes:
        if change.action != "unchanged":
            columns = f" ({', '.join(change.columns)})" if change.action == "changed" else ""
            say(f"{MARKS[change.action]} {change.kind} {change.name}: {change.action}{columns}")


def _summary(changes: list[Change]) -> str:
    counted = {action: sum(change.action == action for change in changes) for action in MARKS}
    return (
        ", ".join(f"{count} {action}" for action, count in counted.items() if count) or "nothing is declared"
    )
