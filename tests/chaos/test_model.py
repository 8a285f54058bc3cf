"""The protocol is safe and live in every state, and each of its protections is necessary."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.chaos.model import Bounds, BrokenError, Protections, explore


@pytest.mark.parametrize(
    "bounds", [Bounds(attempts=3, productions=2, crashes=0), Bounds(attempts=2, productions=2, crashes=1)]
)
def test_every_state_is_safe_and_leads_to_ready(bounds: Bounds) -> None:
    explored = explore(bounds=bounds)
    assert explored.states > 10_000


@pytest.mark.parametrize(
    ("without", "promise"),
    [
        ("token", "published twice"),
        ("lease", "although the first has a lease"),
        ("lock", "two runners of one daemon"),
        ("own_directory", "did not publish"),
        ("let_go", "two runners of one daemon"),
        ("returns_cancelled", "nothing leads to READY"),
        ("returns_unknown", "nothing leads to READY"),
        ("returns_locked", "nothing leads to READY"),
    ],
)
def test_without_one_protection_the_model_finds_the_broken_property(without: str, promise: str) -> None:
    with pytest.raises(BrokenError, match=promise):
        explore(Protections(**{without: False}), Bounds(attempts=3, productions=1, crashes=0))


def test_each_protection_has_its_test() -> None:
    [marker] = test_without_one_protection_the_model_finds_the_broken_property.pytestmark  # type: ignore[attr-defined]
    assert {without for without, _ in marker.args[1]} == {each.name for each in fields(Protections)}
