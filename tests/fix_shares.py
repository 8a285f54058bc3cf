"""Distributes the tests over several processes: `make test` has three.

All tests that need the same costly fixture go to one process. Every other test goes to the first free process. Long tests
begin early, so that at the end no process works alone.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# The costly fixtures, and the modules that use them.
TOGETHER = {
    "spark": {
        "hostile/test_footer.py",
        "spark/test_docs.py",
        "spark/test_new_flow.py",
        "spark/test_outside_readers.py",
        "spark/test_partitions.py",
        "spark/test_readme_job.py",
        "spark/test_row_counts.py",
        "spark/test_row_replay.py",
        "spark/test_runner.py",
        "spark/test_sdk.py",
        "spark/test_stored_columns.py",
        "spark/test_tables.py",
        "spark/test_try.py",
    },
    "cluster": {"spark/test_masters.py"},
    "crowds": {"sql/test_plans.py"},
    "wheel": {"e2e/test_wheel.py"},
}
# Directories.
LONG_FIRST = ("spark", "e2e", "chaos", "hostile", "upgrade", "interleave", "fuzz", "sql", "unit")


class Shares(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no type information
    def _split_scope(self, nodeid: str) -> str:
        return _together(nodeid) or nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares:
    return Shares(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        needed = [name for name in TOGETHER if name in getattr(item, "fixturenames", ())]
        if needed and _together(item.nodeid) != needed[0]:
            raise pytest.UsageError(
                f"{item.path} uses the fixture {needed[0]}: name it in tests/fix_shares.py, so that one process runs all that do"
            )
    items.sort(key=_turn)


def _together(nodeid: str) -> str | None:
    """The costly fixture that a test needs, or None."""
    module = "/".join(PurePath(nodeid.partition("::")[0]).parts[-2:])
    return next((name for name, modules in TOGETHER.items() if module in modules), None)


def _turn(item: pytest.Item) -> tuple[bool, int]:
    return _together(item.nodeid) is None, LONG_FIRST.index(item.path.parent.name)
