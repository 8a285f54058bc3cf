"""Registers the fixtures as plugins, one module a topic, so that a reader of a test finds them by name."""

from __future__ import annotations

from hypothesis import settings

# By default every run tries the same examples. `--hypothesis-profile=explore` tries new ones.
settings.register_profile("repeat", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("repeat")

pytest_plugins = [
    "tests.fix_classes",
    "tests.fix_daemon",
    "tests.fix_leaks",
    "tests.fix_postgres",
    "tests.fix_shares",
    "tests.fix_signals",
    "tests.fix_spark",
    "tests.fix_tables",
    "tests.fix_world",
]
