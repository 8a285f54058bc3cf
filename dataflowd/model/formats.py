"""The formats of datasets, and the options that each format takes.

Options come from the database, so their origin is unknown: only options that are listed here reach Spark. Some options
of Spark are missing on purpose (`mode`, `columnNameOfCorruptRecord`, `path`, `inferSchema`): they name code or paths, or
turn a broken record into NULL. Where Spark would load a class by an option's value, the values are listed too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = ("csv", "json", "parquet", "orc", "text")
LAKES = ("delta", "iceberg")  # from jars that the user supplies
TABLES = ("postgres",)  # that dataflowd itself reads and writes
NAMED_TABLES = (*TABLES, "jdbc")
CORRUPT_COLUMN = "_dataflow_corrupt"
VALUE_CHARACTERS = 1000

_ANY_FILE = {"pathGlobFilter", "recursiveFileLookup"}
_TIMES = {"dateFormat", "timestampFormat", "timestampNTZFormat", "locale"}
_CSV = {
    "sep",
    "delimiter",
    "header",
    "quote",
    "escape",
    "encoding",
    "charset",
    "nullValue",
    "emptyValue",
    "lineSep",
    "ignoreLeadingWhiteSpace",
    "ignoreTrailingWhiteSpace",
    "charToEscapeQuoteEscaping",
    *_TIMES,
}


# Spark loads any other compression as a class, and asks every provider of character sets for an unknown encoding.
_COMPRESSIONS = (
    *("none", "uncompressed", "gzip", "bzip2", "deflate", "lz4", "lz4_raw"),
    *("snappy", "zstd", "zlib", "lzo", "brotli", "lzma"),
)
_VALUES = {
    "compression": re.compile("|".join(_COMPRESSIONS), re.IGNORECASE),
    "write-format": re.compile("parquet|orc|avro"),
    "encoding": re.compile(r"[A-Za-z0-9][A-Za-z0-9_:.+-]{0,39}"),
    "charset": re.compile(r"[A-Za-z0-9][A-Za-z0-9_:.+-]{0,39}"),
}
# Our own option, which Spark never gets: how dataflowd.storage.stored_columns compares a file's columns with the schema.
HEADER_MATCH = "header_match"
_HEADER_MATCHES = {
    "csv": ("name", "position", "off"),
    "json": ("name", "off"),
    "parquet": ("name", "off"),
    "orc": ("name", "off"),
}


@dataclass(frozen=True)
class _Options:
    read: frozenset[str]
    write: frozenset[str]


def _options(read: set[str], write: set[str]) -> _Options:
    return _Options(frozenset(read), frozenset(write))


OPTIONS: dict[str, _Options] = {
    "csv": _options(
        {
            *_ANY_FILE,
            *_CSV,
            "comment",
            "enforceSchema",
            "maxCharsPerColumn",
            "maxColumns",
            "multiLine",
            "nanValue",
            "negativeInf",
            "positiveInf",
            "unescapedQuoteHandling",
        },
        {*_CSV, "compression", "escapeQuotes", "quoteAll"},
    ),
    "json": _options(
        {
            *_ANY_FILE,
            *_TIMES,
            "allowComments",
            "allowNonNumericNumbers",
            "allowNumericLeadingZeros",
            "allowSingleQuotes",
            "allowUnquotedControlChars",
            "allowUnquotedFieldNames",
            "encoding",
            "lineSep",
            "multiLine",
            "prefersDecimal",
            "primitivesAsString",
        },
        {*_TIMES, "compression", "encoding", "ignoreNullFields", "lineSep"},
    ),
    "parquet": _options(
        {*_ANY_FILE, "mergeSchema", "datetimeRebaseMode", "int96RebaseMode"}, {"compression"}
    ),
    "orc": _options({*_ANY_FILE, "mergeSchema"}, {"compression"}),
    "text": _options({*_ANY_FILE, "lineSep", "wholetext"}, {"compression", "lineSep"}),
    "delta": _options({"versionAsOf", "timestampAsOf"}, {"mergeSchema"}),
    "iceberg": _options({"snapshot-id", "as-of-timestamp"}, {"write-format"}),
    "postgres": _options({"dataid_column", "partitions", "partition_column"}, {"dataid_column"}),
    "jdbc": _options({"fetchsize", "numPartitions"}, {"batchsize"}),
    "none": _options(set(), set()),
}


def read_options(dataset: str, kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    return _allowed(dataset, kind, options, OPTIONS[kind].read)


def write_options(dataset: str, kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    return _allowed(dataset, kind, options, OPTIONS[kind].write)


def header_match(dataset: str, kind: str, options: Mapping[str, Any]) -> str:
    """How files of this format are compared with a declared schema: "name" unless the dataset says otherwise."""
    given = [value for name, value in options.items() if name.lower() == HEADER_MATCH]
    known = _HEADER_MATCHES.get(kind, ("off",))
    if given and given[-1] not in known:
        raise AttemptError(
            "INVALID_OPTION",
            f"dataset {dataset}: the option {HEADER_MATCH} has the value {str(given[-1])!r:.100}",
            f"for {kind} it is one of {', '.join(known)}",
        )
    return str(given[-1]) if given else known[0]


def _allowed(dataset: str, kind: str, options: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, str]:
    """The options of `wanted` alone. An option that the format takes neither for reading nor for writing is refused."""
    own = {HEADER_MATCH} if kind in _HEADER_MATCHES else set()
    known = {name.lower(): name for name in OPTIONS[kind].read | OPTIONS[kind].write | own}
    for name in options:
        if name.lower() not in known:
            raise AttemptError(
                "INVALID_OPTION",
                f"dataset {dataset}: format {kind} takes no option {name!r}"
                f"{did_you_mean(name, known.values())}",
                f"use some of {', '.join(sorted(known.values()))}",
            )
    header_match(dataset, kind, options)
    chosen = {known[name.lower()]: _text(dataset, name, value) for name, value in options.items()}
    return {name: value for name, value in chosen.items() if name in wanted}


def _text(dataset: str, name: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    allowed = _VALUES.get(name.lower())
    if not isinstance(value, str | int | float) or len(text) > VALUE_CHARACTERS or "\0" in text:
        raise AttemptError(
            "INVALID_OPTION",
            f"dataset {dataset}: the option {name} has the value {text!r:.100}",
            f"write a text of at most {VALUE_CHARACTERS} characters, a number, or true or false",
        )
    if allowed is not None and not allowed.fullmatch(text):
        raise AttemptError(
            "INVALID_OPTION",
            f"dataset {dataset}: the option {name} has the value {text!r:.100}",
            f"use one of {', '.join(_COMPRESSIONS)}"
            if name.lower() == "compression"
            else f"it is {allowed.pattern}",
        )
    return text
