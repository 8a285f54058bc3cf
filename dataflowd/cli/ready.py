"""Chunks from outside: ready registers them, unregister withdraws a wrong registration."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path  # noqa: TC003 - Typer reads the types of options at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import Row, call, connected, explain
from dataflowd.cli.output import say
from dataflowd.cli.show import Progress, as_json, cell, confirm, preview
from dataflowd.model.errors import NotAllowedError
from dataflowd.model.faults import AttemptError
from dataflowd.model.formats import TABLES
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    import psycopg

# Chunks are registered in slices, because a statement has a timeout. All slices are one transaction.
SLICE = 10_000
KEEP, DELETE = "keep", "delete"


def register(app: typer.Typer) -> None:
    for command in (ready, unregister):
        options.add(app, command)


def ready(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    dataset: options.Dataset,
    dataids: Annotated[
        list[str] | None, typer.Argument(metavar="DATAID...", help="Ids of the slices.")
    ] = None,
    *,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="A..B", help="All dataids from A to B: dates, hours, weeks, months or numbers."
        ),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="One dataid a line; - reads standard input.", allow_dash=True)
    ] = None,
    validated: Annotated[
        bool, typer.Option("--validated/--not-validated", help="Whether jobs may use the chunks already.")
    ] = True,
    reason: options.Reason = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Register chunks that arrived from outside; jobs that wait for them can start. All of them, or none.

    A dataid that does not fit the dataset's ordering is refused, as 2026-02-30 for the ordering `date`. These are registered
    with a warning: a dataid that looks like a date and is none (NO_DATE), one that is far from all others (FAR_AWAY), and one
    whose location is empty on this host (NOTHING_THERE). `unregister` withdraws a wrong registration.

    The command measures the files of up to 1,000 chunks. If a run later finds other files, it is refused (WRONG_DATA). Chunks that
    this host cannot see, and those of a longer list, are measured by the first run that succeeds.

    Examples:
    dataflowctl ready raw_orders 2026-01-31
    dataflowctl ready raw_orders --range 2026-01-01..2026-01-31
    ls /in | cut -d. -f1 | dataflowctl ready raw_orders --from-file -
    """
    ids = [*(dataids or []), *(_lines(from_file) if from_file else [])]
    if not ids and not bounds:
        raise typer.BadParameter("name at least one dataid, a --range or a --from-file")
    if explained:
        ranges = [call("dataid_range", bounds=each) for each in bounds or []]
        odd = call("preview_ready", datasetid=dataset, dataids=ids)
        given = call("ready", datasetid=dataset, dataids=ids, validated=validated, reason=reason)
        explain(*ranges, odd, given)
    with connected(context) as connection, connection.transaction():
        for each in bounds or []:
            ids += [row["dataid"] for row in call("dataid_range", bounds=each).send(connection)]
        # Asked before the registration, because afterwards no dataid would be far from all others: it would be its own neighbour.
        odd_ones = call("preview_ready", datasetid=dataset, dataids=_ends(ids)).send(connection)
        registered = _register(connection, dataset, ids, validated=validated, reason=reason)
        _note_found(connection, dataset, odd_ones, len(set(ids)))
    warnings = _warnings(odd_ones)
    if json:
        as_json({"datasetid": dataset, "registered": registered, "warnings": warnings})
        return
    say(f"{dataset}: {counted(registered, 'chunk')} ready" + ("" if validated else ", not validated"))
    sys.stdout.flush()
    for warning in warnings:
        others = f" (and {counted(warning['count'] - 1, 'other')})" if warning["count"] > 1 else ""
        line = f"warning [{warning['code']}]: {dataset} {warning['dataid']}{others}: {warning['detail']}"
        sys.stderr.write(cell(line) + "\n")
    if warnings:
        sys.stderr.write(f"  if it is wrong: dataflowctl unregister {dataset} {warnings[0]['dataid']}\n")


def unregister(  # noqa: PLR0913
    context: typer.Context,
    dataset: options.Dataset,
    dataids: Annotated[
        list[str], typer.Argument(metavar="DATAID...", help=options.PATTERN, callback=options.patterns)
    ],
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the chunks that were made of them.")] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Also forget the chunks that were made of them.")
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Withdraw a wrong registration; shows the chunks that were made of it, and asks whether to delete or to keep them.

    Only a chunk that `ready` has registered can be withdrawn; `delete` forgets the chunks that a job makes. The command is refused while a
    run reads one of the chunks. --delete forgets the runs that have read them, and everything that was made of these, as `delete`
    does: their files stay until `gc` collects them, rows in tables stay. With --keep they stay READY as they are; when the chunk
    is registered again, they are stale. The data from outside is not touched.

    Examples:
    dataflowctl unregister raw_orders 2026-02-30 --dry-run
    dataflowctl unregister raw_orders 2062-01-31 --delete
    dataflowctl unregister raw_orders '2025-*' --keep --yes
    """
    if keep and delete:
        raise typer.BadParameter("--keep and --delete exclude each other")
    made = KEEP if keep else DELETE if delete else None
    shown = call("unregister", datasetid=dataset, patterns=dataids, made=made, dry_run=True)
    if explained:
        explain(
            shown
            if dry_run
            else call("unregister", datasetid=dataset, patterns=dataids, made=made, dry_run=False)
        )
    with connected(context) as connection:
        rows = shown.send(connection)
        withdrawn, made_of = _parted(rows)
        if not json:
            _preview(withdrawn, made_of)
        if not dry_run:
            if made_of and made is None:
                made = _ask_delete_or_keep(len(made_of), yes=yes)
            what = f" and {made} {counted(len(made_of), 'chunk')} made of that" if made_of else ""
            if made == DELETE and not json:
                _tell_of_tables(connection, made_of)
            confirm(f"withdraw {counted(len(withdrawn), 'chunk')} of {dataset}{what}?", yes=yes)
            deed = call("unregister", datasetid=dataset, patterns=dataids, made=made, dry_run=False)
            with connection.transaction():
                call("long_timeout").send(connection)
                withdrawn, made_of = _parted(deed.send(connection))
    if json:
        as_json({"dry_run": dry_run, "count": len(withdrawn), "chunks": withdrawn, "made": made_of})
        return
    kept = (
        f", {'kept' if made == KEEP else 'deleted'} {counted(len(made_of), 'chunk')} made of that"
        if made_of and made
        else ""
    )
    say(
        f"{'would withdraw' if dry_run else 'withdrew'} {counted(len(withdrawn), 'chunk')} of {dataset}{kept if not dry_run else ''}"
    )


def _tell_of_tables(connection: psycopg.Connection, made_of: list[Row]) -> None:
    """Tells which rows stay in tables: unregister forgets runs, and removes no rows."""
    found = call("datasets", retired=True).send(connection)
    tables = {row["datasetid"] for row in found if row["format"] in TABLES}
    for row in made_of:
        if row["dataset"] in tables:
            say(
                f"the rows of {row['dataid']} stay in the table of {row['dataset']}; to remove them, first run"
                f" `dataflowctl delete {row['jobid']} --dataid {row['dataid']} --data`"
            )


def _parted(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Splits the rows into the withdrawn chunks and the chunks that were made of them."""
    withdrawn = [row for row in rows if row["deed"] == "withdraw"]
    return withdrawn, [row for row in rows if row["deed"] != "withdraw"]


