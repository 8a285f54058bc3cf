"""Sets bad records aside, in the same pass that reads or writes the good ones.

A sieve is a watch (_watch.py) on the rows: it counts all rows and the bad rows, and keeps the bad rows themselves, so that
the source is scanned once. It refers to every column: Spark would otherwise not read the columns that the job does not use,
and would miss a record that is broken only there. At most KEPT records are kept. If there are more, the attempt fails,
because a bad record that is neither published nor stored would be lost.

Records that a file's format cannot parse are only counted in that pass. If there are some, a second read of the file fetches
them. Most chunks have none, and keeping records in the first pass would make every chunk slower.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError
from dataflowd.model.formats import CORRUPT_COLUMN
from dataflowd.model.plural import agreeing, counted
from dataflowd.sdk import _repairs
from dataflowd.sdk._repairs import DROPPED_COLUMN, FILE_COLUMN
from dataflowd.sdk._watch import Watch
from dataflowd.storage.checks import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

KEPT = 10_000
RECORD_CHARACTERS = 4000
ITEM_CHARACTERS = 200
WHOLE_COLUMN = "_dataflow_whole"  # all columns of a bad row as JSON; NULL for a good row
ITEM_COLUMN = "_dataflow_item"


@dataclass(frozen=True)
class Bad:
    item: str
    code: str
    reason: str
    record: str
    source: str | None
    mark: str | None = None  # identifies the record when its run is repeated
    parsed: dict[str, Any] | None = None  # for a text: its columns, as far as they could be read

    def document(self) -> dict[str, Any]:
        details = {"record": _parsed(self.record), "source": self.source}
        details |= {} if self.mark is None else {"mark": self.mark}
        details |= {} if self.parsed is None else {"parsed": self.parsed}
        return {"item": self.item, "code": self.code, "reason": self.reason, "details": details}


@dataclass(frozen=True)
class Sieve:
    """One place in the job's plan where bad rows are set aside."""

    name: str
    code: str
    reason: str
    watch: Watch
    fetch: Callable[[], str | None] | None = None  # reads the bad records, if the watch only counts them
    columns: tuple[str, ...] = ()  # the columns of a text that could not be parsed
    every: tuple[str, ...] = ()  # all columns of a record; its JSON leaves out those that are NULL

    def seen(self) -> Seen:
        values = self.watch.values()
        rows, bad, dropped = int(values["rows"]), int(values["bad"]), int(values.get("dropped", 0))
        found = values.get("kept") if self.fetch is None else self.fetch() if bad else None
        kept = tuple(
            Bad(
                row["item"],
                self.code,
                self.reason,
                self._with_nulls(row.get("record", "")),
                row.get("source"),
                row["mark"],
                self._parsed(row.get("whole")),
            )
            for row in json.loads(found or "[]")
        )
        if len(kept) < min(bad, KEPT):
            raise AttemptError(
                "WRONG_DATA",
                f"{counted(bad, 'bad record')} were counted in {self.name}, and only {len(kept)} of them could be read again",
                "the source was changed while it was read: wait until it is complete",
            )
        return Seen(self.name, rows, bad, dropped, kept)

    def _with_nulls(self, record: str) -> str:
        """Adds the columns that are NULL, so that a person sees which columns can be filled in."""
        found = _parsed(record)
        if not isinstance(found, dict):
            return record
        return json.dumps(dict.fromkeys(self.every) | found, ensure_ascii=False)

    def _parsed(self, whole: str | None) -> dict[str, Any] | None:
        read = {} if whole is None else json.loads(whole)
        return {name: read.get(name) for name in self.columns} or None


@dataclass(frozen=True)
class Seen:
    name: str
    rows: int  # good, bad and dropped
    bad: int
    dropped: int  # dropped by a person after an earlier attempt
    kept: tuple[Bad, ...]


def sieve(  # noqa: PLR0913 - a bad record is stored with all of these
    frame: DataFrame, *, name: str, is_bad: Column, code: str, reason: str, item: Column | None = None
) -> tuple[Sieve, DataFrame]:
    """The sieve, and the good rows.

    The aggregates are texts, because each text is one call into the JVM; building an expression takes dozens of calls.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    has_dropped = DROPPED_COLUMN in frame.columns
    marked, kept = _marked(frame, is_bad & ~F.col(DROPPED_COLUMN) if has_dropped else is_bad, item)
    bad = F.expr(f"count({WHOLE_COLUMN}) AS bad")
    watch = Watch(marked, [F.expr("count(1) AS rows"), bad, F.expr(f"{kept} AS kept"), *_dropped(frame)])
    good = watch.frame.where(f"{WHOLE_COLUMN} IS NULL{_and_not_dropped(frame)}")
    every = tuple(column for column in frame.columns if column not in _repairs.OWN_COLUMNS)
    return Sieve(name, code, reason, watch, every=every), good.drop(
        FILE_COLUMN, DROPPED_COLUMN, WHOLE_COLUMN, ITEM_COLUMN
    )


def unbroken(frame: DataFrame, *, name: str, code: str, reason: str) -> tuple[Sieve, DataFrame]:
    """As sieve, for records that the format could not parse. It finds them by CORRUPT_COLUMN, and removes that column."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    is_bad = f"{CORRUPT_COLUMN} IS NOT NULL{_and_not_dropped(frame)}"
    every = ", ".join(quoted(column) for column in frame.columns)
    bad = F.expr(f"count(CASE WHEN {is_bad} THEN struct({every}) END) AS bad")
    watch = Watch(frame, [F.expr("count(1) AS rows"), bad, *_dropped(frame)])

    def fetch() -> str | None:
        marked, kept = _marked(frame, F.expr(is_bad), None, CORRUPT_COLUMN)
        row = marked.agg(F.expr(kept)).first()
        return None if row is None else row[0]

    good = watch.frame.where(f"{CORRUPT_COLUMN} IS NULL{_and_not_dropped(frame)}")
    columns = tuple(
        column for column in frame.columns if column not in {CORRUPT_COLUMN, *_repairs.OWN_COLUMNS}
    )
    return Sieve(name, code, reason, watch, fetch, columns), good.drop(
        FILE_COLUMN, DROPPED_COLUMN, CORRUPT_COLUMN
    )


