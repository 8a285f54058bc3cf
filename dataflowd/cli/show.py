"""Prints answers: tables, JSON, times, sizes, questions to the person, and the progress of work that takes long.

On a terminal a table is fitted to the width and statuses are coloured. Elsewhere the same cells are aligned, and nothing is
coloured, left out or cut, so that other programs can read them. Text from the database is masked and escaped.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import typer

from dataflowd.cli.output import bold, coloured, columns, say, say_json
from dataflowd.model.errors import EXIT, NotAllowedError
from dataflowd.model.masking import mask, printable
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

GREEN, CYAN, RED, YELLOW, MAGENTA = (f"\x1b[{number}m" for number in (32, 36, 31, 33, 35))
STYLES = {
    "READY": GREEN,
    "DONE": GREEN,
    "ALIVE": GREEN,
    "RUNNING": CYAN,
    "WAITS_FOR_SPARK": YELLOW,
    "FAILED": RED,
    "LOST": RED,
    "GONE": RED,
    "CANCELLED": MAGENTA,
    "RESUBMIT": YELLOW,
    "HOLD": MAGENTA,
    "PENDING": MAGENTA,
    "PAUSED": YELLOW,
}
# Columns that hold sentences. Such a column is always the last of its table.
FREE_TEXT = {"error", "reason", "why", "description", "place"}
LEAST_TEXT = 16
GAP = "  "
CUT = "..."
PREVIEWED = 20
WHOLE_COLUMNS = 2
SIGN_OF_LIFE_SECONDS = 1.0
MINUTE, HOUR, DAY = 60, 3600, 86400
KIBI = 1024


def on_terminal() -> bool:
    return sys.stdout.isatty()


def cell(value: Any) -> str:
    """Returns one value as a person reads it."""
    match value:
        case None:
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case datetime():
            text = moment(value)
        case list():
            text = ", ".join(map(cell, value)) or "-"
        case float():
            text = f"{value:.1f}"
        case dict():
            text = json.dumps(value, ensure_ascii=False)
        case _:
            text = str(value)
    return printable(mask(text))


def moment(value: datetime | str | None) -> str:
    """Returns a time in this host's zone, to the second."""
    if value is None:
        return "-"
    read = datetime.fromisoformat(value) if isinstance(value, str) else value
    return read.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < MINUTE:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02}h"


def size(number: int | None) -> str:
    if number is None:
        return "-"
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < KIBI:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= KIBI
    return f"{amount:.1f} TiB"


def first_line(text: str | None) -> str | None:
    return text.strip().partition("\n")[0] if text else text


def marked(status: str, row: Mapping[str, Any], *marks: str) -> str:
    """Returns a status with what a reader of the data has to know: the version, or an input of it, was made by force."""
    missing, of_forced = row.get("missing"), row.get("forced_inputs")
    all_marks = [
        *marks,
        "forced" if row["forced"] else "",
        f"{counted(len(missing), 'input')} missing" if missing else "",
        "of forced inputs" if of_forced else "",
    ]
    text = ", ".join(filter(None, all_marks))
    return f"{status} ({text})" if text else status


def with_params(row: Mapping[str, Any]) -> str:
    """Returns the parameters that replaced the job's own for this attempt."""
    given = row["params"] or {}
    return "".join(
        f" {name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(given.items())
    )


def folded(text: str, *, taken: int = 0, indent: int = 0) -> str:
    """On a terminal, breaks the text between words. `taken`: columns before the first line; `indent`: of the other lines."""
    if not on_terminal():
        return text
    return textwrap.fill(
        text,
        shutil.get_terminal_size().columns,
        initial_indent=" " * taken,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )[taken:]


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], nothing: str = "") -> None:
    """Prints an aligned table; on a terminal fitted to its width, with numbers to the right and statuses in colour.

    `nothing` is printed instead of a table without rows.
    """
    found = [list(row) for row in rows]
    if nothing and not found:
        say(nothing)
        return
    cells = [[cell(value) for value in row] for row in found]
    if not on_terminal():
        for line in columns([list(headers), *cells]):
            say(line)
        return
    width = shutil.get_terminal_size().columns
    shown, widths = fit(headers, cells, width)
    is_number = {
        place: all(isinstance(row[place], int | float | Decimal | None) for row in found) for place in shown
    }
    say(bold(_line([headers[place] for place in shown], [is_number[place] for place in shown], widths)))
    for row in cells:
        say(_line([row[place] for place in shown], [is_number[place] for place in shown], widths))
    if left_out := [header for place, header in enumerate(headers) if place not in shown]:
        note = f"(left out for want of space: {', '.join(left_out)}; --json has all)"
        say(textwrap.fill(note, width, break_on_hyphens=False))


