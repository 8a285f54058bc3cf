"""Handles the signals of a shell: an interrupted session ends all processes that it has started.

SIGINT and SIGTERM interrupt the session once; while fixtures are torn down, further ones are ignored. xdist gives its processes ten
seconds to end and sends them a second SIGINT meanwhile: what is not torn down by then is left to guard.py.
"""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Programs that tests start get the default actions.

    A shell that starts the tests in the background has them ignore SIGINT, and nohup has them ignore SIGHUP: every program that
    they start would inherit that. A handler is not inherited.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _ignore)


def pytest_keyboard_interrupt() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)


def _ignore(_number: int, _frame: object) -> None:
    pass
