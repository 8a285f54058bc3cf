"""Records that jobs set aside: quarantine list, records, show, export, resolve, unresolve, replay."""

from __future__ import annotations

import json as encoder
import sys
from pathlib import Path  # noqa: TC003 - Typer reads the types of options at run time
from typing import Annotated, Any

import typer

from dataflowd.cli import options, quarantine_file
from dataflowd.cli.ask import ask, call, connected, explain, print_rows
from dataflowd.cli.json_keys import KEYS
from dataflowd.cli.output import JobOutput, columns, say
from dataflowd.cli.show import as_json, cell, confirm, first_line, moment, preview, table
from dataflowd.model.errors import NotAllowedError
from dataflowd.model.plural import counted

Item = Annotated[str, typer.Argument(metavar="ITEM", help="Key of the record in its chunk.")]

SHOWN = 100
NOTHING = "no such record is set aside"


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Bad records that jobs set aside.")
    options.add(group, list_, "list", prefix="quarantine")
    for command in (records, show, export, resolve, unresolve, replay):
        options.add(group, command, prefix="quarantine")
    app.add_typer(group, name="quarantine")


def list_(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: options.AnyJob = None,
    *,
    dataid: Annotated[str | None, typer.Option(metavar="PATTERN", help=options.PATTERN)] = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Also records that are resolved.")] = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """List the records that are set aside and wait for a person, by job and reason, with an example of each.

    Examples:
    dataflowctl quarantine list
    dataflowctl quarantine list clean_orders --dataid '2026-01-*'
    """
    asked = call("quarantine_list", jobid=job, pattern=dataid, resolved=resolved)
    found = ask(context, asked, explained=explained)
    if json:
        as_json(found)
        return
    headers = ["job", "code", "open", "resolved", "chunks", "since", "for example", "reason"]
    table(
        headers,
        [
            [
                row["jobid"],
                row["code"],
                row["open"],
                row["resolved"],
                row["chunks"],
                row["first"],
                f"{row['example_dataid']} {row['example_itemid']}",
                first_line(row["reason"]),
            ]
            for row in found
        ],
        nothing=NOTHING,
    )


def records(  # noqa: PLR0913
    context: typer.Context,
    job: options.AnyJob = None,
    *,
    dataid: Annotated[str | None, typer.Option(metavar="PATTERN", help=options.PATTERN)] = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Also records that are resolved.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"At most so many; default: {SHOWN}, and with --json all.")
    ] = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """List the records that are set aside, one by one."""
    most = limit or (None if json else SHOWN)
    at_most = None if most is None else most + 1
    asked = call("quarantine_records", jobid=job, pattern=dataid, resolved=resolved, at_most=at_most)
    if json:
        print_rows(context, asked, most, explained=explained)
        return
    found = ask(context, asked, explained=explained)
    table(
        ["job", "dataid", "item", "code", "since", "resolved by", "reason"],
        [
            [
                row["jobid"],
                row["dataid"],
                row["itemid"],
                row["code"],
                row["created"],
                row["resolved_by"],
                first_line(row["reason"]),
            ]
            for row in found[:most]
        ],
        nothing=NOTHING,
    )
    if len(found) == at_most:
        say("... and more; --limit shows them")


def show(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    item: Item,
    *,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Show one record, and what is wrong with it."""
    asked = call("quarantine_show", jobid=job, dataid=dataid, itemid=item)
    found = ask(context, asked, explained=explained)[0]["record"]
    if json:
        as_json(found)
        return
    for line in columns([[key, _value(key, found[key])] for key in KEYS["quarantine show"].keys]):
        say(line)


def _value(key: str, value: Any) -> str:
    if key in ("created", "resolved"):
        return moment(value)
    return cell(value)


def export(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    *,
    dataid: options.Patterns = None,
    output: Annotated[
        Path | None, typer.Option(help="The file; default: standard output.", dir_okay=False)
    ] = None,
    form: Annotated[str, typer.Option("--format", help="json or csv; default: by the file's name.")] = "",
    resolved: Annotated[bool, typer.Option("--resolved", help="Also records that are resolved.")] = False,
    explained: options.Explain = False,
) -> None:
    """Write records into a file, for a person to repair; `resolve --from-file` takes it back.

    Fill in `action` (repair or drop) and `note`, and change the columns of the record. CSV opens in a spreadsheet; JSON
    is an object a line. A line that could not be parsed stands in `text`; `reason` says which of its columns to fill in.

    Examples:
    dataflowctl quarantine export clean_orders --output bad.csv
    """
    chosen = _format(form, output)
    asked = call("quarantine_export", jobid=job, patterns=dataid or None, resolved=resolved)
    found = ask(context, asked, explained=explained)
    written = quarantine_file.text(found, chosen)
    if output is None:
        JobOutput(sys.stdout).write(written.encode(errors="backslashreplace"))
    else:
        _write(output, written)
        say(
            f"{output}: {counted(len(found), 'record')}; edit it, then `quarantine resolve {job} --from-file`"
        )


def _format(form: str, path: Path | None) -> Any:
    if form not in {"", "json", "csv"}:
        raise typer.BadParameter(f"--format is json or csv, not {form}")
    return form or ("json" if path is None or path == options.STDIN else quarantine_file.format_of(path.name))


def _write(path: Path, text: str) -> None:

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotAllowedError(
            f"{path} cannot be written: {error.strerror}", "name another --output"
        ) from None


def resolve(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    dataid: Annotated[str | None, typer.Argument(metavar="DATAID", help="Id of the slice.")] = None,
    items: Annotated[list[str] | None, typer.Argument(metavar="ITEM...", help="Keys of the records.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Every open record of the run.")] = False,
    reason: options.Reason = None,
    repaired: Annotated[
        str | None, typer.Option(metavar="JSON", help="The columns that change, with their right values.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="An edited export; - reads standard input.", allow_dash=True)
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="Format of the file: json or csv; default: by its name.")
    ] = "",
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Mark records as resolved: dropped for a reason, or repaired. All of them, or none.

    The published data changes when the chunk is made again; `quarantine replay` does that. --all shows the number of records, and asks.

    Examples:
    dataflowctl quarantine resolve clean_orders 2026-01-31 4711 --reason 'test order'
    dataflowctl quarantine resolve clean_orders 2026-01-31 4712 --repaired '{"amount": "12.50"}'
    dataflowctl quarantine resolve clean_orders --from-file bad.csv
    """
    if from_file is not None:
        if dataid or items or every or reason or repaired:
            raise typer.BadParameter(
                "the file names the records: give no DATAID, ITEM, --all, --reason or --repaired"
            )
        done = _take_back(context, job, from_file, _format(form, from_file), explained=explained)
        as_json({"resolved": done}) if json else say(f"resolved {counted(done, 'record')}")
        return
    if dataid is None or bool(items) == every:
        raise typer.BadParameter("name the chunk and its records, or give --all, or --from-file")
    resolution = options.selector(reason=reason, repaired=_decoded(repaired))
    asked = call("quarantine_resolve", jobid=job, dataid=dataid, itemids=items or None, resolution=resolution)
    if every:
        _confirm_all(context, job, dataid, "open", "mark {} of {} {} as resolved?", yes=yes)
    done = ask(context, asked, explained=explained)[0]["resolved"]
    if json:
        as_json({"resolved": done})
    elif done == 0:
        say(
            "nothing changed: these records are resolved already; `dataflowctl quarantine unresolve` opens them again"
        )
    else:
        say(f"resolved {counted(done, 'record')}")


def unresolve(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    items: Annotated[list[str] | None, typer.Argument(metavar="ITEM...", help="Keys of the records.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Every resolved record of the run.")] = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Open resolved records again: the decision about them is taken back.

    The published data changes when the chunk is made again; `quarantine replay` does that. `quarantine show` shows the earlier
    decision, under `earlier`.

    Examples:
    dataflowctl quarantine unresolve clean_orders 2026-01-31 4711
    dataflowctl quarantine unresolve clean_orders 2026-01-31 --all
    """
    if bool(items) == every:
        raise typer.BadParameter("name the records, or give --all")
    asked = call("quarantine_unresolve", jobid=job, dataid=dataid, itemids=items or None)
    if every:
        _confirm_all(context, job, dataid, "resolved", "open {} of {} {} again?", yes=yes)
    done = ask(context, asked, explained=explained)[0]["unresolved"]
    if json:
        as_json({"unresolved": done})
    elif done:
        say(
            f"opened {counted(done, 'record')} again; `dataflowctl quarantine replay {job}` makes the chunk without the earlier decisions"
        )
    else:
        say("nothing changed: none of these records is resolved")


def _confirm_all(  # noqa: PLR0913 - the parts of the question
    context: typer.Context, job: str, dataid: str, state: str, question: str, *, yes: bool
) -> None:
    """Asks before --all. Records that are named one by one need no question."""
    if yes:
        return
    with connected(context) as connection:
        groups = call("quarantine_list", jobid=job, pattern=dataid, resolved=True).send(connection)
    if number := sum(group[state] for group in groups):
        confirm(question.format(counted(number, "record"), job, dataid), yes=yes)


def _take_back(context: typer.Context, job: str, path: Path, form: Any, *, explained: bool) -> int:
    lines = list(quarantine_file.parsed(options.content(path, "give an edited export, in UTF-8"), form))
    originals = call("quarantine_export", jobid=job, patterns=None, resolved=True)
    if explained:
        explain(originals, call("quarantine_resolve_records", jobid=job, records="[]"))
    with connected(context) as connection, connection.transaction():
        decided = quarantine_file.resolutions(lines, originals.send(connection))
        taken = call("quarantine_resolve_records", jobid=job, records=encoder.dumps(decided)).send(connection)
    return int(taken[0]["resolved"])


def replay(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    *,
    dataid: options.Patterns = None,
    with_open: Annotated[
        bool, typer.Option("--open", help="Also chunks with open records, for code that now takes them.")
    ] = False,
    by_rows: Annotated[
        bool,
        typer.Option("--rows", help="Run the repaired records alone, and add their rows, where possible."),
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Make the chunks of resolved records again, with the repairs applied: a new version of each, once.

    The job runs over the whole chunk, so that sums and joins are right, too. `rowwise = true` in a job declares that each output
    row depends on one input row: with --rows the job then runs on the repaired records alone, and adds their rows to the published rows.
    Where this is impossible, the whole chunk is made again; the columns `way` and `because` say for which chunks, and why.

    Examples:
    dataflowctl quarantine replay clean_orders --dry-run
    dataflowctl quarantine replay clean_orders --rows
    """
    if by_rows and with_open:
        raise typer.BadParameter(
            "--open is for changed code, which has to see the whole chunk: leave --rows out"
        )
    wanted: dict[str, Any] = {"jobid": job, "patterns": dataid or None}
    query, wanted = (
        ("quarantine_replay_rows", wanted) if by_rows else ("quarantine_replay", wanted | {"open": with_open})
    )
    shown, deed = (call(query, **wanted, dry_run=is_dry) for is_dry in (True, False))
    if explained:
        explain(shown if dry_run else deed)
    with connected(context) as connection:
        rows = shown.send(connection)
        if rows and not json:
            headers = ["dataid", "was", "resolved", "open", "way", *(["because"] if by_rows else [])]
            preview(headers, [[row[header] for header in headers] for row in rows])
        if rows and not dry_run:
            confirm(f"make {counted(len(rows), 'chunk')} of {job} again?", yes=yes)
            rows = deed.send(connection)
        known = (
            []
            if rows or json
            else call("quarantine_list", jobid=job, pattern=None, resolved=True).send(connection)
        )
    if json:
        as_json({"dry_run": dry_run, "count": len(rows), "runs": rows})
    elif not rows:
        say(_nothing_to_replay(job, known))
    else:
        say(f"{'would replay' if dry_run else 'resubmitted'} {counted(len(rows), 'run')} of {job}")


def _nothing_to_replay(job: str, known: list[dict[str, Any]]) -> str:
    if any(group["resolved"] for group in known):
        return f"the published chunks of {job} have every resolution already: nothing to replay"
    if not known:
        return f"{job} has set aside no record: nothing to replay"
    opened = counted(sum(group["open"] for group in known), "record")
    return (
        f"none of the {opened} of {job} is resolved: nothing to replay; `dataflowctl quarantine resolve {job} DATAID ITEM`, "
        "or --open if the code takes them now"
    )


def _decoded(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return encoder.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--repaired is not JSON: {error}") from None
