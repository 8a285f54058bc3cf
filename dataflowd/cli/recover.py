"""Recovers and intervenes: resubmit, accept, hold, release, cancel. Each command shows what it would do, asks, and then does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import call, connected, explain
from dataflowd.cli.output import say
from dataflowd.cli.show import as_json, confirm, preview, sign_of_life
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psycopg

    from dataflowd.cli.ask import Call, Row

ANY = "ANY"


def register(app: typer.Typer) -> None:
    for command in (resubmit, accept, hold, release, cancel):
        options.add(app, command)


def resubmit(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: options.AnyJob = None,
    *,
    dataid: options.Patterns = None,
    dataset: options.OfDataset = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", help="READY, RUNNING, ... or any; default FAILED. May be repeated."),
    ] = None,
    error: options.Error = None,
    since: options.Since = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="READY chunks made by other code, configuration or older inputs.")
    ] = False,
    downstream: Annotated[
        bool, typer.Option("--downstream", help="Also everything that was made of them.")
    ] = False,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="In the place of the job's own parameter, this time. May be repeated.",
        ),
    ] = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Run again what failed, in the order of its dependencies; shows what it is, and asks.

    --param goes with the attempts of this resubmission, retries included, and is kept with them. The next resubmit without it goes back
    to the parameters of the flow. Names and types are those of the flow; lists and tables are written as JSON.

    Examples:
    dataflowctl resubmit --error NETWORK --since 12h --dry-run
    dataflowctl resubmit clean_orders --dataid '2026-01-*' --yes
    dataflowctl resubmit --stale --downstream
    dataflowctl resubmit clean_orders --dataid 2026-01-31 --status READY --param least=0
    """
    params = options.pairs(param or (), "--param") or None
    statuses = [one.upper() for one in status or (["READY"] if stale else ["FAILED"])]
    chosen = options.selector(
        job=job,
        dataset=dataset,
        dataid=dataid,
        error=error,
        since=_iso(since),
        stale=stale,
        status=None if ANY in statuses else statuses,
    )

    deed = Deed(
        call("resubmit", selector=chosen, downstream=downstream, params=params),
        "run",
        {
            "step": lambda row: row["depth"] + 1,
            "job": "jobid",
            "dataid": "dataid",
            "status": "was",
            "code": "code",
        },
        nothing=lambda connection: _nothing_to_resubmit(connection, chosen, statuses),
    )
    _do(context, deed, Flags(dry_run=dry_run, yes=yes, json=json, explained=explained))


def _nothing_to_resubmit(
    connection: psycopg.Connection, chosen: dict[str, Any], statuses: Sequence[str]
) -> str:
    """Returns why nothing is selected. The runs may exist in another status."""
    wider = {key: value for key, value in chosen.items() if key != "status"}
    rows = call("resubmit", selector=wider, downstream=False, dry_run=True, params=None).send(connection)
    found = sorted({row["was"] for row in rows} - set(statuses))
    if found and "dataid" in chosen and ANY not in statuses:
        what = _are(f"{rows[0]['jobid']} {rows[0]['dataid']}", len(rows), "run")
        return f"{what} {' or '.join(found)}; add --status {found[0]}"
    held = call("release", selector=wider, dry_run=True).send(connection) if wider else []
    if held and "dataid" in chosen:
        what = _are(f"{held[0]['datasetid']}/{held[0]['dataid']}", len(held), "chunk")
        return f"{what} held, and held chunks are not resubmitted: `dataflowctl release` first"
    if "error" in chosen and not rows:
        codes = " or ".join(code.upper() for code in chosen["error"])
        return f"nothing has the error code {codes}; `dataflowctl status` lists those that there are"
    if "stale" in chosen and not rows:
        return f"nothing{_narrowed(chosen)} is stale: `dataflowctl chunks DATASET` shows what there is"
    if not rows:
        return "there is no such run: `dataflowctl runs` lists those that there are"
    return f"nothing to resubmit is {' or '.join(statuses).lower()}; --status chooses others"


def _narrowed(chosen: dict[str, Any]) -> str:
    """Returns the selection in words: ` of clean_orders`."""
    named = [chosen[key] for key in ("job", "dataset") if key in chosen]
    return (f" of {' and '.join(named)}" if named else "") + (
        " with this dataid" if "dataid" in chosen else ""
    )


def _are(only: str, count: int, thing: str) -> str:
    return f"{only} is" if count == 1 else f"{counted(count, thing)} are"