def _dropped(frame: DataFrame) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return [F.expr(f"count_if({DROPPED_COLUMN}) AS dropped")] if DROPPED_COLUMN in frame.columns else []


def _and_not_dropped(frame: DataFrame) -> str:
    return f" AND NOT {DROPPED_COLUMN}" if DROPPED_COLUMN in frame.columns else ""


def _marked(
    frame: DataFrame, is_bad: Column, item: Column | None, record: str = WHOLE_COLUMN
) -> tuple[DataFrame, str]:
    """The rows with WHOLE_COLUMN, and the aggregate that keeps the bad rows.

    WHOLE_COLUMN is one expression: if a plan repeats an expression, Spark's optimiser works on each copy.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    marks = [F.when(is_bad, F.expr(_repairs.whole(frame))).alias(WHOLE_COLUMN)]
    marks += [] if item is None else [item.cast("string").alias(ITEM_COLUMN)]
    marked = _repairs.with_file(frame, *marks)
    source = FILE_COLUMN if FILE_COLUMN in marked.columns else "CAST(NULL AS string)"
    # A record without an item is named by the hash of its content.
    itself = _repairs.mark(WHOLE_COLUMN) if item is None else f"coalesce({ITEM_COLUMN}, 'NULL')"
    # NULL if it is too long: a part of it would be no JSON.
    read = f"CASE WHEN length({WHOLE_COLUMN}) <= {2 * RECORD_CHARACTERS} THEN {WHOLE_COLUMN} END AS whole"
    kept = (
        f"struct(left({itself}, {ITEM_CHARACTERS}) AS item, left({record}, {RECORD_CHARACTERS}) AS record, "
        f"{source} AS source, {_repairs.mark(WHOLE_COLUMN)} AS mark{'' if record == WHOLE_COLUMN else f', {read}'})"
    )
    # One string, because ten thousand structures would be pickled one by one.
    return marked, (
        f"to_json(min_by(CASE WHEN {WHOLE_COLUMN} IS NOT NULL THEN {kept} END, "
        f"CASE WHEN {WHOLE_COLUMN} IS NOT NULL THEN xxhash64({WHOLE_COLUMN}) END, {KEPT}))"
    )


def documents(seen: list[Seen]) -> list[dict[str, Any]]:
    """In the form that dataflow.finish takes. Equal items get a number, because each record is stored by its item."""
    times: Counter[str] = Counter()
    found = []
    for bad in (bad for one in seen for bad in one.kept):
        times[bad.item] += 1
        document = bad.document()
        if times[bad.item] > 1:
            document["item"] = f"{bad.item}#{times[bad.item]}"
        found.append(document)
    return found


def check_limit(seen: list[Seen], limit: float | None, read: int = 0) -> None:
    """Raises QUARANTINE_LIMIT. `limit`: a count, or a float that is a share of the records that the attempt has read."""
    for one in seen:
        if one.bad > KEPT:
            raise AttemptError(
                "QUARANTINE_LIMIT",
                f"{one.bad} of {agreeing(one.rows, 'record', 'is', 'are')} bad in {one.name}, and at most {KEPT} can be set aside; "
                f"for example {_example(one)}",
                "correct the source, or the condition that calls them bad",
            )
    if limit is None:
        return
    # If the job reads its data without ctx.read, the share is taken of the rows that came to a sieve.
    bad, rows = sum(one.bad for one in seen), read or max((one.rows for one in seen), default=0)
    allowed = limit * rows if isinstance(limit, float) else limit
    if bad > allowed:
        worst = max(seen, key=lambda one: one.bad)
        shown = f"{limit:.2%}" if isinstance(limit, float) else str(limit)
        raise AttemptError(
            "QUARANTINE_LIMIT",
            f"{bad} of {agreeing(rows, 'record', 'is', 'are')} bad, and the job allows {shown}; for example {_example(worst)}",
            "correct the source, or raise quarantine in the job",
        )


def _example(seen: Seen) -> str:
    return f"{seen.kept[0].item}: {seen.kept[0].reason}: {seen.kept[0].record}" if seen.kept else "none"


def _parsed(record: str) -> Any:
    """A record that is JSON is stored as JSON, so that it can be queried; any other record as its text."""
    try:
        return json.loads(record)
    except ValueError:
        return record
