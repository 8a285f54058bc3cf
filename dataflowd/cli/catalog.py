"""What is declared, and statistics about it: jobs, datasets, lineage, stats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call
from dataflowd.cli.dot import graph
from dataflowd.cli.output import bold, columns, say, unicode_output
from dataflowd.cli.show import as_json, cell, duration, first_line, marked, moment, size, table
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.cli.ask import Row

Retired = Annotated[bool, typer.Option("--retired", help="Also what no flow declares any more.")]
SHOWN_BRANCHES = 12
TIMES = ("least", "median", "mean", "p90", "p95", "p99", "most")


def register(app: typer.Typer) -> None:
    for command in (jobs, datasets, lineage, stats):
        options.add(app, command)


def jobs(
    context: typer.Context,
    *,
    retired: Retired = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """List every job: what it reads and writes, and how it is run."""
    found = ask(context, call("jobs", retired=retired), explained=explained)
    if json:
        as_json(found)
        return
    table(
        ["job", "flow", "kind", "inputs", "outputs", "limit", "attempts", "state", "description"],
        [
            [
                row["jobid"],
                f"like {row['like_job']}" if row["like_job"] else row["flow"],
                row["kind"],
                row["inputs"],
                row["outputs"],
                row["max_running"],
                row["max_attempts"],
                "RETIRED" if row["retired"] else "PAUSED" if row["paused"] else "-",
                first_line(row["description"]),
            ]
            for row in found
        ],
    )


def datasets(
    context: typer.Context,
    *,
    retired: Retired = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """List every dataset: which job makes it, which jobs read it, where it is, and how many chunks are ready."""
    found = ask(context, call("datasets", retired=retired), explained=explained)
    if json:
        as_json(found)
        return
    table(
        ["dataset", "flow", "format", "producer", "consumers", "ready", "chunks", "place"],
        [
            [
                row["datasetid"],
                row["flow"],
                row["format"],
                row["producer"],
                row["consumers"],
                row["ready"],
                row["chunks"],
                row["place"],
            ]
            for row in found
        ],
    )


def lineage(
    context: typer.Context,
    dataset: options.Dataset,
    dataid: Annotated[
        str | None, typer.Argument(metavar="DATAID", help="One slice of it, with the status of each chunk.")
    ] = None,
    *,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Show what a dataset is made of, and what is made of it, as a tree.

    Examples:
    dataflowctl lineage orders
    dataflowctl lineage orders 2026-01-31
    """
    found = ask(context, call("lineage", datasetid=dataset, dataid=dataid), explained=explained)
    if json:
        as_json(found)
        return
    top = next(row for row in found if row["depth"] == 0)
    say(bold(_name(top)))
    for direction, title in (("up", "made of"), ("down", "makes")):
        rows = [row for row in found if row["direction"] == direction and row["depth"] > 0]
        if rows:
            say(f"{title}:")
            _tree(rows, tuple(top["path"]), "")


def _tree(rows: list[Row], parent: tuple[str, ...], indent: str) -> None:
    children = [row for row in rows if tuple(row["path"][:-1]) == parent]
    shown = children[:SHOWN_BRANCHES]
    last, middle, through = ("└─ ", "├─ ", "│  ") if unicode_output() else ("`- ", "|- ", "|  ")
    for place, row in enumerate(shown):
        is_last = place == len(children) - 1
        how = "read" if row["direction"] == "up" else "made"
        say(f"{indent}{last if is_last else middle}{_name(row)}  {how} by {row['jobid']}")
        below = [each for each in rows if tuple(each["path"][: len(parent) + 1]) == tuple(row["path"])]
        _tree(below, tuple(row["path"]), indent + ("   " if is_last else through))
    if len(children) > len(shown):
        say(f"{indent}{last}... and {len(children) - len(shown)} more; --json lists all")


def _name(row: Row) -> str:
    if row["dataid"] is None:
        return str(row["datasetid"])
    code = f" ({row['code']})" if row["code"] else ""
    version = f" v{row['version']}" if row["version"] else ""
    return f"{row['datasetid']}/{row['dataid']}{version}  {marked(row['status'] or 'not there', row)}{code}"


