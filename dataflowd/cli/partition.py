"""Batches of a keyed source: partition create, list, delete."""

from __future__ import annotations

import json as encoder
from pathlib import Path  # noqa: TC003 - Typer reads the types of options at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call, connected, explain
from dataflowd.cli.output import say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import as_json, confirm, sign_of_life, table
from dataflowd.model.errors import NotAllowedError
from dataflowd.model.faults import AttemptError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from dataflowd.host.settings import Settings
    from dataflowd.storage.partition.plan import Split

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the partitioning, such as size_5000.")]
Dataset = Annotated[str, typer.Option("--dataset", help="The source that is split.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Split a keyed source into batches."
    )
    options.add(group, create, prefix="partition")
    options.add(group, list_, "list", prefix="partition")
    options.add(group, delete, prefix="partition")
    app.add_typer(group, name="partition")


def create(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    name: Name,
    *,
    dataset: Dataset,
    key: Annotated[
        str, typer.Option(help="The key of the source: a column, or several with commas between.")
    ],
    size: Annotated[int | None, typer.Option(min=1, help="Make ranges of N records, in key order.")] = None,
    every: Annotated[
        int | None, typer.Option(min=1, help="Make N batches, each with every Nth record.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Make N ranges of equal size.")] = None,
    ids: Annotated[
        Path | None,
        typer.Option(
            help="One batch of these keys: one a line, tabs between columns; - reads standard input.",
            allow_dash=True,
        ),
    ] = None,
    hold: Annotated[
        bool, typer.Option("--hold", help="Register the batches on hold: nothing runs before `release`.")
    ] = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Split a source into batches and register them as its chunks, NAME.1, NAME.2 and so on.

    The boundaries are computed where the source is (a table in Postgres, or files) and are stored as data. Records with equal
    keys stay together; records without a key are the batch NAME.null. A source may have several partitionings, and jobs run on
    the batches of all partitionings that are not on hold.

    Examples:
    dataflowctl partition create size_5000 --dataset customers --key id --size 5000
    dataflowctl partition create every_200 --dataset customers --key id --every 200 --hold
    dataflowctl partition create test1 --dataset customers --key id --ids odd_ones.txt
    """
    split = _split(name, key, {"size": size, "every": every, "count": count}, ids)
    source = call("partition_source", datasetid=dataset)
    given = {
        "datasetid": dataset,
        "name": name,
        "columns": list(split.columns),
        "kind": split.kind,
        "size": split.size,
        "held": hold,
    }
    if explained:
        explain(source, call("partition_create", **given, batches="[]"))
    settings = settings_of(context)
    with connected(context) as connection:
        # Try first, without batches: a split that cannot be stored is refused before the long work.
        with connection.transaction(force_rollback=True):
            call("partition_create", **given, batches="[]").send(connection)
        with sign_of_life("splitting"):
            made = _batches(source.send(connection)[0]["dataset"], split, settings)
        with connection.transaction():
            call("long_timeout").send(connection)
            call("partition_create", **given, batches=encoder.dumps(made)).send(connection)
    items = [batch["items"] for batch in made]
    total = None if None in items else sum(items)
    if json:
        as_json({"datasetid": dataset, "partitioning": name, "batches": len(made), "items": total})
    else:
        records = "" if total is None else f", {counted(total, 'record')}"
        say(f"{dataset}: {counted(len(made), 'batch', 'batches')}{records}" + (", on hold" if hold else ""))


def _split(name: str, key: str, sizes: dict[str, int | None], ids: Path | None) -> Split:
    from dataflowd.storage.partition.plan import Split

    chosen = [(kind, size) for kind, size in sizes.items() if size is not None]
    if len(chosen) + (ids is not None) != 1:
        raise typer.BadParameter("give one of --size, --every, --count and --ids")
    columns = tuple(column.strip() for column in key.split(","))
    if not all(columns):
        raise typer.BadParameter(f"--key {key!r} names no columns; write id, or region,id")
    if ids is not None:
        return Split(name, columns, "ids", keys=_keys(ids, len(columns)))
    kind, size = chosen[0]
    return Split(name, columns, kind, size)  # type: ignore[arg-type]


def _keys(path: Path, width: int) -> tuple[tuple[str, ...], ...]:
    from dataflowd.storage.partition.plan import MOST_KEYS

    text = options.content(path, "give one key a line, in UTF-8")
    keys = tuple(dict.fromkeys(tuple(line.split("\t")) for line in text.splitlines() if line.strip()))
    wrong = next((key for key in keys if len(key) != width), None)
    if wrong is not None:
        raise NotAllowedError(
            f"{path}: {' '.join(wrong)!r} has {counted(len(wrong), 'column')}, and the key has {width}",
            "write one key a line, with tabs between its columns",
        )
    if not keys or len(keys) > MOST_KEYS:
        raise NotAllowedError(f"{path} has {counted(len(keys), 'key')}", f"give 1 to {MOST_KEYS:,}")
    return keys


def _batches(document: dict[str, object], split: Split, settings: Settings) -> list[dict[str, Any]]:
    from dataflowd.model.work_order import Dataset as Described
    from dataflowd.runner import split_source
    from dataflowd.storage.partition import plan

    try:
        with split_source.opened(Described.parse(document), split.columns, settings) as source:
            return plan.batches(source, split)
    except AttemptError as error:
        raise NotAllowedError(error.message, error.remedy) from error


def list_(
    context: typer.Context,
    dataset: Annotated[str | None, typer.Argument(metavar="DATASET", help="Only of this dataset.")] = None,
    *,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """List partitionings, and how many of their batches are ready, on hold and consumed."""
    found = ask(context, call("partition_list", datasetid=dataset), explained=explained)
    if json:
        as_json(found)
        return
    table(
        ["dataset", "name", "key", "kind", "size", "batches", "records", "ready", "held", "consumed"],
        [
            [
                row["datasetid"],
                row["partitioning"],
                ",".join(row["key_columns"]),
                row["kind"],
                row["size"],
                row["batches"],
                row["items"],
                row["ready"],
                row["held"],
                row["consumed"],
            ]
            for row in found
        ],
        nothing="nothing is partitioned",
    )


def delete(  # noqa: PLR0913
    context: typer.Context,
    name: Name,
    *,
    dataset: Dataset,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Forget a partitioning and its chunks. The source stays, and so do chunks that jobs made of it. Refused while a run reads one."""
    shown, deed = (
        call("partition_delete", datasetid=dataset, name=name, dry_run=is_dry) for is_dry in (True, False)
    )
    if explained:
        explain(shown if dry_run else deed)
    with connected(context) as connection:
        found = shown.send(connection)[0]["batches"]
        if not dry_run:
            confirm(f"delete {name} of {dataset} with {counted(found, 'batch', 'batches')}?", yes=yes)
            deed.send(connection)
    if json:
        as_json({"dry_run": dry_run, "batches": found})
    else:
        say(f"{'would delete' if dry_run else 'deleted'} {counted(found, 'batch', 'batches')} of {dataset}")
