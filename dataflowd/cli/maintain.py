"""Commands that are seldom needed: delete, prune, rebuild, psql."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call, connected, explain
from dataflowd.cli.embedded import PASS_THROUGH
from dataflowd.cli.output import say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import Progress, as_json, confirm, preview, sign_of_life
from dataflowd.model import formats
from dataflowd.model.errors import DataflowError, NotAllowedError
from dataflowd.model.faults import AttemptError
from dataflowd.model.identifiers import DATAID, NAME
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    from dataflowd.cli.ask import Row
    from dataflowd.model.work_order import Dataset

# A statement has a timeout, so a million runs are deleted in parts.
SLICE = 1000
# Fewer where rows of tables are deleted, too: the transaction stays open until they are gone.
ROWS_SLICE = 100
SPARE_SECONDS = 60
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
    tables: dict[str, int] = {}
    with connected(context) as connection:
        rows = shown.send(connection)
        if not json:
            _preview(rows)
        if rows and not dry_run:
            confirm(f"delete {counted(len(rows), 'run')} of {job}?", yes=yes)
            dataids = [row["dataid"] for row in rows]
            progress = Progress("deleting", len(rows))
            places = _tables(connection, job) if data else []
            if places:
                tables = _delete_with_rows(context, connection, job, dataids, places, progress)
            else:
                with connection.transaction():
                    while done := part.send(connection):
                        progress.advance(len(done))
            progress.end()
            removed = _remove_files(context, connection, job, dataids) if data else []
        elif rows and data:
            removed = _written(context, connection, job, rows)
    if json:
        as_json(
            {
                "dry_run": dry_run,
                "count": len(rows),
                "runs": rows,
                "directories": removed,
                "tables": [{"dataset": name, "rows": count} for name, count in tables.items()],
            }
        )
    else:
        _tell(job, rows, removed, tables, dry_run=dry_run)


def _tell(job: str, rows: list[Row], removed: list[Row], tables: Mapping[str, int], *, dry_run: bool) -> None:
    if not rows:
        say(f"there is nothing to delete of {job}")
        return
    gone = [each for each in removed if each["kept"] is None]
    if dry_run and gone:
        preview(["bytes", "path"], [[each["bytes"], each["path"]] for each in gone])
    files = f" and {counted(len(gone), 'output')}" if gone else ""
    say(f"{'would delete' if dry_run else 'deleted'} {counted(len(rows), 'run')}{files} of {job}")
    for name, count in tables.items():
        say(f"deleted {counted(count, 'row')} of {name}")
    for each in removed:
        if each["kept"] is not None:
            say(f"kept {each['path']}: it {each['kept']}")


def _written(context: typer.Context, connection: psycopg.Connection, job: str, rows: list[Row]) -> list[Row]:
    from dataflowd.cli.gc import written

    return written(connection, settings_of(context), job, {row["dataid"] for row in rows})


def _tables(connection: psycopg.Connection, job: str) -> list[Dataset]:
    from dataflowd.model.work_order import Dataset

    places = [Dataset.parse(row["dataset"]) for row in call("delete_places", jobid=job).send(connection)]
    return [place for place in places if place.format in formats.TABLES]


def _delete_with_rows(  # noqa: PLR0913, PLR0917 - all that is needed to reach both databases
    context: typer.Context,
    connection: psycopg.Connection,
    job: str,
    dataids: list[str],
    places: list[Dataset],
    progress: Progress,
) -> dict[str, int]:
    """Runs and what they wrote to tables, some at a time; how many rows of each dataset.

    The control database consents first, in a transaction that stays open: nobody claims or reads these chunks meanwhile.
    Then the rows go, in their own database. Then the consent is committed. Whatever fails in between, a chunk has lost
    its rows at most, and its ledger says so: who reads it is refused.
    """
    from dataflowd.host import passwords
    from dataflowd.host.keyfile import KeySource
    from dataflowd.storage.tables import writing

    settings = settings_of(context)
    hosts = settings.effective_allowed_hosts
    removed = dict.fromkeys((place.name for place in places), 0)
    with passwords.offered(KeySource.of(settings), settings.cleartext_hosts):
        for done in range(0, len(dataids), ROWS_SLICE):
            some = dataids[done : done + ROWS_SLICE]
            try:
                gone = _delete_some(connection, job, some, places, hosts)
            except DataflowError as error:
                if done:
                    error.message += f"; before that {counted(done, 'run')} of {job} were deleted"
                raise
            for name, count in gone.items():
                removed[name] += count
            progress.advance(len(some))
        for place in places:
            # Dead staging tables are collected by the next attempt, too.
            with suppress(AttemptError):
                writing.collect(place, hosts, lambda _dataid, _attempt: False)
    return removed


def _delete_some(
    connection: psycopg.Connection,
    job: str,
    dataids: list[str],
    places: list[Dataset],
    hosts: Sequence[str],
) -> dict[str, int]:
    import psycopg

    from dataflowd.database import db
    from dataflowd.storage.tables import writing

    removed: dict[str, int] = {}
    try:
        with connection.transaction():
            milliseconds = 1000 * (writing.REMOVE_SECONDS + SPARE_SECONDS) * len(places)
            call("delete_patience", milliseconds=milliseconds).send(connection)
            call("delete", jobid=job, patterns=dataids, dry_run=False, at_most=len(dataids)).send(connection)
            for place in places:
                removed[place.name] = writing.remove(place, dataids, hosts)
    except AttemptError as error:
        gone, remedy = _without_rows(job, removed)
        raise NotAllowedError(
            f"{error.message}; the runs of {job} stay{gone}", error.remedy + remedy
        ) from error
    except psycopg.Error as error:
        found = db.translate(error)
        if not removed:
            raise found from error
        gone, remedy = _without_rows(job, removed)
        raise type(found)(
            f"{found.message}; the runs of {job} stay{gone}", _both(found.remedy, remedy)
        ) from error
    return removed


def _without_rows(job: str, removed: Mapping[str, int]) -> tuple[str, str]:
    """The error for rows that are gone while the runs that wrote them are still there, with the remedy."""
    if not removed:
        return "", ""
    return (
        f", but their rows in {', '.join(removed)} are gone: whoever reads these chunks is refused (WRONG_DATA)",
        f"repeat the command, or make them again: `dataflowctl resubmit {job} --status READY`",
    )


def _both(*remedies: str) -> str:
    return "; then ".join(filter(None, remedies))


def _remove_files(
    context: typer.Context, connection: psycopg.Connection, job: str, dataids: list[str]
) -> list[Row]:

    from dataflowd.cli.gc import remove_deleted

    settings = settings_of(context)
    # The database is not trusted: a name must not lead out of the directory of logs.
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
    from dataflowd.database import db
    from dataflowd.host import withheld
    from dataflowd.host.embedded import programs

    settings = settings_of(context)
    inherited = {} if settings.dsn is None else withheld.variables()
    open_psql(shutil.which("psql") or str(programs.binary("psql")), db.dsn(settings), context.args, inherited)


def open_psql(program: str, address: str, arguments: Sequence[str], inherited: Mapping[str, str]) -> None:
    """Replaces this process by psql. The address goes into the environment: everybody can read a command line, and `-d NAME`
    then opens another database of the same server instead of replacing the whole address.
    """
    from psycopg import conninfo, pq

    variables = {
        option.keyword.decode(): option.envvar.decode()
        for option in pq.Conninfo.get_defaults()
        if option.envvar is not None
    }
    parameters = {key: str(value) for key, value in conninfo.conninfo_to_dict(address).items()}
    told = {variables[key]: value for key, value in parameters.items() if key in variables}
    rest = {key: value for key, value in parameters.items() if key not in variables}
    words = ["--dbname", conninfo.make_conninfo(**rest)] if rest else []
    password = {key: value for key, value in inherited.items() if key == "PGPASSWORD"}
    os.execve(program, [program, *words, *arguments], os.environ | password | told)  # noqa: S606 - psql takes our place
