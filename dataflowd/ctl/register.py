"""Chunks from outside: ready."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.ctl import options
from dataflowd.ctl.ask import call, connected, explain
from dataflowd.ctl.output import say
from dataflowd.ctl.show import Progress, as_json
from dataflowd.plural import counted

if TYPE_CHECKING:
    import psycopg

# A statement has a timeout; together they are one transaction.
SLICE = 10_000


def register(app: typer.Typer) -> None:
    options.add(app, ready)


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
            "--range", metavar="A..B", help="All from A to B: dates, hours, weeks, months or numbers."
        ),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="One dataid a line; - reads standard input.", allow_dash=True)
    ] = None,
    validated: Annotated[
        bool, typer.Option("--validated/--not-validated", help="Whether they may be used already.")
    ] = True,
    reason: options.Reason = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Register chunks that arrived from outside; jobs that wait for them can start. All of them, or none.

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
        given = call("ready", datasetid=dataset, dataids=ids, validated=validated, reason=reason)
        explain(*ranges, given)
    with connected(context) as connection, connection.transaction():
        for each in bounds or []:
            ids += [row["dataid"] for row in call("dataid_range", bounds=each).send(connection)]
        registered = _register(connection, dataset, ids, validated=validated, reason=reason)
    if json:
        as_json({"datasetid": dataset, "registered": registered})
    else:
        say(f"{dataset}: {counted(registered, 'chunk')} ready" + ("" if validated else ", not validated"))


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


def _lines(path: Path) -> list[str]:
    text = options.content(path, "name a file of dataids, one a line")
    return [line.strip() for line in text.splitlines() if line.strip()]