def accept(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    *,
    dataid: options.Patterns = None,
    reason: options.Reason = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Take chunks that other code or configuration made as good with those of now: they are no longer stale for that.

    What was made of older inputs stays stale. A later change of the code makes them stale again.

    Examples:
    dataflowctl accept clean_orders --reason 'only a log line changed'
    dataflowctl accept clean_orders --dataid '2026-01-*' --dry-run
    """
    known = {"jobid": job, "patterns": dataid or None, "reason": reason}
    deed = Deed(
        call("accept", **known, with_code=None, with_config=None),
        "chunk",
        {
            "dataset": "datasetid",
            "dataid": "dataid",
            "version": "version",
            "stale": "because",
            "changed": "changed",
        },
        nothing=lambda _: f"no such chunk of {job} was made by other code or configuration than it has now",
        # Accept the code that was shown: a daemon may have told the database another version meanwhile.
        shown_as=lambda row: {"with_code": row["code_hash"], "with_config": row["config_hash"]},
    )
    _do(context, deed, Flags(dry_run=dry_run, yes=yes, json=json, explained=explained))


def hold(  # noqa: PLR0913
    context: typer.Context,
    job: options.AnyJob = None,
    *,
    dataset: options.OfDataset = None,
    dataid: options.Patterns = None,
    status: options.Statuses = None,
    reason: options.Reason = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Put a hand on chunks: nobody reads or writes them until release.

    An attempt that writes or reads one of them is cancelled. Its run waits for the release, and has not spent a try.

    Examples:
    dataflowctl hold --dataset raw_orders --dataid 2026-01-31 --reason 'wrong file'
    dataflowctl hold clean_orders --dataid '2026-02-*'
    """
    chosen = options.selector(job=job, dataset=dataset, dataid=dataid, status=status)
    deed = Deed(
        call("hold", selector=chosen, reason=reason),
        "chunk",
        {"dataset": "datasetid", "dataid": "dataid", "status": "was", "stops": "stops"},
        nothing=lambda _: "no such chunk, or held already",
    )
    _do(context, deed, Flags(dry_run=dry_run, yes=yes, json=json, explained=explained))


def release(  # noqa: PLR0913
    context: typer.Context,
    job: options.AnyJob = None,
    *,
    dataset: options.OfDataset = None,
    dataid: options.Patterns = None,
    status: options.Statuses = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Take the hand off chunks; each gets back the status it had, and runs that waited for it go on.

    Examples:
    dataflowctl release --dataset raw_orders --dataid 2026-01-31
    dataflowctl release --status HOLD
    """
    chosen = options.selector(job=job, dataset=dataset, dataid=dataid, status=status)
    deed = Deed(
        call("release", selector=chosen),
        "chunk",
        {"dataset": "datasetid", "dataid": "dataid", "becomes": "becomes"},
        nothing=lambda _: "no such chunk is held",
    )
    _do(context, deed, Flags(dry_run=dry_run, yes=yes, json=json, explained=explained))


def cancel(  # noqa: PLR0913
    context: typer.Context,
    job: options.AnyJob = None,
    *,
    dataset: options.OfDataset = None,
    dataid: options.Patterns = None,
    reason: options.Reason = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Stop what is running. The chunks go to FAILED and wait for resubmit.

    Examples:
    dataflowctl cancel clean_orders --dataid 2026-01-31
    dataflowctl cancel --dataid '2026-01-*' --reason 'source is down' --yes
    """
    chosen = options.selector(job=job, dataset=dataset, dataid=dataid)
    deed = Deed(
        call("cancel", selector=chosen, reason=reason),
        "run",
        {"job": "jobid", "dataid": "dataid", "daemon": "daemon", "since": "claimed"},
        nothing=lambda _: "no such run is running",
    )
    _do(context, deed, Flags(dry_run=dry_run, yes=yes, json=json, explained=explained))


@dataclass(frozen=True)
class Deed:
    """What a changing command does. Its name is that of the query, which takes `dry_run` beside these parameters."""

    call: Call
    thing: str  # what a row is: a chunk, a run
    columns: Mapping[str, str | Callable[[Row], Any]]  # headers, and where a row has the value
    nothing: Callable[[psycopg.Connection], str]  # said when there is no row
    shown_as: Callable[[Row], dict[str, Any]] = (
        lambda _: {}
    )  # parameters that the first row of the preview decides

    def of(self, *, dry_run: bool, preview: Sequence[Row] = ()) -> Call:
        decided = self.shown_as(preview[0]) if preview else {}
        return call(self.call.name, **self.call.parameters | decided, dry_run=dry_run)

    def table(self, rows: Sequence[Row]) -> list[list[Any]]:
        values = self.columns.values()
        return [[row[value] if isinstance(value, str) else value(row) for value in values] for row in rows]

    def said(self, rows: Sequence[Row]) -> str:
        return f"{self.call.name} {counted(len(rows), self.thing)}"


@dataclass(frozen=True)
class Flags:
    """The options that every changing command has."""

    dry_run: bool
    yes: bool
    json: bool
    explained: bool


def _do(context: typer.Context, deed: Deed, flags: Flags) -> None:
    """Shows a preview, asks, and then does what was shown."""
    if flags.explained:
        explain(deed.of(dry_run=flags.dry_run))
    with connected(context) as connection:
        rows = deed.of(dry_run=True).send(connection)
        if rows and not flags.dry_run:
            if not flags.json:
                preview(tuple(deed.columns), deed.table(rows))
            confirm(f"{deed.said(rows)}?", yes=flags.yes)
            with sign_of_life(deed.said(rows)):
                rows = deed.of(dry_run=False, preview=rows).send(connection)
        missed = "" if rows or flags.json else deed.nothing(connection)
    if flags.json:
        as_json({"dry_run": flags.dry_run, "count": len(rows), f"{deed.thing}s": rows})
    elif not rows:
        say(missed)
    elif flags.dry_run:
        preview(tuple(deed.columns), deed.table(rows))
        say(f"would {deed.said(rows)}; nothing was changed")
    else:
        say(f"{deed.call.name}: {counted(len(rows), deed.thing)}")


def _iso(since: str | None) -> str | None:
    found = options.moment(since)
    return found.isoformat() if found else None
