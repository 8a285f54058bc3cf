"""What is seldom needed: delete, prune, rebuild, psql."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.ctl import options
from dataflowd.ctl.ask import ask, call, connected, explain
from dataflowd.ctl.embedded import PASS_THROUGH
from dataflowd.ctl.output import say
from dataflowd.ctl.show import Progress, as_json, confirm, counted, preview, sign_of_life

if TYPE_CHECKING:
    import psycopg

    from dataflowd.ctl.ask import Row

# A statement has a timeout; a million runs go in parts.
SLICE = 1000
ALL = 10_000_000


def register(app: typer.Typer) -> None:
    for command in (delete, prune, rebuild):
        options.add(app, command)
    app.command(context_settings=PASS_THROUGH)(psql)


def delete(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: options.Job,
    *,
    dataid: options.Patterns = None,
    data: Annotated[
        bool,
        typer.Option("--data", help="Remove its files and logs on this host, and its rows in tables, too."),
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Forget what a job did: status, attempts, versions, statistics, quarantine. Refused while it runs.

    Files stay until `gc` collects them, and rows in tables stay, unless --data removes both at once, with the logs; the
    history stays. A run whose inputs are ready is queued anew: pause the job first where that is not wanted.

    Examples:
    dataflowctl delete clean_orders --dataid '2025-*' --dry-run
    dataflowctl delete clean_orders --data --yes
    """
    patterns = dataid or None
    shown = call("delete", jobid=job, patterns=patterns, dry_run=True, at_most=ALL)
    part = call("delete", jobid=job, patterns=patterns, dry_run=False, at_most=SLICE)
    if explained:
        explain(shown if dry_run else part)
    removed: list[Row] = []
    tables: list[Row] = []
    with connected(context) as connection:
        rows = shown.send(connection)
        if not json:
            _preview(rows)
        if rows and not dry_run:
            confirm(f"delete {counted(len(rows), 'run')} of {job}?", yes=yes)
            dataids = [row["dataid"] for row in rows]
            # First, because only the runs say which rows there are: what is interrupted here can be repeated.
            tables = _remove_rows(context, connection, job, dataids) if data else []
            progress = Progress("deleting", len(rows))
            with connection.transaction():
                while done := part.send(connection):
                    progress.advance(len(done))
            progress.end()
            removed = _remove_files(context, connection, job, dataids) if data else []
        elif rows and data:
            removed = _written(context, connection, job, rows)
    if json:
        as_json(
            {"dry_run": dry_run, "count": len(rows), "runs": rows, "directories": removed, "tables": tables}
        )
    else:
        _tell(job, rows, removed, tables, dry_run=dry_run)


def _tell(job: str, rows: list[Row], removed: list[Row], tables: list[Row], *, dry_run: bool) -> None:
    if not rows:
        say(f"there is nothing to delete of {job}")
        return
    gone = [each for each in removed if each["kept"] is None]
    if dry_run and gone:
        preview(["bytes", "path"], [[each["bytes"], each["path"]] for each in gone])
    files = f" and {counted(len(gone), 'output')}" if gone else ""
    say(f"{'would delete' if dry_run else 'deleted'} {counted(len(rows), 'run')}{files} of {job}")
    for each in tables:
        say(f"deleted {counted(each['rows'], 'row')} of {each['dataset']}")
    for each in removed:
        if each["kept"] is not None:
            say(f"kept {each['path']}: it {each['kept']}")


def _written(context: typer.Context, connection: psycopg.Connection, job: str, rows: list[Row]) -> list[Row]:
    from dataflowd.ctl.collect import written
    from dataflowd.ctl.setup import settings_of

    return written(connection, settings_of(context), job, {row["dataid"] for row in rows})


