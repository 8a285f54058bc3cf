"""Checks, before any job code runs, that files have the columns that their dataset declares.

Spark reads CSV by position and ignores the names in the header: if two columns change places, every check passes. In
Parquet, ORC and JSON it reads a missing column as NULL. So the schema of a dataset is compared with as little of its files
as necessary: the first line of a CSV file, the footer of a Parquet or ORC file, the first records of a JSON chunk. A file
that cannot be read here is left to Spark, which reports what is wrong with it.

If a header seems to differ, Spark reads it too before the run fails, because Spark has its own rules for quotes, escapes and
character sets.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import re
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dataflowd.host import allowed_roots
from dataflowd.model import formats
from dataflowd.model.faults import AttemptError
from dataflowd.model.masking import mask
from dataflowd.storage import column_types, files, foreign_types
from dataflowd.storage.column_types import listed, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField, StructType

    from dataflowd.model.work_order import Chunk, Dataset

HEADER_BYTES = 64 * 1024
SAMPLE_BYTES = 1024 * 1024  # of each JSON file
SAMPLE_RECORDS = 1000  # of each JSON chunk
SAMPLE_FILES = 20
CHARACTER_BYTES = 4  # at most

_LINE_END = re.compile(r"\r\n|\n|\r")
_PATTERN = re.compile(r"([*?\[\]{}\\])")
_COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
_BY_HADOOP = (".deflate", ".lz4", ".lzo", ".snappy", ".xz", ".zst")


@dataclass(frozen=True)
class _File:
    name: str  # below the chunk's location
    path: str
    local: Path | None

    @property
    def shown(self) -> str:
        return quoted((self.name or self.path).rpartition("/")[2], mark="")

    def holds(self, columns: Sequence[str]) -> list[str]:
        """The columns that must be in the file. The column of a directory such as day=1 is only in the directory's name."""
        outside = {part.partition("=")[0].lower() for part in self.name.split("/")[:-1] if "=" in part}
        return [column for column in columns if column.lower() not in outside]

    @property
    def pattern(self) -> str:
        """The path, escaped so that Spark reads this file and no pattern."""
        return _PATTERN.sub(r"\\\1", self.path)


def check(spark: SparkSession, dataset: Dataset, chunks: Iterable[Chunk]) -> None:
    """Raises WRONG_DATA with the columns that differ."""
    how = formats.header_match(dataset.name, dataset.format, dataset.options)
    options = formats.read_options(dataset.name, dataset.format, dataset.options)
    is_headless = dataset.format == "csv" and options.get("header", "").lower() != "true"
    if not dataset.columns or how == "off" or is_headless:
        return
    from pyspark.sql.types import StructType  # noqa: PLC0415

    schema = StructType.fromDDL(dataset.columns)
    # All batches of one source have the same location.
    places = {chunk.location: chunk for chunk in chunks if chunk.location is not None}
    for chunk in places.values():
        found = _files(spark, dataset, options, chunk)
        if dataset.format == "csv":
            compared = _headers(spark, options, schema, found, how)
        elif dataset.format == "json":
            compared = _samples(spark, options, schema, found)
        else:
            compared = _footers(spark, dataset.format, schema, chunk, found)
        for what, wrong in compared:
            if wrong:
                raise _refused(dataset, chunk, what, wrong)


def _refused(dataset: Dataset, chunk: Chunk, what: str, wrong: Sequence[str]) -> AttemptError:
    as_before = (
        'header_match = "position" in its options reads the columns by their place'
        if dataset.format == "csv"
        else 'header_match = "off" in its options reads what is missing as NULL'
    )
    return AttemptError(
        "WRONG_DATA",
        mask(
            f"{'/'.join(filter(None, (dataset.name, chunk.dataid)))}: {what} is not what the schema says: {'; '.join(wrong)}"
        ),
        f"correct the file, or the dataset's schema; {as_before}",
    )


def _files(spark: SparkSession, dataset: Dataset, options: Mapping[str, str], chunk: Chunk) -> list[_File]:
    """The files that Spark will read."""
    location = chunk.location or ""
    place, base = location.rstrip("/"), allowed_roots.local_path(location)
    if "pathGlobFilter" in options:
        names = _matched(spark, dataset, options, location)
    elif chunk.files is not None:
        names = [file["path"] for file in chunk.files]
    else:
        names = [file.path for file in files.listing(spark, location)]
    return [
        _File(name, f"{place}/{name}" if name else place, None if base is None else base / name)
        for name in names
    ]


