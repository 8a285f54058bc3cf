"""A job's nodes as a graph for GraphViz."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from dataflowd.cli.dot import graph, quoted

# The subset of the DOT language that dataflowd writes, after the grammar on graphviz.org.
ID = r'(?:[A-Za-z_]+|"(?:[^"\\\n]|\\.)*")'
ATTRIBUTES = rf"(?: \[{ID}={ID}\])?"
STATEMENT = re.compile(rf"  (?:{ID}={ID}|{ID}{ATTRIBUTES}|{ID} -> {ID}{ATTRIBUTES});")


def node(name: str, items: int = 0, **more: Any) -> dict[str, Any]:
    return {"node": name, "parent": None, "sources": [], "items": items, "failures": 0, "seconds": 1.0} | more


BRANCHING = [
    node("read", 10, failures=2),
    node("route", 8, sources=["read"]),
    node("route: eu", 5, parent="route", sources=["route"]),
    node("route: rest", 3, parent="route", sources=["route"]),
    node("both", 8, sources=["route: eu", "route: rest"]),
    node("aside", parent="both"),
    node("late", 1, sources=["gone"]),
]


def test_an_edge_has_a_count_only_if_its_target_has_one_source() -> None:
    lines = graph("load", BRANCHING).splitlines()
    assert lines[0] == 'digraph "load" {'
    assert lines[-1] == "}"
    assert all(STATEMENT.fullmatch(line) for line in lines[1:-1])
    assert [line.strip() for line in lines if "->" in line] == [
        '"read" -> "route" [label="8"];',
        '"route" -> "route: eu" [label="5"];',
        '"route" -> "route: rest" [label="3"];',
        '"route: eu" -> "both";',
        '"route: rest" -> "both";',
        '"both" -> "aside" [style=dashed];',
    ]
    assert '  "read" [label="read\\n10 items, 2 failed\\n1.0s"];' in lines


@pytest.mark.parametrize(
    "name", ['a "b" -> c', "back\\slash", "ends in \\", "two\nlines", "\x1b[31m", "ä {}; //"]
)
def test_no_name_breaks_out_of_its_quotes(name: str) -> None:
    assert re.fullmatch(ID, quoted(name))
    drawn = graph(name, [node(name), node("next", 1, sources=[name])])
    assert all(STATEMENT.fullmatch(line) for line in drawn.splitlines()[1:-1])
    assert len(drawn.splitlines()) == 7


@pytest.mark.skipif(shutil.which("dot") is None, reason="GraphViz is not installed")
def test_graphviz_reads_the_graph() -> None:
    drawn = subprocess.run(
        ["dot", "-Tplain"], input=graph('a "b"\\', BRANCHING), text=True, capture_output=True, check=False
    )
    assert drawn.returncode == 0, drawn.stderr
