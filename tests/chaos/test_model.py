"""The protocol keeps its promises in every state, and each of its protections is needed."""

from __future__ import annotations

import pytest

from tests.chaos.model import BrokenError, Protections, explore


def test_no_order_of_events_breaks_a_promise_and_every_state_leads_to_ready() -> None:
    explored = explore()
    assert explored.states > 10_000


@pytest.mark.parametrize(
    ("without", "promise"),
    [
        ("token", "published twice"),
        ("lease", "although the first has a lease"),
        ("lock", "two runners of one daemon"),
        ("own_directory", "did not publish"),
        ("let_go", "two runners of one daemon"),
    ],
)
def test_the_model_sees_what_each_protection_is_for(without: str, promise: str) -> None:
    with pytest.raises(BrokenError, match=promise):
        explore(Protections(**{without: False}))
