"""The frames that the demo draws, and which directories it accepts. tests/spark runs the demo itself."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from dataflowd.cli.demo import frame
from dataflowd.cli.demo.frame import ABSENT, Bar, Chunks, Moment, Note
from dataflowd.cli.demo.place import MARK
from dataflowd.cli.demo.story import FEWEST_DAYS, WHOLE_MONTH, Month
from dataflowd.model.errors import EXIT
from tests.fix_postgres import run_program
from tests.terminals import open_terminal

DAYS = ["R", "F", "s", ABSENT, "?", "H"]
MOMENT = Moment(
    title="February 2026: 28 days of orders",
    seconds=94.4,
    running=3,
    limit=4,
    bars=[
        Bar("clean_orders", 28, done=20, running=3, failed=1, retrying=0),
        Bar("daily_totals", 28, done=9, retrying=2),
        Bar("monthly_totals", 1),
    ],
    chunks=[
        Chunks("orders", "".join(DAYS) + "." * (WHOLE_MONTH - len(DAYS))),
        Chunks("monthly_totals", ABSENT),
    ],
    notes=[Note(f"0:0{number}", f"note {number} " + "x" * 80) for number in range(6)],
)


def unpainted(text: str, _colour: str) -> str:
    return text


def painted(text: str, colour: str) -> str:
    return f"<{colour[1:]}{text}>"


def drawn(width: int, *, is_unicode: bool = True) -> list[str]:
    return frame.lines(MOMENT, width, is_unicode=is_unicode, paint=unpainted)


@pytest.mark.parametrize("width", [frame.NARROWEST, 79, 200])
def test_a_frame_fits_and_has_always_the_same_lines(width: int) -> None:
    quiet = Moment("February", 0, 0, 1, MOMENT.bars, MOMENT.chunks)
    assert all(len(line) <= width for line in drawn(width))
    assert len(drawn(width)) == len(frame.lines(quiet, width, is_unicode=True, paint=unpainted))


def test_a_frame_shows_limits_progress_and_each_chunk_in_its_place() -> None:
    lines = drawn(79)
    assert lines[0].startswith("February 2026: 28 days of orders  ")
    assert lines[0].endswith("running ▮▮▮▯ 3 of 4   1:34")
    assert lines[2].split() == ["clean_orders", "━" * 27 + "─" * 5, "20", "of", "28", "1", "failed"]
    assert lines[3].endswith("9 of 28   2 tried again")
    assert lines[6].split() == ["1", "8", "15", "22"]
    assert lines[7].split() == ["orders", "▶", "✗", "↻", "·", "□", "‖", *("■" * 22)]
    assert lines[7].index("■") == lines[6].index("8") - 2
    assert [line.split()[2] for line in lines[-4:]] == ["2", "3", "4", "5"]


def test_a_frame_is_ascii_where_the_locale_knows_no_other() -> None:
    lines = drawn(79, is_unicode=False)
    assert all(line.isascii() for line in lines)
    assert lines[0].endswith("running ###. 3 of 4   1:34")
    assert lines[7].split()[:7] == ["orders", "R", "F", "s", "-", "?", "H"]


def test_colours_take_no_width_and_blanks_are_not_coloured() -> None:
    lines = frame.lines(MOMENT, 79, is_unicode=True, paint=painted)
    assert "<[31m✗ >" in lines[7]
    assert "< " not in "".join(lines).replace("<[2m ", "")


def test_in_a_pipe_a_moment_is_one_line() -> None:
    assert frame.news(MOMENT) == (
        "running 3 of 4; clean_orders 20 of 28, 1 failed, daily_totals 9 of 28, monthly_totals 0 of 1"
    )


ON_A_TERMINAL = """
import dataclasses
from dataflowd.cli.show import folded
from dataflowd.cli.demo.screen import Screen
from tests.unit.test_demo import MOMENT
print("| " + folded("word " * 40, taken=2, indent=4))
with Screen() as screen:
    screen.show(MOMENT)
    screen.show(dataclasses.replace(MOMENT, running=4, notes=[]), is_last=True)
"""


def test_on_a_terminal_a_moment_is_drawn_over_the_last_one() -> None:
    master, terminal = open_terminal()
    try:
        drawn_by = subprocess.run(
            [sys.executable, "-c", ON_A_TERMINAL],
            cwd=Path(__file__).parents[2],
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            stdout=terminal,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert drawn_by.returncode == 0, drawn_by.stderr
        seen = os.read(master, 65536).decode().replace("\r\n", "\n")
    finally:
        os.close(master)
        os.close(terminal)
    before, _, frames = seen.partition("\x1b[?25l")
    assert all(len(line) <= 80 for line in before.splitlines())
    assert all(line.startswith("    word") for line in before.splitlines()[1:])
    first, back, second = frames.partition(f"\x1b[{len(drawn(79))}A\r")
    assert back
    assert "\x1b[36m▮▮▮▯\x1b[0m" in first
    assert "\x1b[36m▮▮▮▮\x1b[0m" in second
    # The second frame is shorter: the screen erases the rest of the first one, and shows the cursor again.
    assert second.endswith("\x1b[J\x1b[?25h")


@pytest.mark.parametrize("days", range(FEWEST_DAYS, WHOLE_MONTH + 1))
def test_a_month_of_any_length_has_two_different_days_to_repair(days: int) -> None:
    month = Month(days)
    first, *_, last = month.dataids
    assert all(earlier < later for earlier, later in pairwise([first, month.missing, month.in_cents]))
    assert month.in_cents <= last
    assert len(month.dataids) == days


def demo(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_program("dataflowd", "demo", *options, env={"HOME": str(home)})


def test_a_directory_that_is_no_demo_is_refused_and_left_alone(tmp_path: Path) -> None:
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "letters").write_text("dear")
    file.write_text("dear")
    for place, what in ((full, "is not empty"), (file, "is no directory")):
        for options in ([], ["--clean"]):
            refused = demo(tmp_path, "--dir", str(place), *options)
            assert (refused.returncode, refused.stdout) == (EXIT["NOT_ALLOWED"], "")
            assert f"{place} {what}" in refused.stderr
            assert "remedy: name an" in refused.stderr
    assert (full / "letters").read_text() == file.read_text() == "dear"


def test_clean_removes_no_directory_that_is_not_a_demo(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    left = demo(tmp_path, "--dir", str(tmp_path / "empty"), "--clean")
    assert (left.returncode, left.stdout) == (0, f"there is no demo in {tmp_path / 'empty'}\n")
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    refused = demo(tmp_path, "--dir", "/proc/demo")
    assert refused.returncode == EXIT["NOT_ALLOWED"]
    assert "the demo cannot use /proc/demo: " in refused.stderr


def test_a_place_where_a_demo_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    with (tmp_path / "demo" / MARK).open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        for options in ([], ["--clean"]):
            refused = demo(tmp_path, "--dir", str(tmp_path / "demo"), *options)
            assert refused.returncode == EXIT["LOCKED"]
            assert "a demo runs in" in refused.stderr


def test_a_wrong_option_is_named(tmp_path: Path) -> None:
    for options, what in (
        (["--dayz", "3"], "--dayz"),
        (["--days", "29"], "--days"),
        (["--days", "x"], "--days"),
    ):
        refused = demo(tmp_path, *options)
        assert refused.returncode == EXIT["USAGE"]
        assert what in refused.stderr