def stats(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: options.Job,
    *,
    dag: Annotated[
        bool, typer.Option("--dag", help="Only its nodes, as a tree in the order of the job.")
    ] = False,
    dot: Annotated[
        bool, typer.Option("--dot", help="With --dag: as a graph for GraphViz, with the rows on each branch.")
    ] = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Show everything about a job: source, configuration, chunks, exceptions, times, and what its nodes did.

    Items are the rows that its attempts wrote. The rate is items per second of the time in which at least one attempt ran. A retry is
    every attempt at a version except the first. The numbers of nodes are sums over the attempts that made the published versions.

    Examples:
    dataflowctl stats clean_orders
    dataflowctl stats clean_orders --dag
    dataflowctl stats clean_orders --dag --dot | dot -Tsvg > clean_orders.svg
    """
    if dot and (json or not dag):
        raise typer.BadParameter("--dot draws the nodes: give --dag --dot, and no --json")
    found = ask(context, call("job_stats", jobid=job), explained=explained)[0]["stats"]
    if json:
        as_json(found)
        return
    if dot:
        say(graph(found["jobid"], found["nodes"]))
        return
    if dag:
        _draw(found)
        return
    for line in columns(_facts(found)):
        say(line)
    if found["execution"]["slowest"]:
        say()
        table(
            ["slowest", "attempt", "outcome", "time", "CPU time", "items"],
            [
                [
                    s["dataid"],
                    s["attempt"],
                    s["outcome"],
                    duration(s["seconds"]),
                    duration(s["cpu_seconds"]),
                    s["items"],
                ]
                for s in found["execution"]["slowest"]
            ],
        )
    if found["exceptions"]:
        say()
        table(
            ["exception", "attempts", "last", "error"],
            [
                [e["code"], e["attempts"], moment(e["last"]), first_line(e["error"])]
                for e in found["exceptions"]
            ],
        )
    if found["nodes"]:
        say()
        table(
            ["node", "attempts", "items", "successes", "failures", "time"],
            [
                [n["node"], n["attempts"], n["items"], n["successes"], n["failures"], duration(n["seconds"])]
                for n in found["nodes"]
            ],
        )


def _draw(found: dict[str, Any]) -> None:
    say(bold(cell(found["jobid"])) + ("" if found["nodes"] else ": no attempt has reported its nodes"))
    lines = columns(
        [
            [
                f"{branch}{cell(node['node'])}",
                f"{node['items']:,} items",
                f"{node['failures']:,} failed",
                f"{duration(node['seconds'])} in {counted(node['attempts'], 'attempt')}",
                f"from {', '.join(map(cell, node['sources']))}" if node["sources"] else "",
            ]
            for branch, node in _branches(_children(found["nodes"]), None)
        ]
    )
    for line in lines:
        say(line)


def _children(nodes: list[dict[str, Any]]) -> dict[str | None, list[dict[str, Any]]]:
    """The nodes, grouped by parent. A node whose parent is not listed before it is shown without one: attempts may differ."""
    children: dict[str | None, list[dict[str, Any]]] = {}
    known: set[str] = set()
    for node in nodes:
        children.setdefault(node["parent"] if node["parent"] in known else None, []).append(node)
        known.add(node["node"])
    return children


def _branches(
    children: dict[str | None, list[dict[str, Any]]], parent: str | None, indent: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each node with the lines of the tree before it, in the order of the job."""
    along, last, further = ("├─ ", "└─ ", "│  ") if unicode_output() else ("|- ", "`- ", "|  ")
    siblings = children.get(parent, [])
    for node in siblings:
        is_last = node is siblings[-1]
        yield indent + (last if is_last else along), node
        yield from _branches(children, node["node"], indent + ("   " if is_last else further))


def _facts(found: dict[str, Any]) -> list[list[str]]:
    execution, seconds = found["execution"], found["execution"]["seconds"]
    configuration = ", ".join(
        f"{key} {cell(value)}" for key, value in sorted(found["configuration"].items()) if value is not None
    )
    outcomes = ", ".join(
        f"{execution[key]} {key}" for key in ("done", "failed", "lost", "cancelled", "running")
    )
    times = ", ".join(f"{key} {duration(seconds[key])}" for key in TIMES)
    rate = execution["items_per_second"]
    items = f"{execution['items']:,} written" + (f", {rate:,.0f} a second" if rate is not None else "")
    wall = f"{duration(seconds['busy'])} with an attempt running, {duration(seconds['total'])} of attempts"
    return [
        ["job", cell(found["jobid"]) + (" (retired)" if found["retired"] else "")],
        ["description", cell(found["description"] or None)],
        ["created", f"{moment(found['created'])}, changed {moment(found['modified'])}"],
        ["source", ", ".join(map(_source, found["sources"])) or "-"],
        ["code", f"flow {found['flow'] or '-'}, {found['kind']}, {cell(found['code_hash'])}"],
        ["inputs", cell(found["inputs"])],
        ["outputs", cell(found["outputs"])],
        ["configuration", configuration],
        [
            "chunks",
            ", ".join(f"{number} {status}" for status, number in sorted(found["chunks"].items())) or "-",
        ],
        ["published", f"{found['published']['rows']:,} rows, {size(found['published']['bytes'])}"],
        [
            "attempts",
            f"{execution['attempts']}: {outcomes}; {counted(execution['retries'], 'retry', 'retries')}",
        ],
        ["items", items],
        ["wall time", wall],
        ["CPU time", duration(execution["cpu_seconds"])],
        ["times", times],
        ["quarantine", f"{found['quarantine']['open']} open, {found['quarantine']['resolved']} resolved"],
    ]


def _source(source: dict[str, Any]) -> str:
    """Where an input lies, and how it was split."""
    place = ":".join(filter(None, [source["hostname"], source["place"]]))
    splits = ", ".join(
        f"{split['partitioning']} ({', '.join(f'{n} {state}' for state, n in sorted(split['states'].items()))})"
        for split in source["partitionings"]
    )
    return f"{source['datasetid']} ({source['format']} {place})" + (f" split into {splits}" if splits else "")
