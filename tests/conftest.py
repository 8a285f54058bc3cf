"""Fixtures are plugins, one module a topic, so that a test's reader finds them by name."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# A run of the tests tells the same twice; `--hypothesis-profile=explore` looks for what is not known yet.
settings.register_profile("repeat", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("repeat")

COSTLY = ("spark", "cluster", "crowds", "wheel")  # fixtures
LONG_FIRST = ("spark", "e2e", "upgrade", "chaos", "sql", "fuzz", "hostile", "unit")  # directories

pytest_plugins = [
    "tests.fix_classes",
    "tests.fix_daemon",
    "tests.fix_leaks",
    "tests.fix_postgres",
    "tests.fix_tables",
    "tests.fix_world",
]


def pytest_configure() -> None:
    """A terminated session still stops what it started, as an interrupted one does.

    A shell that starts the tests in the background has them ignore SIGINT, and so would every program they start.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For several processes: what shares something costly goes to one of them, and what takes long begins early."""
    for item in items:
        shared = [name for name in COSTLY if name in getattr(item, "fixturenames", ())]
        if shared:
            item.add_marker(pytest.mark.xdist_group(shared[0]))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    is_shared = item.get_closest_marker("xdist_group") is not None
    return 0 if is_shared else 1 + LONG_FIRST.index(item.path.parent.name)
