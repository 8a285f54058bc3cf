"""The heat map of a dataset: the form of the dataids decides the lines, a missing chunk is a gap, a stale chunk has a mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.fix_world import World


def drawn(world: World, dataset: str = "raw", width: int = 20, *bounds: str | None) -> list[tuple[Any, ...]]:
    low, high = bounds or (None, None)
    return world.rows(
        "SELECT kind, label, map FROM dataflow.chunk_grid(%s, %s, %s, %s)", dataset, width, low, high
    )


@pytest.mark.parametrize(
    ("dataids", "kind", "lines"),
    [
        (["2026-01-30", "2026-02-02", "2026-02-04"], "day", {"2026-01": " " * 29 + "._", "2026-02": "_._."}),
        # A month without any chunk is a line too. A day that does not exist (30 February) has a place in its line.
        (["2026-01-31", "2026-02-30", "2026-04-02"], "day",
            {"2026-01": " " * 30 + ".", "2026-02": "_" * 28 + "_.", "2026-03": "_" * 31, "2026-04": "_."}),
        (["2026-01-31T22", "2026-02-01T01"], "hour", {"2026-01-31": " " * 22 + "._", "2026-02-01": "_."}),
        (["2025-W50", "2026-W02"], "week", {"2025": " " * 49 + ".__", "2026": "_."}),
        (["2024-11", "2025-02", "2026-01"], "month", {"2024": " " * 10 + "._", "2025": "_.__________", "2026": "."}),
        (["18", "19", "21", "45"], "number", {"0": " " * 18 + "..", "20": "_." + "_" * 18, "40": "_____."}),
        (["018", "021"], "number", {"000": " " * 18 + "._", "020": "_."}),
        (["a", "b", "2026-01-01"], "other", {"2026-01-01": "..."}),
        (["1", "01"], "other", {"01": ".."}),
        ([], "", {}),
    ],
)  # fmt: skip
def test_a_line_is_a_period_or_a_range_and_what_is_missing_is_a_gap(
    world: World, dataids: list[str], kind: str, lines: dict[str, str]
) -> None:
    world.dataset("raw")
    world.ready("raw", *dataids)
    found = drawn(world)
    assert {label: line for _, label, line in found} == lines
    assert {each for each, _, _ in found} == ({kind} if kind else set())


def test_missing_lines_are_left_out_when_they_are_far_more_than_the_others(world: World) -> None:
    world.dataset("raw")
    world.ready("raw", "1", "999999999")
    assert [label for _, label, _ in drawn(world)] == ["0", "999999980"]


def test_each_status_and_stale_chunks_have_a_mark(pipeline: World) -> None:
    days = [f"2026-01-0{day}" for day in range(1, 8)]
    pipeline.ready("raw", *days[:5])
    daemon = pipeline.daemon()
    first, second, third, _, fifth = sorted(daemon.claim(5), key=lambda attempt: attempt.dataid)
    daemon.finish(first, second)
    daemon.fail(third, fifth)
    pipeline.resubmit(job="clean_orders", dataid=days[4])
    pipeline.do("SELECT dataflow.hold('clean', %s)", days[6])
    assert drawn(pipeline, "clean") == [("day", "2026-01", "..FRs_H")]
    pipeline.ready("raw", days[1])
    assert drawn(pipeline, "clean") == [("day", "2026-01", ".~FRs_H")]
    pipeline.ready("raw", days[0], validated=False)
    assert drawn(pipeline, "raw", 20, None, days[2]) == [("day", "2026-01", "?..")]
