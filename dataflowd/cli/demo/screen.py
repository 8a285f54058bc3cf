"""Shows moments of the demo: drawn in place on a terminal, as lines elsewhere.

On a terminal the cursor goes back to the frame's first line and each line is overwritten. So the earlier output stays in the
scrollback, and nothing flickers. If the frame does not fit, or the output is not a terminal, a moment is one line, written
when something has changed, and at most every PLAIN_SECONDS.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from dataflowd.cli.demo import frame
from dataflowd.cli.output import coloured, unicode_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.cli.demo.frame import Moment, Note

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
UP, TO_END_OF_LINE, TO_END_OF_SCREEN = "\x1b[{}A", "\x1b[K", "\x1b[J"
PLAIN_SECONDS = 5.0


class Screen:
    """Shows one moment after another. Use it as a context manager: it hides the cursor, and shows it again at the end."""

    def __init__(self) -> None:
        self._drawn = 0
        self._told: tuple[str, float] = ("", 0.0)
        self._noted = 0

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            sys.stdout.write(HIDE_CURSOR)
        return self

    def __exit__(self, *_: object) -> None:
        # A terminal that was closed needs no cursor.
        with suppress(OSError):
            if sys.stdout.isatty():
                sys.stdout.write(SHOW_CURSOR)
                sys.stdout.flush()

    def show(self, moment: Moment, *, is_last: bool = False) -> None:
        size = shutil.get_terminal_size()
        is_unicode = unicode_output()
        width = min(size.columns, frame.WIDEST) - 1
        drawn = frame.lines(moment, width, is_unicode=is_unicode, paint=coloured)
        while is_last and not drawn[-1]:
            drawn.pop()
        if sys.stdout.isatty() and size.columns >= frame.NARROWEST and len(drawn) < size.lines:
            self._draw(drawn)
        else:
            self._tell(moment, is_last=is_last)
        sys.stdout.flush()

    def _draw(self, drawn: list[str]) -> None:
        back = UP.format(self._drawn) if self._drawn else ""
        body = "".join(f"{line}{TO_END_OF_LINE}\n" for line in drawn)
        sys.stdout.write(f"{back}\r{body}{TO_END_OF_SCREEN}")
        self._drawn = len(drawn)

    def _tell(self, moment: Moment, *, is_last: bool) -> None:
        self._tell_notes(moment.notes[self._noted :])
        self._noted = len(moment.notes)
        news, now = frame.news(moment), time.monotonic()
        last, at = self._told
        if news != last and (is_last or now - at >= PLAIN_SECONDS):
            sys.stdout.write(f"{frame.clock(moment.seconds)}  {news}\n")
            self._told = (news, now)

    def _tell_notes(self, notes: Sequence[Note]) -> None:
        for note in notes:
            sys.stdout.write(f"{note.at}  {note.text}\n")
