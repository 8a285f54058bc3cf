"""What Parquet files tell about a column without a look at each row: how many values are NULL, the least and the greatest
of each group of rows, and of texts with a dictionary all that occur.

A rule about single values holds for a column when it holds for the values that stand for it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOST_VALUES = 100_000
EARLIEST_YEAR = 1900
PLAIN = "PLAIN"  # the encoding of a page that does without the dictionary


@dataclass
class Summary:
    """Of one column over all files; None for what they do not tell."""

    nulls: int | None = 0
    bounds: list[Any] | None = field(default_factory=list)
    values: list[Any] | None = field(default_factory=list)


def summaries(path: Path, wanted: Mapping[str, bool]) -> dict[str, Summary]:
    """Of these columns of files below the path; with their values where that is True, which costs a look at their pages."""
    from pyarrow import parquet  # noqa: PLC0415

    found = {name: Summary() for name in wanted}
    listed = [name for name, with_values in wanted.items() if with_values]
    for file in sorted(path.rglob("*.parquet")):
        with parquet.ParquetFile(file, read_dictionary=listed) as opened:
            leaves = [opened.schema.column(index).path for index in range(len(opened.schema))]
            for name, summary in found.items():
                # A dot may be a part of a name, or stand before a field of a structure.
                position = leaves.index(name) if name in leaves and "." not in name else None
                for group in range(opened.num_row_groups):
                    _add(summary, opened, group, position)
                if name not in listed:
                    summary.values = None
    return found


def _add(summary: Summary, file: Any, group: int, position: int | None) -> None:
    chunk: Any = None if position is None else file.metadata.row_group(group).column(position)
    statistics = None if position is None else chunk.statistics
    if statistics is None or not statistics.has_null_count:
        summary.nulls = summary.bounds = summary.values = None
        return
    if summary.nulls is not None:
        summary.nulls += statistics.null_count
    if chunk.num_values == statistics.null_count:
        return
    if summary.bounds is not None:
        is_told = statistics.has_min_max and _is_exact(statistics.min)
        summary.bounds = [*summary.bounds, statistics.min, statistics.max] if is_told else None
    if summary.values is not None:
        is_told = chunk.has_dictionary_page and PLAIN not in chunk.encodings
        more = _dictionary(file, group, chunk.path_in_schema) if is_told else None
        summary.values = None if more is None else [*summary.values, *more]


def _is_exact(bound: Any) -> bool:
    """Bounds of a text may be cut, those of a float hide a NaN, and a day of long ago depends on the calendar."""
    return type(bound) in (int, Decimal) or (type(bound) is dt.date and bound.year >= EARLIEST_YEAR)


def _dictionary(file: Any, group: int, name: str) -> list[Any] | None:
    import pyarrow as pa  # noqa: PLC0415

    column = file.read_row_group(group, columns=[name]).column(0)
    if not pa.types.is_dictionary(column.type):
        return None
    dictionaries = [chunk.dictionary for chunk in column.chunks]
    if sum(map(len, dictionaries)) > MOST_VALUES:
        return None
    return [value for dictionary in dictionaries for value in dictionary.to_pylist()]
