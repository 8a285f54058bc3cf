"""Registers the fixtures as plugins, one module a topic, so that a reader of a test finds them by name."""

from __future__ import annotations

import signal

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
    "tests.fix_spark",
    "tests.fix_tables",
    "tests.fix_world",
]


def pytest_configure() -> None:
    """SIGTERM ends the session as Ctrl-C does, so that the session stops the programs that it started.

    A shell that starts the tests in the background makes them ignore SIGINT; their programs would inherit this.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
