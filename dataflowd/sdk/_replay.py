"""Repaired records of a job whose output rows each depend on one input row: run alone, and added to what is published.

The driving input is read as an empty frame. Where a record was set aside it is built again from what the quarantine holds, repaired, and judged
once more; the rows that come out are written together with those of the earlier version, so that every check is observed on
the whole. What cannot be done exactly in this way raises WholeError before anything is written, and the whole chunk is made.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError
from dataflowd.model.formats import CORRUPT_COLUMN
from dataflowd.model.work_order import attempt_location
from dataflowd.sdk import _repairs
from dataflowd.sdk._repairs import MARK_COLUMN, REPAIRED_COLUMN
from dataflowd.storage import files, manifest_check
from dataflowd.storage.checks import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from dataflowd.model.work_order import Order, Output, Replay

RECORD_COLUMN = "_dataflow_record"


class WholeError(Exception):
    """Why the records cannot be replayed one by one."""


class Replaying:
    """Which records were met so far; each has one place."""

    def __init__(self, replay: Replay) -> None:
        self.told = replay
        self.counts: dict[str, int] = {}  # records by the name of their sieve
        self._left: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for record in replay.records:
            self._left.setdefault((record["code"], record["reason"]), []).append(record)
        self._met: set[tuple[str, str]] = set()

    def judged(self, frame: DataFrame, *, name: str, code: str, reason: str) -> DataFrame:
        """The rows that come by, and the records that were set aside here."""
        place = (code, reason)
        if place in self._met:
            raise WholeError(f"two places set records aside as {reason!r}: give each a reason of its own")
        self._met.add(place)
        found = self._left.pop(place, [])
        self.counts[name] = len(found)
        repaired = [record for record in found if not record["is_dropped"]]
        return frame.unionByName(_built(frame, repaired)) if repaired else frame

    def merged(self, spark: SparkSession, output: Output, order: Order, frame: DataFrame) -> DataFrame:
        """The rows of the earlier version, and these."""
        if self._left:
            raise WholeError(f"no place sets records aside as {next(iter(self._left))[1]!r} any more")
        columns = columns_of(frame.schema)
        if columns != self.told.columns:
            raise WholeError(f"the published rows have the columns {self.told.columns}, and these {columns}")
        dataid = order.dataid
        location = attempt_location(output.location or "", dataid, self.told.attempt, order.allowed_roots)
        if not files.exists(spark, location):
            raise WholeError(f"there is nothing at {location}")
        try:
            manifest_check.compare(output.name, dataid, self.told.files, files.listing(spark, location))
        except AttemptError as error:
            raise WholeError(error.message) from error
        # Options say how a reader is to read it; these files are as they were written.
        dataset = replace(output.dataset, options={})
        if output.dataset.format not in files.WITH_FOOTERS:
            _require_exact(files.read(spark, dataset, [location], frame.schema), self.told.rows)
        return files.read_back(spark, dataset, location, frame.schema).unionByName(frame)


def columns_of(schema: StructType) -> str:
    """As a manifest has them."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def _require_exact(frame: DataFrame, rows: int) -> None:
    # Every column is named: Spark does not parse, and does not find broken, what nobody asks for.
    every = ", ".join(map(quoted, frame.columns))
    broken = f"count(CASE WHEN {CORRUPT_COLUMN} IS NOT NULL THEN struct({every}) END)"
    row = frame.selectExpr("count(1)", broken).first()
    if row is None or (row[0], row[1]) != (rows, 0):
        raise WholeError(
            f"the published rows cannot be read back: {rows} were written, {row and row[0]} found"
        )


def _built(frame: DataFrame, records: list[dict[str, Any]]) -> DataFrame:
    """The records as rows of this frame. Each must be the one that was set aside, to the last bit."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    for field in frame.schema.fields:
        if not _is_exact(field.dataType):
            raise WholeError(f"JSON does not hold {field.name} {field.dataType.simpleString()} exactly")
    known = frame.sparkSession.createDataFrame(
        [
            (
                json.dumps({**record["columns"], CORRUPT_COLUMN: record.get("text")}),
                json.dumps(record["repaired"]),
                record["mark"] if CORRUPT_COLUMN not in frame.columns or record.get("text") else None,
            )
            for record in records
        ],
        f"{RECORD_COLUMN} string, {REPAIRED_COLUMN} string, {MARK_COLUMN} string",
    )
    parsed = known.select(
        F.from_json(RECORD_COLUMN, frame.schema).alias(RECORD_COLUMN), REPAIRED_COLUMN, MARK_COLUMN
    ).select(f"{RECORD_COLUMN}.*", REPAIRED_COLUMN, MARK_COLUMN)
    if not parsed.where(f"{_repairs.mark(_repairs.whole(frame))} <> {MARK_COLUMN}").isEmpty():
        raise WholeError("a record cannot be built again as it was")
    return _repairs.patched(parsed, list(frame.schema.fields))


def _is_exact(kind: DataType) -> bool:
    """Whether a value comes back from JSON as it was: a timestamp loses its microseconds."""
    from pyspark.sql import types as T  # noqa: N812, PLC0415

    if isinstance(kind, T.ArrayType):
        return _is_exact(kind.elementType)
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType) and _is_exact(kind.valueType)
    if isinstance(kind, T.StructType):
        return all(_is_exact(field.dataType) for field in kind.fields)
    plain = (
        *(T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType),
        *(T.DecimalType, T.StringType, T.DateType, T.BinaryType),
    )
    return isinstance(kind, plain)
