"""Gathers the results of one command as a table and a picture for docs/benchmarks.md: docs/bench.json, docs/bench.svg.

A figure can only be compared with figures of the same command, on the same machine with the same versions; both are named.
The picture shows only ratios, on a scale where half and double are equally far from 1.
"""

from __future__ import annotations

import json
import math
import os
import platform
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from dataflowd.host.embedded import java
from dataflowd.host.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.bench.report import Result

JSON_FILE = "bench.json"
CHART_FILE = "bench.svg"
PACKAGES = ("dataflowd", "pyspark", "psycopg", "pgqueuer", "procrastinate")
GIB = 1024**3

WIDTH, LABEL, ROW, MARGIN = 940, 480, 26, 56
VALUES = 70  # width of the column of figures, at the right
GOOD, MISSED, NEUTRAL, INK, FAINT = "#2f855a", "#c05621", "#4a6fa5", "#2d3748", "#cbd5e0"


def machine(dsn: str) -> dict[str, Any]:
    """The machine and the versions that the figures depend on."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB),
        "load_at_start": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "postgres": str(row[0]).split()[0] if row else "",
        "java": java.find(Settings()).version,
        **{name: version(name) for name in PACKAGES},
    }


def write(directory: Path, facts: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Writes the results. Earlier results of other benches stay if machine and versions are the same."""
    ours = {result.bench for result in results}
    kept = [result for result in _found(directory, facts) if result["bench"] not in ours]
    document = {"machine": dict(facts), "results": kept + [result.document() for result in results]}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / JSON_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (directory / CHART_FILE).write_text(chart(document), encoding="utf-8")


def _found(directory: Path, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        document = json.loads((directory / JSON_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []

    def lasting(machine: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in machine.items() if name != "load_at_start"}

    results: list[dict[str, Any]] = document["results"]
    return results if lasting(document["machine"]) == lasting(facts) else []


def table(document: Mapping[str, Any]) -> str:
    """The table of docs/benchmarks.md: the results that have a goal or are ratios."""
    rows = ["| bench | what | case | here | goal | holds |", "| --- | --- | --- | ---: | --- | --- |"]
    for result in _shown(document["results"]):
        holds = {True: "yes", False: "**no**", None: ""}[result["holds"]]
        rows.append(
            f"| {result['bench']} | {_words(result['metric'])} | {result['case']} | {_value(result)} "
            f"| {result['goal'] or ''} | {holds} |"
        )
    facts = document["machine"]
    rows += [
        "",
        f"{facts['date']}, {facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, load {facts['load_at_start']} at "
        f"the start; Python {facts['python']}, Postgres {facts['postgres']}, Java {facts['java']}, "
        + ", ".join(f"{name} {facts[name]}" for name in PACKAGES)
        + ".",
    ]
    return "\n".join(rows) + "\n"


def chart(document: Mapping[str, Any]) -> str:
    ratios = [result for result in document["results"] if result["unit"] == "ratio"]
    values = [float(result["value"]) for result in ratios] + [_limit(result) for result in ratios]
    reach = max([abs(math.log2(value)) for value in values if value > 0] + [1.0])
    height = MARGIN + ROW * len(ratios) + MARGIN
    room = WIDTH - LABEL - VALUES
    middle, unit = LABEL + room / 2, room / 2 / reach

    def place(value: float) -> float:
        return middle + math.log2(value) * unit

    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'font-family="system-ui, sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        (
            f'<text x="16" y="24" font-size="15" font-weight="600" fill="{INK}">dataflowd beside the limit and its peers, '
            f"{escape(document['machine']['date'])}</text>"
        ),
        f'<text x="16" y="42" fill="{INK}">ratios, measured in one run; a tick is the goal; the line is 1: as much as the other</text>',
        f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{MARGIN}" y2="{height - MARGIN + 8}" stroke="{INK}"/>',
    ]
    for number, result in enumerate(ratios):
        lines += _bar(result, MARGIN + ROW * number, middle, place)
    lines += [
        f'<text x="16" y="{height - 20}" fill="{GOOD}">■ goal holds</text>',
        f'<text x="116" y="{height - 20}" fill="{MISSED}">■ goal missed</text>',
        f'<text x="226" y="{height - 20}" fill="{NEUTRAL}">■ no goal</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar(result: Mapping[str, Any], top: float, middle: float, place: Any) -> list[str]:
    value, colour = float(result["value"]), {True: GOOD, False: MISSED, None: NEUTRAL}[result["holds"]]
    end = place(value)
    left, width = min(middle, end), max(abs(end - middle), 1.5)
    lines = [
        (
            f'<text x="{LABEL - 12}" y="{top + 16}" text-anchor="end" fill="{INK}">{escape(result["bench"])}: '
            f"{escape(_words(result['metric']))} ({escape(result['case'])})</text>"
        ),
        f'<rect x="{left:.1f}" y="{top + 4}" width="{width:.1f}" height="{ROW - 9}" rx="2" fill="{colour}"/>',
        f'<text x="{WIDTH - 16}" y="{top + 16}" text-anchor="end" fill="{INK}">{value:.3g}x</text>',
    ]
    if result["goal"]:
        x = place(_limit(result))
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + 1}" y2="{top + ROW - 2}" stroke="{INK}" stroke-width="2"/>'
        )
    return lines


def _shown(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [result for result in results if result["goal"] or result["unit"] == "ratio"]


def _value(result: Mapping[str, Any]) -> str:
    shown = f"{float(result['value']):.3g}" if result["value"] < 1000 else f"{result['value']:,.0f}"
    return f"{shown}x" if result["unit"] == "ratio" else f"{shown} {result['unit']}"


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _limit(result: Mapping[str, Any]) -> float:
    return float(result["goal"].split()[1]) if result["goal"] else 1.0


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
