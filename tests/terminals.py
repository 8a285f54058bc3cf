"""Pseudo-terminals, for tests of what is drawn on a screen."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

import pytest

LINES = 40


def open_terminal(columns: int = 80) -> tuple[int, int]:
    """The screen's descriptor and the program's. Skips the test where the system has no pseudo-terminals, as in a bare chroot."""
    try:
        screen, terminal = os.openpty()
    except OSError as error:
        pytest.skip(f"needs a pseudo-terminal: {error}")
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    return screen, terminal