def fit(headers: Sequence[str], cells: list[list[str]], width: int) -> tuple[list[int], list[int]]:
    """Returns which columns fit into the width, and the width of each.

    The first columns, which say what a row is about, stay. Free text at the end is cut first, then columns before it are left out.
    """
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    shown = list(range(len(headers)))
    ends_in_text = headers[-1] in FREE_TEXT

    def needed() -> int:
        text = min(widths[-1], LEAST_TEXT) if ends_in_text else widths[shown[-1]]
        return sum(widths[place] + len(GAP) for place in shown[:-1]) + text

    while needed() > width and len(shown) > WHOLE_COLUMNS:
        shown.pop(-2 if ends_in_text and len(shown) > WHOLE_COLUMNS + 1 else -1)
    room = width - sum(widths[place] + len(GAP) for place in shown[:-1])
    return shown, [*(widths[place] for place in shown[:-1]), max(1, min(widths[shown[-1]], room))]


def _line(texts: list[str], numeric: list[bool], widths: list[int]) -> str:
    drawn = []
    for text, is_number, width in zip(texts, numeric, widths, strict=True):
        short = text if len(text) <= width else text[: max(0, width - len(CUT))] + CUT
        padded = short.rjust(width) if is_number else short.ljust(width)
        drawn.append(coloured(padded, STYLES[text]) if text in STYLES else padded)
    return GAP.join(drawn).rstrip()


def as_json(value: Any) -> None:
    """Prints JSON, with times in ISO 8601 with their zone, and text without secrets."""
    say_json(plain(value))


def json_row(row: dict[str, Any]) -> str:
    """Returns one element of a list as JSON, with the indentation that it has in the list."""
    return textwrap.indent(json.dumps(plain(row), default=str, indent=2), "  ")


def plain(value: Any) -> Any:

    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case datetime():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case str():
            return mask(value)
    return value


def preview(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints the first rows, and how many more there are."""
    table(headers, rows[:PREVIEWED])
    if len(rows) > PREVIEWED:
        say(f"... and {len(rows) - PREVIEWED:,} more; --json lists all")


def confirm(question: str, *, yes: bool) -> None:
    """Asks on a terminal. Elsewhere nobody would answer, so the command is refused."""
    if yes:
        return
    sys.stdout.flush()
    if not sys.stdin.isatty():
        raise NotAllowedError(
            f"{question.rstrip('?')} needs a yes, and there is no terminal to ask at",
            "give --yes when it is right",
        )
    if not typer.confirm(question):
        sys.stderr.write("not done\n")
        raise typer.Exit(EXIT["NOT_ALLOWED"])


@contextmanager
def sign_of_life(doing: str) -> Iterator[None]:
    """Shows the seconds on a terminal while something takes longer than a second."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()

    def tell() -> None:
        waited = 0
        while not done.wait(SIGN_OF_LIFE_SECONDS):
            waited += 1
            sys.stderr.write(f"\r{doing}: {waited} s")
            sys.stderr.flush()
        if waited:
            sys.stderr.write("\r\x1b[K")

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


class Progress:
    """A progress bar on stderr, on a terminal only, for work that takes longer than a second."""

    def __init__(self, doing: str, total: int) -> None:

        self._doing, self._total, self._done = doing, max(total, 1), 0
        self._shown_from = time.monotonic() + SIGN_OF_LIFE_SECONDS
        self._is_shown = False

    def advance(self, steps: int) -> None:

        self._done += steps
        if sys.stderr.isatty() and time.monotonic() >= self._shown_from:
            self._is_shown = True
            width = 30
            filled = "#" * (width * min(self._done, self._total) // self._total)
            sys.stderr.write(f"\r{self._doing} [{filled:<{width}}] {self._done:,} of {self._total:,}\x1b[K")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
