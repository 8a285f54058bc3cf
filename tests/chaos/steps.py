"""The computations of the chaos pipeline's jobs, as plain functions of rows and of the version of the code.

The checker calls them directly, in one thread. The scripts of the process engine are copies of this file with another
VERSION. So a difference comes from the path of the data and not from different arithmetic.
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
Inputs = dict[str, dict[str, Rows]]  # dataset without its prefix -> dataid -> rows


def raw(number: int) -> Rows:
    """The rows of a chunk from outside: number of the chunk, key and value."""
    return [(number, key, (number * 7919 + key * 104_729) % PRIME) for key in range(ROWS)]


def clean(rows: Rows, version: int) -> tuple[Rows, Rows]:
    """Fan-out: all rows, and the rows with an odd value together with the first row."""
    cleaned: Rows = [(number, key, value * (version + 1) % PRIME, version) for number, key, value in rows]
    return cleaned, [row for row in cleaned if row[2] % 2 or row[1] == 0]


def join(cleaned: Rows, odd: Rows, version: int) -> Rows:
    """Fan-in of two datasets that the same job made."""
    keys = {row[1] for row in odd}
    return [
        (number, key, value, made_by, int(key in keys), version) for number, key, value, made_by in cleaned
    ]


def total(joined: list[Rows], version: int) -> Rows:
    """Fan-in of a window: one row for each of its chunks."""
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


def number_of(dataid: str) -> int:
    """The digits of a dataid as a number: of a chunk, an hour or a day."""
    return int("".join(filter(str.isdigit, dataid)) or "0")


def sums(chunks: dict[str, Rows], version: int) -> Rows:
    """One row for each chunk that was read."""
    return [(number_of(dataid), sum(map(sum, rows)), version) for dataid, rows in sorted(chunks.items())]


def reference() -> Rows:
    return [(1, PRIME)]


def computed(step: str, inputs: Inputs, version: int) -> dict[str, Rows]:
    """The rows that a run makes from these inputs, for every output that the job may have."""
    read = [sums(inputs.get(name, {}), version) for name in READ.get(step, ())]
    if step == "clean":
        cleaned, odd = clean([row for rows in inputs.get("raw", {}).values() for row in rows], version)
        return {"clean": cleaned, "odd": odd}
    if step == "join":
        first, second = (
            [row for rows in inputs.get(name, {}).values() for row in rows] for name in ("clean", "odd")
        )
        return {"joined": join(first, second, version)}
    if step == "total":
        return {"total": total([rows for _, rows in in_order(inputs.get("joined", {})) if rows], version)}
    found = [row for rows in read for row in rows]
    # A run that was forced without inputs still has an output of one row.
    return {name: [(0, place, version), *found] for place, name in enumerate(MADE[step])}


def in_order(chunks: dict[str, Rows]) -> list[tuple[str, Rows]]:
    return sorted(chunks.items(), key=lambda each: number_of(each[0]))


READ = {
    "trend": ("joined", "clean"),
    "ledger": ("total", "rates"),
    "summary": ("total",),
    "daily": ("hours",),
    "stamp": ("clock", "rates"),
    "left": ("total",),
    "right": ("total",),
    "late": ("total",),
}
MADE = {
    "trend": ("trend",),
    "ledger": ("ledger", "audit"),
    "summary": ("summary",),
    "daily": ("daily",),
    "stamp": ("stamp",),
    "left": ("lefts", "side"),
    "right": ("rights", "side"),
    "late": ("late",),
}


def read(directory: Path) -> Rows:
    files = [directory] if directory.is_file() else sorted(directory.glob("*.csv"))
    lines = [line for path in files for line in path.read_text(encoding="ascii").splitlines()]
    return [tuple(map(int, line.split(","))) for line in lines]


def text(rows: Rows) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def _write(dataset: str, rows: Rows, pause: float) -> None:
    """Writes two files with a pause between them: a script that is killed there leaves half of a chunk."""
    directory = Path(os.environ[f"{dataset}_location"])
    half = len(rows) // 2
    (directory / "part-1.csv").write_text(text(rows[:half]), encoding="ascii")
    time.sleep(pause)
    (directory / "part-2.csv").write_text(text(rows[half:]), encoding="ascii")
    with Path(os.environ["DATAFLOW_REPORT"]).open("a", encoding="ascii") as report:
        report.write(f'{{"rows": {len(rows)}, "dataset": "{dataset}"}}\n')


def _inputs(prefix: str) -> Inputs:
    """The inputs that the environment names. An input without a location (an hour, a period of a calendar) has no rows."""
    found: Inputs = {}
    for variable, kind in os.environ.items():
        name, _, column = variable.removeprefix(f"{prefix}_").rpartition("_")
        if not variable.startswith(f"{prefix}_") or column != "itemtype" or kind != "IN":
            continue
        numbers = os.environ[f"{prefix}_{name}_dataid"].splitlines()
        places = os.environ[f"{prefix}_{name}_location"].splitlines()
        rows = [read(Path(place)) for place in places] or [[] for _ in numbers]
        found[name] = dict(zip(numbers, rows, strict=True))
    return found


def main(step: str, prefix: str) -> None:
    number = number_of(os.environ["dataid"])  # noqa: SIM112 - the variable's name
    # Jobs in strict order, and jobs with many runs, are quick.
    pause = number * 37 % 11 / 10 if step in {"clean", "join", "total"} else 0.05
    for name, rows in computed(step, _inputs(prefix), VERSION).items():
        if os.environ.get(f"{prefix}_{name}_itemtype") == "OUT":
            _write(f"{prefix}_{name}", rows, pause)
            pause = 0


if __name__ == "__main__":
    main(*sys.argv[1:3])
