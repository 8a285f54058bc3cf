"""Replays repaired records alone, and adds their rows to the published chunk. For jobs whose output rows each depend on one
input row.

The input of these records is read as an empty frame. At the sieve that set a record aside, the record is built again from
the quarantine, repaired, and judged again. The resulting rows are written together with the rows of the earlier version, so
that every check sees the whole chunk. If this cannot be done exactly, WholeError is raised before anything is written, and
the whole chunk is made again.
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
    """The records cannot be replayed alone; the message says why."""


class Replaying:
    """The records to replay. Each belongs to one sieve; `_left` has those whose sieve was not reached yet."""

    def __init__(self, replay: Replay) -> None:
        self.told = replay
        self.counts: dict[str, int] = {}  # records by the name of their sieve
        self._left: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for record in replay.records:
            self._left.setdefault((record["code"], record["reason"]), []).append(record)
        self._met: set[tuple[str, str]] = set()

    def judged(self, frame: DataFrame, *, name: str, code: str, reason: str) -> DataFrame:
        """The rows, and the repaired records that this sieve had set aside."""
        place = (code, reason)
        if place in self._met:
            raise WholeError(f"two places set records aside as {reason!r}: give each a reason of its own")
        self._met.add(place)
        found = self._left.pop(place, [])
        self.counts[name] = len(found)
        repaired = [record for record in found if not record["is_dropped"]]
        return frame.unionByName(_built(frame, repaired)) if repaired else frame

    def merged(self, spark: SparkSession, output: Output, order: Order, frame: DataFrame) -> DataFrame:
        """The rows of the earlier version together with the new ones."""
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
        # Options are for other readers of the dataset; these files are read as an attempt wrote them.
        dataset = replace(output.dataset, options={})
        if output.dataset.format not in files.WITH_FOOTERS:
            _require_exact(files.read(spark, dataset, [location], frame.schema), self.told.rows)
        return files.read_back(spark, dataset, location, frame.schema).unionByName(frame)


def columns_of(schema: StructType) -> str:
    """The columns in the form of a manifest."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def _require_exact(frame: DataFrame, rows: int) -> None:
    # All columns are used: Spark does not parse unused columns, and would not notice that they are broken.
    every = ", ".join(map(quoted, frame.columns))
    broken = f"count(CASE WHEN {CORRUPT_COLUMN} IS NOT NULL THEN struct({every}) END)"
    row = frame.selectExpr("count(1)", broken).first()
    if row is None or (row[0], row[1]) != (rows, 0):
        raise WholeError(
            f"the published rows cannot be read back: {rows} were written, {row and row[0]} found"
        )


def _built(frame: DataFrame, records: list[dict[str, Any]]) -> DataFrame:
    """The records as rows of this frame. Raises WholeError unless each has exactly the values that were set aside."""
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
    """Whether a value of this type survives JSON unchanged. A timestamp does not: it loses its microseconds."""
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