def _matched(spark: SparkSession, dataset: Dataset, options: Mapping[str, str], location: str) -> list[str]:
    """The names that match pathGlobFilter, found by Spark itself."""
    reader = spark.read.format(dataset.format).options(**options).schema(dataset.columns or "")
    read = [urlsplit(path) for path in reader.load(location).inputFiles()]
    place = urlsplit(location).path.rstrip("/")
    return sorted(unquote(one.path).removeprefix(place).lstrip("/") for one in read)


# --- CSV ---


def _headers(
    spark: SparkSession, options: Mapping[str, str], schema: StructType, found: Sequence[_File], how: str
) -> Iterator[tuple[str, list[str]]]:
    compare = _names_differ if how == "name" else _number_differs
    for file in found:
        expected = file.holds(schema.names)
        header = _header(spark, options, file)
        if header is not None and not compare(header, expected):
            continue
        asked = _header_by_spark(spark, options, file)
        if asked and compare(asked, expected):
            # Spark gives its own names to columns without a name, and to columns that occur twice.
            is_same = header is not None and len(header) == len(asked)
            yield f"the header of {file.shown}", compare(header if header and is_same else asked, expected)


def _number_differs(found: Sequence[str], expected: Sequence[str]) -> list[str]:
    if len(found) in {0, len(expected)}:
        return []
    return [f"it has {len(found)} columns, the schema has {len(expected)}"]


def _names_differ(found: Sequence[str], expected: Sequence[str]) -> list[str]:
    if not found or list(found) == list(expected):
        return []
    here, said = [name.lower() for name in found], [name.lower() for name in expected]
    spelled = dict(zip(said, expected, strict=True))
    missing = [quoted(name) for name in expected if name.lower() not in here]
    extra = [quoted(name) for name in found if name.lower() not in said]
    twice = [quoted(name) for place, name in enumerate(found) if name.lower() in here[:place]]
    case = [
        f"{quoted(name)} for {quoted(spelled[name.lower()])}"
        for name in found
        if spelled.get(name.lower(), name) != name
    ]
    kinds = [("missing", missing), ("extra", extra), ("twice", twice), ("differs in case", case)]
    moved = _moved(found, expected)
    return [
        *([listed(moved)] if moved else []),
        *(f"{how}: {listed(names)}" for how, names in kinds if names),
    ]


def _moved(found: Sequence[str], expected: Sequence[str]) -> list[str]:
    here, said = [name.lower() for name in found], [name.lower() for name in expected]
    if len(found) == len(expected):
        return [
            f"column {place} is {quoted(one)}, the schema says {quoted(other)}"
            for place, (one, other) in enumerate(zip(found, expected, strict=True), start=1)
            if one.lower() != other.lower()
        ]
    # After a missing or extra column all others have moved: only another order is worth reporting.
    is_ordered = [name for name in here if name in said] == [name for name in said if name in here]
    return [] if is_ordered else ["the columns are in another order"]


def _header(spark: SparkSession, options: Mapping[str, str], file: _File) -> list[str] | None:
    """The names in the first line; [] for an empty file; None if only Spark can read it."""
    text = _beginning(spark, options, file, HEADER_BYTES)
    sep = options.get("sep", options.get("delimiter", ",")).replace(r"\t", "\t")
    quote, escape = options.get("quote", '"'), options.get("escape", "\\")
    if text is None or len(sep) != 1 or len(quote) > 1 or len(escape) > 1:
        return None
    lines = _lines(text, options)
    is_whole = len(text) < HEADER_BYTES // CHARACTER_BYTES
    comment = options.get("comment", "")
    line = next(
        (
            one
            for one in (lines if is_whole else lines[:-1])
            if one.strip() and not (comment and one.startswith(comment))
        ),
        None,
    )
    if line is None:
        return [] if is_whole else None
    try:
        [names] = csv.reader(
            [line],
            delimiter=sep,
            quotechar=quote or None,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            escapechar=escape if escape and escape != quote else None,
            strict=True,
        )
    except (csv.Error, ValueError, TypeError):
        return None
    return names


