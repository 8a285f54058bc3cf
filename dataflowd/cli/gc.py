"""The command gc: shows which directories nobody needs, asks, and removes them. The daemon does so by itself: dataflowd.storage.gc."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import call, connected, explain
from dataflowd.cli.output import say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import Progress, as_json, confirm, preview, size
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from dataflowd.cli.ask import Call, Row
    from dataflowd.host.settings import Settings
    from dataflowd.storage.gc import Found, Garbage, Place, Skipped


def register(app: typer.Typer) -> None:
    options.add(app, gc)


def gc(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    *,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="Keep what ended less than this ago, such as 12h; default: gc_grace."
        ),
    ] = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Remove directories that nobody needs, on the disks of this host, under its allowed roots.

    These are the outputs of attempts that published nothing, versions that were superseded longer than gc_retention ago
    and that nobody reads, deleted chunks, and temporary directories of programs that were killed. Directories that this database
    does not know stay. A daemon collects every gc_interval seconds.

    Examples:
    dataflowctl gc --dry-run
    dataflowctl gc --grace 0s --yes
    """
    from dataflowd.host import scratch

    settings = settings_of(context)
    seconds = settings.gc_grace if grace is None else options.age(grace).total_seconds()
    if explained:
        places = call("gc_places", environment=settings.environment, jobid=None)
        explain(places, _decision(settings, seconds, [], dry_run=dry_run))
    with connected(context) as connection:
        found, skipped = _look(connection, settings, seconds)
        if not json:
            _preview(found)
        if found and not dry_run:
            confirm(f"remove {counted(len(found), 'output')} that nobody needs?", yes=yes)
            found = _remove(connection, settings, seconds, found)
    temporary = scratch.find(settings) if dry_run else scratch.remove(settings)
    gone = [each for each in found if each["kept"] is None]
    if json:
        directories = [{key: value for key, value in each.items() if key != "garbage"} for each in found]
        as_json(
            {
                "dry_run": dry_run,
                "count": len(gone),
                "bytes": sum(each["bytes"] for each in gone),
                "directories": directories,
                "temporary": list(map(str, temporary)),
                "skipped": [
                    {"dataset": each.dataset, "location": each.location, "why": each.why} for each in skipped
                ],
            }
        )
        return
    for each in found:
        if each["kept"] is not None:
            say(f"kept {each['path']}: it {each['kept']}")
    for place in skipped:
        say(f"not looked into: {place.dataset}: {place.location} {place.why}")
    say(_summary(gone, temporary, dry_run=dry_run))


def _summary(gone: list[Row], temporary: list[Path], *, dry_run: bool) -> str:
    outputs = f"{counted(len(gone), 'output')}, {size(sum(each['bytes'] for each in gone))}"
    killed = f"{counted(len(temporary), 'directory', 'directories')} of programs that were killed"
    done = " and ".join([outputs] * bool(gone) + [killed] * bool(temporary))
    return f"{'would remove' if dry_run else 'removed'} {done}" if done else "there is nothing to remove"


def remove_deleted(
    connection: psycopg.Connection, settings: Settings, job: str, dataids: set[str]
) -> tuple[list[Row], list[Skipped]]:
    """Removes the directories of the runs that `delete --data` has forgotten. Returns also the places that could not be searched."""
    from dataflowd.storage import gc as collecting

    found, skipped = _look(connection, settings, 0.0, job)
    deleted = [row for row in found if row["why"] == "FORGOTTEN" and row["dataid"] in dataids]
    removed = _remove(connection, settings, 0.0, deleted)
    for row in removed:
        collecting.remove_empty(row["garbage"].found)
    return removed, skipped


def written(connection: psycopg.Connection, settings: Settings, job: str, dataids: set[str]) -> list[Row]:
    """The directories that `delete --data` would remove."""
    from dataflowd.storage import gc as collecting

    batches = collecting.walk(
        each for each in _places(connection, settings, job) if isinstance(each, collecting.Place)
    )
    return [
        {"path": str(found.path), "bytes": collecting.size(found), "kept": None}
        for batch in batches
        for found in batch
        if found.dataid in dataids
    ]


def _places(connection: psycopg.Connection, settings: Settings, job: str | None) -> list[Place | Skipped]:
    from dataflowd.storage import gc as collecting

    rows = call("gc_places", environment=settings.environment, jobid=job).send(connection)
    roots = settings.effective_allowed_roots
    found = (collecting.places(row["datasetid"], row["location"], roots) for row in rows)
    return [each for some in found for each in ([some] if isinstance(some, collecting.Skipped) else some)]


def _look(
    connection: psycopg.Connection, settings: Settings, grace: float, job: str | None = None
) -> tuple[list[Row], list[Skipped]]:
    """The directories that could be removed, as they are shown, and the places that could not be searched."""
    from dataflowd.storage import gc as collecting

    places = _places(connection, settings, job)
    found = [
        _row(garbage)
        for batch in collecting.walk(each for each in places if isinstance(each, collecting.Place))
        for garbage in _judged(connection, settings, grace, batch, dry_run=True)
    ]
    skipped = [each for each in places if isinstance(each, collecting.Skipped) and not each.is_empty]
    return found, skipped


def _remove(connection: psycopg.Connection, settings: Settings, grace: float, shown: list[Row]) -> list[Row]:
    """Asks the database again, because time has passed since the preview, and removes what it still allows."""
    from dataflowd.storage import gc as collecting

    progress = Progress("removing", len(shown))
    done: list[Row] = []
    for start in range(0, len(shown), collecting.BATCH):
        batch = [row["garbage"].found for row in shown[start : start + collecting.BATCH]]
        still = {each.found: each for each in _judged(connection, settings, grace, batch, dry_run=False)}
        for row in shown[start : start + collecting.BATCH]:
            garbage = still.get(row["garbage"].found)
            ended = (
                collecting.remove(garbage)
                if garbage
                else collecting.Removed(is_removed=False, why_not="is needed")
            )
            done.append(row | {"bytes": ended.bytes, "kept": None if ended.is_removed else ended.why_not})
            progress.advance(1)
    progress.end()
    return done


def _judged(
    connection: psycopg.Connection, settings: Settings, grace: float, batch: list[Found], *, dry_run: bool
) -> list[Garbage]:
    from dataflowd.storage import gc as collecting

    rows = _decision(settings, grace, batch, dry_run=dry_run).send(connection)
    return collecting.judged(batch, [list(row.values()) for row in rows])


def _decision(settings: Settings, grace: float, batch: list[Found], *, dry_run: bool) -> Call:
    from dataflowd.storage import gc as collecting

    limits = {"grace": grace, "retention": settings.gc_retention, "dry_run": dry_run}
    return call("gc_collect", **collecting.asked(batch), **limits)


def _row(garbage: Garbage) -> Row:
    from dataflowd.storage import gc as collecting

    found = garbage.found
    return {
        "dataset": found.place.dataset,
        "dataid": found.dataid,
        "attempt": found.attempt,
        "why": garbage.why,
        "since": garbage.since,
        "path": str(found.path),
        "bytes": collecting.size(found),
        "kept": None,
        "garbage": garbage,
    }


def _preview(found: list[Row]) -> None:
    if found:
        headers = ["dataset", "dataid", "attempt", "why", "since", "bytes", "path"]
        preview(headers, [[each[header] for header in headers] for each in found])
