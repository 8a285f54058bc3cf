"""What the jobs of the chaos pipeline compute, as plain functions of rows and of the version of the code.

The checker computes with them, straight and in one thread. The scripts of the process engine are this very file with
another VERSION in it, so that what is compared is the way of the data and not two pieces of arithmetic.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

VERSION = 1
ROWS = 12
WINDOW = 5
PRIME = 1_000_003

Row = tuple[int, ...]
Rows = list[Row]


def raw(number: int) -> Rows:
    """What comes from outside: number of the chunk, key and value."""
    return [(number, key, (number * 7919 + key * 104_729) % PRIME) for key in range(ROWS)]


def clean(rows: Rows, version: int) -> tuple[Rows, Rows]:
    """Fan-out: all rows, and those with an odd value; the first is always among them."""
    cleaned: Rows = [(number, key, value * (version + 1) % PRIME, version) for number, key, value in rows]
    return cleaned, [row for row in cleaned if row[2] % 2 or row[1] == 0]


def join(cleaned: Rows, odd: Rows, version: int) -> Rows:
    """Fan-in of two datasets, which one job made."""
    keys = {row[1] for row in odd}
    return [
        (number, key, value, made_by, int(key in keys), version) for number, key, value, made_by in cleaned
    ]


def total(joined: list[Rows], version: int) -> Rows:
    """Fan-in of a window: a row for each of its chunks."""
    return [
        (
            rows[0][0],
            sum(row[2] for row in rows),
            sum(row[4] for row in rows),
            sum(row[5] for row in rows),
            version,
        )
        for rows in joined
    ]


def read(directory: Path) -> Rows:
    files = [directory] if directory.is_file() else sorted(directory.glob("*.csv"))
    lines = [line for path in files for line in path.read_text(encoding="ascii").splitlines()]
    return [tuple(map(int, line.split(","))) for line in lines]


def text(rows: Rows) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def _write(dataset: str, rows: Rows, pause: float) -> None:
    """In two files with a pause between them: whoever is killed there leaves half of a chunk."""
    directory = Path(os.environ[f"{dataset}_location"])
    half = len(rows) // 2
    (directory / "part-1.csv").write_text(text(rows[:half]), encoding="ascii")
    time.sleep(pause)
    (directory / "part-2.csv").write_text(text(rows[half:]), encoding="ascii")
    with Path(os.environ["DATAFLOW_REPORT"]).open("a", encoding="ascii") as report:
        report.write(f'{{"rows": {len(rows)}, "dataset": "{dataset}"}}\n')


def _inputs(dataset: str) -> dict[int, Rows]:
    numbers = os.environ[f"{dataset}_dataid"].splitlines()
    places = os.environ[f"{dataset}_location"].splitlines()
    return {int(number): read(Path(place)) for number, place in zip(numbers, places, strict=True)}


def main(step: str, prefix: str) -> None:
    number = int(os.environ["dataid"])  # noqa: SIM112 - that is its name
    pause = number * 37 % 11 / 10
    if step == "clean":
        cleaned, odd = clean(_inputs(f"{prefix}_raw")[number], VERSION)
        _write(f"{prefix}_clean", cleaned, pause)
        _write(f"{prefix}_odd", odd, 0)
    elif step == "join":
        joined = join(_inputs(f"{prefix}_clean")[number], _inputs(f"{prefix}_odd")[number], VERSION)
        _write(f"{prefix}_joined", joined, pause)
    else:
        _write(f"{prefix}_total", total(list(_inputs(f"{prefix}_joined").values()), VERSION), pause)


if __name__ == "__main__":
    main(*sys.argv[1:3])
