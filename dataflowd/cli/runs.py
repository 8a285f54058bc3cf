"""Lists what exists and what happened: chunks, runs, attempts, history."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call, print_rows
from dataflowd.cli.output import say
from dataflowd.cli.show import as_json, duration, first_line, marked, size, table, with_params

if TYPE_CHECKING:
    from dataflowd.cli.ask import Row

HASH_SHOWN = 8
CHANGES_SHOWN = 3
SHOWN_CHUNKS = 100
SHOWN_RUNS = 50
LIMIT = "At most so many; default: {}, and with --json all."
MAP_LEGEND = ". ready  ~ stale  ? not validated  R running  F failed  s to be resubmitted  H held  _ missing"
NARROWEST_MAP = 10
# Of each kind of map: what a line is, the number of its first place, and which places the axis names.
AXES = {
    "day": ("month", 1, (1, 5, 10, 15, 20, 25, 30)),
    "hour": ("day", 0, (0, 6, 12, 18, 23)),
    "week": ("year", 1, (1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50)),
    "month": ("year", 1, (1, 4, 7, 10)),
}


def register(app: typer.Typer) -> None:
    for command in (chunks, runs, attempts, history):
        options.add(app, command)


def chunks(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    dataset: options.Dataset,
    *,
    status: options.Statuses = None,
    first: Annotated[
        str | None, typer.Option("--from", metavar="DATAID", help="From this dataid on.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATAID", help="Up to this dataid.")] = None,
    dataid: Annotated[str | None, typer.Option(metavar="PATTERN", help=options.PATTERN)] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only chunks made by other code, configuration or older inputs.")
    ] = False,
    sort: Annotated[
        str, typer.Option(help="dataid, modified, rows, bytes or status; -modified: the latest first.")
    ] = "dataid",
    limit: Annotated[int | None, typer.Option(min=1, help=LIMIT.format(SHOWN_CHUNKS))] = None,
    as_map: Annotated[
        bool,
        typer.Option(
            "--map", help="A heat map: one character a chunk; a line is a month, a day or a year; gaps show."
        ),
    ] = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """List chunks of a dataset: status and why, version, size, producer and its code; for stale chunks, what changed since.

    Examples:
    dataflowctl chunks orders --status FAILED
    dataflowctl chunks orders --stale
    dataflowctl chunks orders --from 2026-01-01 --to 2026-01-31 --sort -bytes
    dataflowctl chunks orders --map
    """
    if as_map:
        _map(context, dataset, first, last, json=json, explained=explained)
        return
    most = limit or (None if json else SHOWN_CHUNKS)
    asked = call(
        "chunks",
        datasetid=dataset,
        statuses=status or None,
        first=first,
        last=last,
        pattern=dataid,
        stale=stale,
        sort=sort.removeprefix("-"),
        descending=sort.startswith("-"),
        # One row more than is shown, to know whether there are more.
        at_most=None if most is None else most + 1,
    )
    if json:
        print_rows(context, asked, most, explained=explained)
        return
    found = ask(context, asked, explained=explained)
    page, chosen = found[:most], bool(status or first or last or dataid or stale)
    table(
        [
            "dataid",
            "status",
            "code",
            "version",
            "rows",
            "size",
            "modified",
            "stale",
            "job",
            "made with",
            "reason",
        ],
        [
            [
                row["dataid"],
                marked(row["status"], row, "" if row["validated"] else "not validated") + with_params(row),
                row["code"],
                row["version"],
                row["rows"],
                size(row["bytes"]),
                row["modified"],
                _stale(row),
                row["jobid"],
                (row["code_hash"] or "")[:HASH_SHOWN] or None,
                first_line(row["reason"]),
            ]
            for row in page
        ],
        nothing=f"no such chunk of {dataset}" if chosen else f"{dataset} has no chunks",
    )
    if len(found) > len(page):
        say(
            f"... and more; go on with --from {found[len(page)]['dataid']}"
            if sort == "dataid"
            else "... and more; --limit shows them"
        )


def _stale(row: Row) -> str | None:
    """Returns the reasons, as `CODE (jobs.py:clean), INPUT`; names only the first changed parts of the code."""
    if not row["stale"]:
        return None
    changed = row["changed"] or []
    more = f" and {len(changed) - CHANGES_SHOWN} more" if len(changed) > CHANGES_SHOWN else ""
    named = f"CODE ({', '.join(changed[:CHANGES_SHOWN])}{more})" if changed else "CODE"
    return ", ".join(named if reason == "CODE" else reason for reason in row["stale"])


def _map(  # noqa: PLR0913
    context: typer.Context, dataset: str, first: str | None, last: str | None, *, json: bool, explained: bool
) -> None:
    label = 25
    width = max(NARROWEST_MAP, (shutil.get_terminal_size().columns - label) // 10 * 10)
    asked = call("chunk_grid", datasetid=dataset, width=width, first=first, last=last)
    lines = ask(context, asked, explained=explained)
    if json:
        as_json(lines)
        return
    if not lines:
        say("no chunks")
        return
    table(_heads(lines[0]["kind"], width), [[line["label"], line["map"]] for line in lines])
    say(MAP_LEGEND)


def _heads(kind: str, width: int) -> list[str]:
    """Returns the headers: what a line stands for, and the axis above the chunks."""
    if kind in AXES:
        line, origin, named = AXES[kind]
        return [line, _axis({number - origin: str(number) for number in named})]
    if kind == "number":
        return ["from", _axis({place: f"+{place}" for place in range(0, width, 10)})]
    return ["from", "chunks"]


def _axis(names: dict[int, str]) -> str:
    """Returns a line in which each name begins at its place."""
    axis = ""
    for place, name in names.items():
        axis = axis.ljust(place) + name
    return axis


def runs(  # noqa: PLR0913
    context: typer.Context,
    job: options.AnyJob = None,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Only runs that did not end well.")] = False,
    since: options.Since = None,
    limit: Annotated[int | None, typer.Option(min=1, help=LIMIT.format(SHOWN_RUNS))] = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """List recent runs, newest first, each with its last attempt.

    Examples:
    dataflowctl runs clean_orders --failed --since 12h
    """
    most = limit or (None if json else SHOWN_RUNS)
    at_most = None if most is None else most + 1
    asked = call("runs", jobid=job, failed=failed, since=options.moment(since), at_most=at_most)
    if json:
        print_rows(context, asked, most, explained=explained)
        return
    found = ask(context, asked, explained=explained)
    table(
        ["job", "dataid", "status", "code", "attempt", "claimed", "took", "daemon", "error"],
        [
            [
                row["jobid"],
                row["dataid"],
                row["status"] + with_params(row),
                row["code"],
                row["number"],
                row["claimed"],
                duration(row["seconds"]),
                row["daemon"],
                first_line(row["error"]),
            ]
            for row in found[:most]
        ],
        nothing="no run has failed"
        if failed and not (job or since)
        else "no such run"
        if job or failed or since
        else "no runs yet",
    )
    if len(found) == at_most:
        say("... and more; --limit shows them")


def attempts(
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    *,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """List all attempts of one run: where, how long, how they ended, and what their checks found."""
    found = ask(context, call("attempts", jobid=job, dataid=dataid), explained=explained)
    if json:
        as_json(found)
        return
    if not found:
        say(f"{job} was never tried on {dataid}; `dataflowctl why {job} {dataid}` says why")
        return
    table(
        ["attempt", "status", "code", "claimed", "took", "checks", "daemon", "host", "error"],
        [
            [
                row["number"],
                marked(row["status"], row) + with_params(row) + _with_words(row),
                row["code"],
                row["claimed"],
                duration(row["seconds"]),
                _checks(row["checks"]),
                row["daemon"],
                row["hostname"],
                first_line(row["error"]),
            ]
            for row in found
        ],
    )


def _with_words(row: Row) -> str:
    """Returns the words that a person has added to the command, quoted for a shell."""
    return f" -- {shlex.join(row['words'])}" if row["words"] else ""


def _checks(checks: list[dict[str, Any]]) -> str | None:
    failed = [check["name"] for check in checks if not check["passed"]]
    return f"failed: {', '.join(failed)}" if failed else f"{len(checks)} passed" if checks else None


def _change(row: Row) -> str:
    return f"{row['from_status'] or 'nothing'} -> {row['to_status'] or 'nothing'}"


def _what(row: Row) -> str:
    """Returns `READY -> RUNNING` or `limit 3 -> 5`; for an event without a change of status, its code or kind."""
    has_changed = row["from_status"] is not None or row["to_status"] is not None
    match row["kind"]:
        case "status":
            return _change(row) if has_changed else str(row["code"] or "status")
        case "daemon" | "credential":
            return f"{row['kind']} {row['to_status']}"
        case "control":
            return f"limit {_change(row)}" if row["from_status"] != row["to_status"] else "control"
        case "dataset" | "job":
            return f"{row['kind']} {row['code']}"
        case kind:
            return str(kind)


def _reason(row: Row) -> str:
    """Returns code and reason. Leaves out a code that _what returns; adds the declared values, which are too long for _what."""
    reason = first_line(row["reason"])
    if row["kind"] in {"dataset", "job"}:
        return ", ".join(filter(None, (_change(row), reason)))
    code = None if _what(row) == row["code"] else row["code"]
    return ": ".join(filter(None, (code, reason)))


def history(
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    *,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Show the history of a run: every transition, what it waited for, and what else happened meanwhile.

    That is: changes of limits and pauses, daemons that started, stopped or were lost, and changes in the declarations of its job and
    datasets. JOB may also be a dataset that no job makes: its history says who registered, held or withdrew the chunk.
    """
    found = ask(context, call("history", jobid=job, dataid=dataid), explained=explained)
    if json:
        as_json(found)
        return
    if not found:
        say(f"there is no event about {job} on {dataid}")
        return
    table(
        ["at", "what", "chunk of", "who", "with", "why"],
        [
            [
                row["at"],
                _what(row),
                row["datasetid"],
                row["actor"] or None,
                row["application"] or None,
                _reason(row),
            ]
            for row in found
        ],
    )
