"""A job's nodes as a graph for GraphViz: `dataflowctl stats JOB --dag --dot | dot -Tsvg`.

An edge is the way of the rows, with the number of those that came along it; where several ways meet, nobody knows how many came by
each. A dashed edge leads from a node to one that began inside it and hands it no rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataflowd.cli.show import duration
from dataflowd.model.masking import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


def graph(jobid: str, nodes: list[dict[str, Any]]) -> str:
    lines = [f"digraph {quoted(jobid)} {{", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f"  {quoted(node['node'])} [label={quoted(_label(node))}];" for node in nodes]
    lines += [f"  {edge};" for edge in _edges(nodes)]
    return "\n".join([*lines, "}"])


def _label(node: dict[str, Any]) -> str:
    failed = f", {node['failures']:,} failed" if node["failures"] else ""
    return f"{node['node']}\n{node['items']:,} items{failed}\n{duration(node['seconds'])}"


def _edges(nodes: list[dict[str, Any]]) -> Iterator[str]:
    known = {node["node"] for node in nodes}
    sources = {node["node"]: [name for name in node["sources"] if name in known] for node in nodes}
    for node in nodes:
        name, parent = node["node"], node["parent"]
        for source in sources[name]:
            label = f' [label="{node["items"]:,}"]' if len(sources[name]) == 1 else ""
            yield f"{quoted(source)} -> {quoted(name)}{label}"
        if parent in known and parent not in sources[name] and name not in sources[parent]:
            yield f"{quoted(parent)} -> {quoted(name)} [style=dashed]"


def quoted(text: str) -> str:
    """A string of DOT. In a label a backslash would begin an escape (backslash and N mean the node's name), so it is doubled."""
    lines = (printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'