def _preview(withdrawn: list[Row], made_of: list[Row]) -> None:
    headers = ["dataset", "dataid", "status", "version"]
    preview(headers, [[row[header] for header in headers] for row in withdrawn])
    if made_of:
        say("what was made of that:")
        preview(["job", *headers], [[row["jobid"], *(row[header] for header in headers)] for row in made_of])
    else:
        say("nothing was made of that")


def _ask_delete_or_keep(number: int, *, yes: bool) -> str:
    """Asks a person whether to delete or to keep the chunks. A script has to give --delete or --keep."""
    sys.stdout.flush()
    if yes or not sys.stdin.isatty():
        raise NotAllowedError(
            f"{counted(number, 'chunk')} made of that: it is not said whether to delete or to keep them",
            "give --delete to forget them, or --keep to leave them as they are",
        )
    answer = ""
    while answer not in {KEEP, DELETE}:
        answer = str(typer.prompt("delete or keep what was made of that? [delete/keep]")).strip().lower()
    return answer


def _ends(dataids: list[str]) -> list[str]:
    """Returns all dataids, or of very many those at both ends, where mistakes are. Checking each would take longer than to register it."""
    half = SLICE // 2
    return dataids if len(dataids) <= SLICE else dataids[:half] + dataids[-half:]


def _warnings(rows: list[Row]) -> list[dict[str, Any]]:
    """Returns one warning for each code, with the first dataid and the number of dataids."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for code, detail in _oddities(row):
            warning = found.setdefault(
                code, {"code": code, "dataid": row["dataid"], "count": 0, "detail": detail}
            )
            warning["count"] += 1
    return list(found.values())


def _oddities(row: Row) -> list[tuple[str, str]]:
    odd = [(row["code"], row["detail"])] if row["code"] else []
    if row["location"] is not None and not _lies_there(row["location"]):
        odd.append(("NOTHING_THERE", f"this host sees nothing at {row['location']}"))
    return odd


def _lies_there(location: str) -> bool:
    """Whether files are at a location. Also true for locations that this host cannot see: the runner checks them before any job code."""
    from dataflowd.host import allowed_roots  # noqa: PLC0415 - only for files

    try:
        path = allowed_roots.local_path(location)
        if path is None or not path.is_dir():
            return path is None or path.exists()
        with os.scandir(path) as entries:
            return any(not entry.name.startswith((".", "_")) for entry in entries)
    except (AttemptError, OSError, ValueError):
        return True


def _register(
    connection: psycopg.Connection, dataset: str, dataids: list[str], *, validated: bool, reason: str | None
) -> int:
    distinct = list(dict.fromkeys(dataids))
    progress, registered = Progress("registering", len(distinct)), 0
    for start in range(0, len(distinct), SLICE):
        part = distinct[start : start + SLICE]
        asked = call("ready", datasetid=dataset, dataids=part, validated=validated, reason=reason)
        registered += asked.send(connection)[0]["registered"]
        progress.advance(len(part))
    progress.end()
    return registered


def _note_found(connection: psycopg.Connection, dataset: str, rows: list[Row], given: int) -> None:
    """Stores the measurements of the chunks, unless `rows` has only the ends of a long list: then the first run measures each chunk."""
    [how] = call("measures", datasetid=dataset).send(connection)
    if not how["is_measured"] or len(rows) < given:
        return
    found = {row["dataid"]: _measured(row["location"], digest=how["digest"]) for row in rows}
    known = {dataid: one for dataid, one in found.items() if one is not None}
    if known:
        call("note_found", datasetid=dataset, found=json.dumps(known)).send(connection)


def _measured(location: str | None, *, digest: bool) -> dict[str, Any] | None:
    """Measures the files at a location; None: this host cannot see them."""
    from dataflowd.storage import found  # noqa: PLC0415 - slow, and only for files

    if location is None:
        return None
    try:
        seen = found.here(location, digest=digest)
    except (AttemptError, OSError, ValueError):
        return None
    return seen.document() if seen is not None and seen.files else None


def _lines(path: Path) -> list[str]:
    text = options.content(path, "name a file of dataids, one a line")
    return [line.strip() for line in text.splitlines() if line.strip()]
