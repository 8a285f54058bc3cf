"""Summaries of a column from the metadata of Parquet files, without reading the rows: the number of NULLs, the least and the
greatest value of each row group, and for texts with a dictionary all values.

A rule about single values holds for the column if it holds for these values. If the files have no such metadata, or this
module cannot read it, the summary is unknown and the rows must be read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dataflowd.storage import files

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

MOST_VALUES = 100_000
# With any other encoding some pages may not use the dictionary. RLE and BIT_PACKED encode where NULLs are.
OF_A_DICTIONARY = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}


@dataclass
class Summary:
    """The summary of one column over all files; None: not known."""

    nulls: int | None = 0
    bounds: set[Any] | None = field(default_factory=set)
    values: set[Any] | None = field(default_factory=set)

    def forget(self) -> None:
        self.nulls = self.bounds = self.values = None


def summaries(
    path: Path, columns: Collection[str], *, bounded: Collection[str], listed: Collection[str]
) -> dict[str, Summary]:
    """The summaries of these columns over the files below the path; bounds and values only of the columns named there."""
    import pyarrow as pa  # noqa: PLC0415

    found = {
        name: Summary(
            bounds=set() if name in bounded else None,
            values=set() if name in listed else None,
        )
        for name in columns
    }
    try:
        for file in files.local_listing(path):
            _add_file(found, path / file.path)
    except (OSError, pa.ArrowException, ValueError, OverflowError):
        for summary in found.values():
            summary.forget()
    return found


def _add_file(found: dict[str, Summary], file: Path) -> None:
    from pyarrow import parquet  # noqa: PLC0415

    metadata = parquet.read_metadata(file)
    leaves = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    for name, summary in found.items():
        # A dot may be part of a name, or separate a field of a structure.
        if name not in leaves or "." in name:
            summary.forget()
            continue
        chunks = [
            metadata.row_group(group).column(leaves.index(name)) for group in range(metadata.num_row_groups)
        ]
        for chunk in chunks:
            _add(summary, chunk)
        if summary.values is not None:
            _add_values(summary, file, name, chunks)


def _add(summary: Summary, chunk: Any) -> None:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        summary.forget()
        return
    if summary.nulls is not None:
        summary.nulls += statistics.null_count
    if summary.bounds is not None and chunk.num_values > statistics.null_count:
        if statistics.has_min_max:
            summary.bounds |= {statistics.min, statistics.max}
        else:
            summary.bounds = None


def _add_values(summary: Summary, file: Path, name: str, chunks: list[Any]) -> None:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    with parquet.ParquetFile(file, read_dictionary=[name]) as opened:
        for group, chunk in enumerate(chunks):
            if summary.values is None or chunk.num_values == chunk.statistics.null_count:
                continue
            is_told = chunk.has_dictionary_page and set(chunk.encodings) <= OF_A_DICTIONARY
            column = opened.read_row_group(group, columns=[name]).column(0) if is_told else None
            if column is None or not pa.types.is_dictionary(column.type):
                summary.values = None
                continue
            for piece in column.chunks:
                summary.values.update(
                    piece.dictionary.to_pylist() if len(piece.dictionary) <= MOST_VALUES else ()
                )
                if max(len(summary.values), len(piece.dictionary)) > MOST_VALUES:
                    summary.values = None
                    break
