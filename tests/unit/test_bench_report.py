"""How docs/benchmarks.md shows the results of a bench: the table and the chart agree with the measured lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.bench import gather
from tests.bench.report import Result, at_least, at_most, ratio

if TYPE_CHECKING:
    from pathlib import Path

FACTS = {
    "date": "2026-01-31",
    "cpu": "a cpu",
    "cores": 2,
    "memory_gib": 23,
    "load_at_start": 0.5,
    "python": "3.11.7",
    "postgres": "18.1",
    "java": "21.0.1",
    **dict.fromkeys(gather.PACKAGES, "1.0"),
}
FOUND = [
    ratio(("claim", "batch < 64", "vs_peer"), [4.0], [2.0], at_least(3)),
    Result("spark", "a chunk", "warm_vs_submit", 48.0, "ratio", at_least(20)),
    Result("latency", "idle", "p50_ms", 9.6, "ms", at_most(20)),
    Result("latency", "idle", "p90_ms", 12.0, "ms"),
]


def test_the_table_has_what_has_a_goal_or_is_a_ratio(tmp_path: Path) -> None:
    gather.write(tmp_path, FACTS, FOUND)
    document = json.loads((tmp_path / gather.JSON_FILE).read_text(encoding="utf-8"))
    assert [result["metric"] for result in document["results"]] == [result.metric for result in FOUND]
    table = gather.table(document)
    assert "| claim | vs peer | batch < 64 | 2x | >= 3 | **no** |" in table
    assert "| latency | p50 ms | idle | 9.6 ms | <= 20 | yes |" in table
    assert "p90" not in table
    assert "2026-01-31, 2 cores (a cpu), 23 GiB" in table


def test_the_chart_has_a_bar_and_a_tick_for_each_ratio_with_a_goal(tmp_path: Path) -> None:
    gather.write(tmp_path, FACTS, FOUND)
    drawn = ET.fromstring((tmp_path / gather.CHART_FILE).read_text(encoding="utf-8"))  # noqa: S314 - our own
    bars = [rect.get("fill") for rect in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == ["white", gather.MISSED, gather.GOOD]
    assert "batch < 64" in "".join(drawn.itertext())


def test_a_bench_replaces_its_own_figures_and_leaves_those_of_others_on_the_same_machine(
    tmp_path: Path,
) -> None:
    again = Result("spark", "a chunk", "warm_vs_submit", 50.0, "ratio", at_least(20))

    def kept() -> dict[str, float]:
        document = json.loads((tmp_path / gather.JSON_FILE).read_text(encoding="utf-8"))
        return {result["metric"]: result["value"] for result in document["results"]}

    gather.write(tmp_path, FACTS, FOUND)
    gather.write(tmp_path, FACTS | {"load_at_start": 3.0}, [again])
    assert kept() == {"vs_peer": 2.0, "p50_ms": 9.6, "p90_ms": 12.0, "warm_vs_submit": 50.0}
    gather.write(tmp_path, FACTS | {"postgres": "19.0"}, [again])
    assert kept() == {"warm_vs_submit": 50.0}
