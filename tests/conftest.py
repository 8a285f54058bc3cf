"""Fixtures are plugins, one module a topic, so that a test's reader finds them by name."""

from __future__ import annotations

import signal

pytest_plugins = ["tests.fix_daemon", "tests.fix_leaks", "tests.fix_postgres", "tests.fix_world"]


def pytest_configure() -> None:
    """A terminated session still stops what it started, as an interrupted one does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