def _remove_rows(
    context: typer.Context, connection: psycopg.Connection, job: str, dataids: list[str]
) -> list[Row]:
    """What the job wrote to tables."""
    from dataflowd import formats
    from dataflowd.ctl.setup import settings_of
    from dataflowd.errors import NotAllowedError
    from dataflowd.faults import AttemptError
    from dataflowd.keyfile import KeySource
    from dataflowd.order import Dataset
    from dataflowd.runner import secrets
    from dataflowd.tables import writing

    places = [Dataset.parse(row["dataset"]) for row in call("delete_places", jobid=job).send(connection)]
    tables = [place for place in places if place.format in formats.TABLES]
    settings = settings_of(context)
    hosts = settings.effective_allowed_hosts
    try:
        with secrets.offered(KeySource.of(settings)):
            return [
                {"dataset": place.name, "rows": writing.remove(place, dataids, hosts)} for place in tables
            ]
    except AttemptError as error:
        raise NotAllowedError(f"{error.message}; the runs of {job} stay", error.remedy) from error


def _remove_files(
    context: typer.Context, connection: psycopg.Connection, job: str, dataids: list[str]
) -> list[Row]:
    import shutil

    from dataflowd.ctl.collect import remove_deleted
    from dataflowd.ctl.setup import settings_of
    from dataflowd.names import DATAID, NAME

    settings = settings_of(context)
    # The database is not believed: no name leads out of the directory of logs.
    for dataid in filter(DATAID.fullmatch, dataids if NAME.fullmatch(job) else ()):
        shutil.rmtree(settings.effective_log_dir / job / dataid, ignore_errors=True)
    found, skipped = remove_deleted(connection, settings, job, set(dataids))
    kept = [{"path": each.location, "bytes": 0, "kept": each.why} for each in skipped]
    return [{key: each[key] for key in ("path", "bytes", "kept")} for each in found] + kept


def _preview(rows: list[Row]) -> None:
    if rows:
        headers = ["dataid", "status", "chunks", "attempts", "versions", "quarantined"]
        preview(headers, [[row[header] for header in headers] for row in rows])


def prune(  # noqa: PLR0913
    context: typer.Context,
    *,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Such as 90d or 52w; at least a day.")],
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Delete old history: events. What `history` tells begins later then; nothing else changes.

    Examples:
    dataflowctl prune --older-than 90d
    """
    age = options.age(older_than)
    shown, deed = call("prunable", older_than=age), call("prune", older_than=age)
    if explained:
        explain(shown if dry_run else deed)
    with connected(context) as connection:
        events = shown.send(connection)[0]["events"]
        if not dry_run:
            confirm(f"delete {counted(events, 'event')} older than {older_than}?", yes=yes)
            with sign_of_life("deleting"), connection.transaction():
                call("long_timeout").send(connection)
                events = deed.send(connection)[0]["events"]
    if json:
        as_json({"dry_run": dry_run, "events": events})
    else:
        say(f"{'would delete' if dry_run else 'deleted'} {counted(events, 'event')}")


def rebuild(
    context: typer.Context,
    *,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Make the derived tables anew: the queue of ready runs, and the counters. Safe at any time, seldom needed."""
    asked = call("rebuild")
    if explained:
        ask(context, asked, explained=True)
    with connected(context) as connection, connection.transaction(), sign_of_life("rebuilding"):
        call("long_timeout").send(connection)
        found = asked.send(connection)[0]
    if json:
        as_json(found)
    else:
        say(f"{counted(found['queued'], 'run')} queued")


def psql(context: typer.Context) -> None:
    """Open psql on the database in use; arguments go to psql: `dataflowctl psql -c 'SELECT 1'`."""
    import os
    import shutil

    from psycopg import conninfo

    from dataflowd import db
    from dataflowd.ctl.setup import settings_of
    from dataflowd.embedded import postgres

    settings = settings_of(context)
    parameters = {key: str(value) for key, value in conninfo.conninfo_to_dict(db.dsn(settings)).items()}
    # Everybody can read a command line; the environment is this user's own.
    password = parameters.pop("password", None)
    environment = os.environ | ({"PGPASSWORD": password} if password else {})
    program = shutil.which("psql") or str(postgres.binary("psql"))
    address = conninfo.make_conninfo(**parameters)
    os.execve(program, [program, "--dbname", address, *context.args], environment)  # noqa: S606 - psql takes our place
