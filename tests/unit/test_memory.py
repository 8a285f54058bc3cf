"""For how many Spark applications a host has memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dataflowd.host import memory

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


@pytest.mark.parametrize(
    ("configurations", "has_jvm", "expected"),
    [
        ([], True, 9),  # applications get 12.8 of 16 GiB, 1.4 GiB each
        ([{}, {"spark.driver.memory": "2g"}], True, 5),
        ([{"spark.driver.memory": "512"}], True, 14),
        ([{"spark.driver.memory": "512m"}, {}], True, 9),
        ([{"spark.driver.memory": "64g"}], True, 1),
        ([{"spark.driver.memory": "much"}], True, 9),
        ([{"spark.driver.memory": "2g"}], False, 32),
    ],
)
def test_the_largest_heap_counts_and_one_always_fits(
    monkeypatch: pytest.MonkeyPatch, configurations: list[dict[str, str]], has_jvm: bool, expected: int
) -> None:
    monkeypatch.setattr(memory, "total", lambda: 16 * GIB)
    assert memory.applications(configurations, has_jvm=has_jvm) == expected


def test_the_memory_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = memory.total()
    assert whole >= 1 << 20
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(memory, "_of_host", lambda: 16 * GIB)
    assert memory.total() == 16 * GIB
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    assert memory.total() == 2 * GIB