def _header_by_spark(spark: SparkSession, options: Mapping[str, str], file: _File) -> list[str]:
    chosen = {name: value for name, value in options.items() if name != "pathGlobFilter"}
    try:
        return list(spark.read.format("csv").options(**chosen).load(file.pattern).columns)
    except Exception:  # noqa: BLE001 - Spark reports what is wrong with the file when the job reads it
        return []


# --- JSON ---


def _samples(
    spark: SparkSession, options: Mapping[str, str], schema: StructType, found: Sequence[_File]
) -> Iterator[tuple[str, list[str]]]:
    declared = [field for field in schema if all(file.holds([field.name]) for file in found)]
    texts = (_beginning(spark, options, file, SAMPLE_BYTES) for file in found[:SAMPLE_FILES])
    records = (record for text in texts if text is not None for record in _records(text, options))
    yield "what its records hold", _records_differ(list(islice(records, SAMPLE_RECORDS)), declared)


def _records(text: str, options: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The readable records. A broken one goes to quarantine when the job reads it; the last one may be cut off here."""
    is_one = options.get("multiLine", "").lower() == "true"
    for part in [text] if is_one else _lines(text, options):
        try:
            value = json.loads(part)
        except (ValueError, RecursionError):
            continue
        yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict))


def _records_differ(records: Sequence[Mapping[str, Any]], declared: Sequence[StructField]) -> list[str]:
    """An absent field may be NULL in JSON. But if there are fields that the schema does not have, it was renamed."""
    names = {field.name for field in declared}
    there = dict.fromkeys(name for record in records for name in record)
    missing = [quoted(field.name) for field in declared if field.name not in there]
    extra = [quoted(name) for name in there if name not in names]
    renamed = [f"missing: {listed(missing)}", f"instead there: {listed(extra)}"] if missing and extra else []
    retyped = []
    for field in declared:
        values = [record[field.name] for record in records if record.get(field.name) is not None]
        if values and not any(column_types.is_json_of(value, field.dataType) for value in values):
            said = f"{quoted(field.name)} is {column_types.json_kind(values[0])}"
            retyped.append(f"{said}, the schema says {field.dataType.simpleString()}")
    return [*renamed, *([listed(retyped)] if retyped else [])]


# --- Parquet and ORC ---


def _footers(
    spark: SparkSession, kind: str, schema: StructType, chunk: Chunk, found: Sequence[_File]
) -> Iterator[tuple[str, list[str]]]:
    """All files of one write have the same columns; files from outside may differ. Off this host, only one is opened."""
    is_one_write = chunk.files is not None or any(file.local is None for file in found)
    for file in found[:1] if is_one_write else found:
        stored = (
            _schema_by_spark(spark, kind, file)
            if file.local is None
            else column_types.of_footer(file.local, kind)
        )
        if stored is not None:
            yield (
                f"what {file.shown} holds",
                column_types.differences(stored, schema, file.holds(schema.names)),
            )


def _schema_by_spark(spark: SparkSession, kind: str, file: _File) -> StructType | None:
    foreign_types.guard()
    try:
        return spark.read.format(kind).load(file.pattern).schema
    except Exception:  # noqa: BLE001 - Spark reports what is wrong with the file when the job reads it
        return None


# --- the beginning of a file ---


def _lines(text: str, options: Mapping[str, str]) -> list[str]:
    return text.split(options["lineSep"]) if options.get("lineSep") else _LINE_END.split(text)


def _beginning(spark: SparkSession, options: Mapping[str, str], file: _File, size: int) -> str | None:
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    try:
        found = _bytes(spark, file, size)
        if found is None:
            return None
        plain = "utf-8-sig" if encoding.lower() in {"utf-8", "utf8"} else encoding
        return io.TextIOWrapper(io.BytesIO(found), plain, errors="replace", newline="").read()
    except (OSError, EOFError, LookupError, ValueError, zlib.error):
        return None


def _bytes(spark: SparkSession, file: _File, size: int) -> bytes | None:
    if file.local is None or file.local.suffix in _BY_HADOOP:
        return files.beginning(spark, file.path, size)
    with _COMPRESSED.get(file.local.suffix, open)(file.local, "rb") as opened:
        return bytes(opened.read(size))
