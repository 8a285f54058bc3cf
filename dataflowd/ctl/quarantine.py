"""Records that jobs set aside: quarantine list, show, resolve."""

from __future__ import annotations

import json as encoder
from typing import Annotated, Any

import typer

from dataflowd.ctl import options
from dataflowd.ctl.ask import ask, call
from dataflowd.ctl.keys import KEYS
from dataflowd.ctl.output import columns, say
from dataflowd.ctl.show import as_json, cell, counted, first_line, moment, table

Item = Annotated[str, typer.Argument(metavar="ITEM", help="Key of the record in its chunk.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Bad records that jobs set aside.")
    options.add(group, list_, "list", prefix="quarantine")
    options.add(group, show, prefix="quarantine")
    options.add(group, resolve, prefix="quarantine")
    app.add_typer(group, name="quarantine")


def list_(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: options.AnyJob = None,
    *,
    dataid: Annotated[str | None, typer.Option(metavar="PATTERN", help=options.PATTERN)] = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Also those that were dealt with.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Records that are set aside and wait for a person."""
    asked = call("quarantine_list", jobid=job, pattern=dataid, resolved=resolved, at_most=limit)
    found = ask(context, asked, explained=explained)
    if json:
        as_json(found)
        return
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
            for row in found
        ],
    )


def show(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    item: Item,
    *,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """One record, and what is wrong with it."""
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


def resolve(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    items: Annotated[list[str] | None, typer.Argument(metavar="ITEM...", help="Keys of the records.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Every open record of the run.")] = False,
    reason: options.Reason = None,
    repaired: Annotated[str | None, typer.Option(metavar="JSON", help="The record as it should be.")] = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Mark records as dealt with: dropped for a reason, or repaired.

    Examples:
    dataflowctl quarantine resolve clean_orders 2026-01-31 4711 --reason 'test order'
    dataflowctl quarantine resolve clean_orders 2026-01-31 4712 --repaired '{"amount": "12.50"}'
    """
    if bool(items) == every:
        raise typer.BadParameter("name the records, or say --all")
    resolution = options.selector(reason=reason, repaired=_decoded(repaired))
    asked = call("quarantine_resolve", jobid=job, dataid=dataid, itemids=items or None, resolution=resolution)
    done = ask(context, asked, explained=explained)[0]["resolved"]
    if json:
        as_json({"resolved": done})
    else:
        say(f"resolved {counted(done, 'record')}")


def _decoded(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return encoder.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--repaired is no JSON: {error}") from None
