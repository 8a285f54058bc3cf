"""Makes the lines of a frame, which shows one moment of the demo, from what the database says.

A frame always has the same lines in the same places, so that nothing moves: head, a bar for each job, a map with one
character a chunk, and the last notes. This module uses neither a terminal nor a clock: the same moment gives the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from dataflowd.cli.show import CYAN, GREEN, MAGENTA, RED, YELLOW

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BOLD, DIM = "\x1b[1m", "\x1b[2m"
LABEL = 16
BAR = 32
NOTES = 4
WEEK = 7
MINUTE = 60
NARROWEST, WIDEST = 60, 80

ABSENT = " "
# The letters of dataflow.chunk_map: the character with and without Unicode, the colour, the meaning.
CELLS: dict[str, tuple[str, str, str, str]] = {
    ".": ("■", ".", GREEN, "ready"),
    "?": ("□", "?", YELLOW, "not validated"),
    "R": ("▶", "R", CYAN, "running"),
    "F": ("✗", "F", RED, "failed"),
    "s": ("↻", "s", YELLOW, "again"),
    "H": ("‖", "H", MAGENTA, "held"),
    ABSENT: ("·", "-", DIM, "not there"),
}
LEGEND = (".", "R", "F", "s", ABSENT)

Span: TypeAlias = tuple[str, str]  # text, and its colour or nothing
Line: TypeAlias = list[Span]


@dataclass(frozen=True)
class Bar:
    """The progress of one job."""

    job: str
    total: int
    done: int = 0
    running: int = 0
    failed: int = 0
    retrying: int = 0


@dataclass(frozen=True)
class Chunks:
    """A dataset: a letter of chunk_map, or ABSENT, for each dataid."""

    dataset: str
    letters: str


@dataclass(frozen=True)
class Note:
    at: str
    text: str
    colour: str = ""


@dataclass(frozen=True)
class Moment:
    title: str
    seconds: float
    running: int
    limit: int
    bars: Sequence[Bar]
    chunks: Sequence[Chunks]
    notes: Sequence[Note] = field(default_factory=tuple)


def lines(moment: Moment, width: int, *, is_unicode: bool, paint: Callable[[str, str], str]) -> list[str]:
    found = [
        _head(moment, width, is_unicode=is_unicode),
        [],
        *(_bar(bar, is_unicode=is_unicode) for bar in moment.bars),
        [],
        _axis(moment.chunks),
        *(_cells(row, is_unicode=is_unicode) for row in moment.chunks),
        _legend(is_unicode=is_unicode),
        [],
        *_notes(moment.notes),
    ]
    return [_painted(line, width, paint) for line in found]


def news(moment: Moment) -> str:
    """The moment in one line, without the clock."""
    done = ", ".join(_counted(bar) for bar in moment.bars)
    return f"running {moment.running} of {moment.limit}; {done}"


def clock(seconds: float) -> str:
    return f"{int(seconds) // MINUTE}:{int(seconds) % MINUTE:02}"


def _counted(bar: Bar) -> str:
    failed = f", {bar.failed} failed" if bar.failed else ""
    return f"{bar.job} {bar.done} of {bar.total}{failed}"


def _head(moment: Moment, width: int, *, is_unicode: bool) -> Line:
    full, empty = ("▮", "▯") if is_unicode else ("#", ".")
    lamps = full * moment.running + empty * max(0, moment.limit - moment.running)
    count, time = f" {moment.running} of {moment.limit}", f"   {clock(moment.seconds)}"
    taken = sum(map(len, (moment.title, "running ", lamps, count, time)))
    gap = " " * max(2, width - taken)
    return [(moment.title, BOLD), (gap + "running ", ""), (lamps, CYAN), (count, BOLD), (time, DIM)]


def _bar(bar: Bar, *, is_unicode: bool) -> Line:
    full, empty = ("━", "─") if is_unicode else ("#", "-")
    parts = [(bar.done, GREEN), (bar.failed, RED), (bar.running, CYAN)]
    # Rounding the ends instead of the lengths keeps the sum of the parts exact.
    ends = [sum(count for count, _ in parts[: index + 1]) for index in range(len(parts))]
    places = [0, *(min(BAR, round(end * BAR / max(bar.total, 1))) for end in ends)]
    filled = [(full * (places[index + 1] - places[index]), colour) for index, (_, colour) in enumerate(parts)]
    trouble = f"{bar.retrying} tried again" if bar.retrying else f"{bar.failed} failed" if bar.failed else ""
    return [
        (bar.job.ljust(LABEL), ""),
        *filled,
        (empty * (BAR - places[-1]), DIM),
        (f"  {bar.done:>3} of {bar.total:<3}", ""),
        (f"  {trouble}", YELLOW if bar.retrying else RED),
    ]


def _axis(chunks: Sequence[Chunks]) -> Line:
    """The days of the month, a week apart, above their chunks."""
    days = max(len(row.letters) for row in chunks)
    marks = "".join(str(day).ljust(2 * WEEK) for day in range(1, days + 1, WEEK))
    return [(" " * LABEL + marks.rstrip(), DIM)]


def _cells(row: Chunks, *, is_unicode: bool) -> Line:
    drawn: Line = [(row.dataset.ljust(LABEL), "")]
    for letter in row.letters:
        pretty, ascii_letter, colour, _ = CELLS[letter]
        drawn.append((f"{pretty if is_unicode else ascii_letter} ", colour))
    return drawn


def _legend(*, is_unicode: bool) -> Line:
    drawn: Line = [(" " * LABEL, "")]
    for letter in LEGEND:
        pretty, ascii_letter, colour, meaning = CELLS[letter]
        drawn += [(pretty if is_unicode else ascii_letter, colour), (f" {meaning}   ", DIM)]
    return drawn


def _notes(notes: Sequence[Note]) -> list[Line]:
    shown: list[Line] = [[(f"{note.at:>5}  ", DIM), (note.text, note.colour)] for note in notes[-NOTES:]]
    return shown + [[] for _ in range(NOTES - len(shown))]


def _painted(line: Line, width: int, paint: Callable[[str, str], str]) -> str:
    """The line in colour, cut to the width; the codes of colours take no width."""
    drawn, room = [], width
    for text, colour in line:
        cut = text[:room]
        room -= len(cut)
        drawn.append(paint(cut, colour) if cut.strip() and colour else cut)
    return "".join(drawn).rstrip()
