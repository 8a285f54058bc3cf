"""Applies the resolutions of bad records (repaired or dropped by a person) when the job reads these records again.

The mark of a record is a hash of its content at the sieve that set it aside. Before that sieve, rows with the mark of a
repaired record get the values that the person gave. Then the sieve treats them like all others: if the repair does not help,
or does not fit (a text for a number, a column that the record does not have), the record is set aside again. A dropped
record is flagged; the sieve counts it and leaves it out, because the check row_count must account for every record. No
record is added: if it is no longer in the source, or was corrected there, its resolution has no effect.

Records that are equal in every column have the same mark. If they have different resolutions, the first record gets the
first resolution, the second record the second, and all further records the last.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dataflowd.model.formats import CORRUPT_COLUMN
from dataflowd.storage.checks import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

FILE_COLUMN = "_dataflow_file"
MARK_COLUMN = "_dataflow_mark"
REPAIRED_COLUMN = "_dataflow_repaired"
DROPPED_COLUMN = "_dataflow_dropped"
PATCH = "map<string, string>"
OWN_COLUMNS = frozenset({FILE_COLUMN, DROPPED_COLUMN})


def whole(frame: DataFrame) -> str:
    """The Spark SQL expression of a row as JSON."""
    return f"to_json(struct({', '.join(quoted(name) for name in frame.columns if name not in OWN_COLUMNS)}))"


def mark(record: str) -> str:
    return f"hex(xxhash64({record}))"


def applied(frame: DataFrame, resolved: Iterable[dict[str, Any]]) -> DataFrame:
    """The rows with repairs applied; DROPPED_COLUMN is true for dropped records."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    repairs = _by_mark(resolved)
    if not repairs:
        return frame
    fields = list(frame.schema.fields)
    known = frame.sparkSession.createDataFrame(
        [
            (mark, number, len(several), one)
            for mark, several in repairs.items()
            for number, one in enumerate(several, 1)
        ],
        f"{MARK_COLUMN} string, _number int, _of int, {REPAIRED_COLUMN} string",
    )
    met = with_file(frame, F.expr(f"{mark(whole(frame))} AS _met"))
    same = met["_met"] == known[MARK_COLUMN]
    if any(len(several) > 1 for several in repairs.values()):
        # This shuffles all rows, so it is done only if equal records have different resolutions.
        met = met.withColumn("_which", F.row_number().over(Window.partitionBy("_met").orderBy(F.lit(0))))
        same = (met["_met"] == known[MARK_COLUMN]) & (
            F.least(met["_which"], known["_of"]) == known["_number"]
        )
    joined = met.join(F.broadcast(known), same, "left")
    patch = _fitting(F.from_json(F.col(REPAIRED_COLUMN), PATCH), fields)
    kept = [FILE_COLUMN] if FILE_COLUMN in joined.columns else []
    dropped = F.expr(f"{MARK_COLUMN} IS NOT NULL AND {REPAIRED_COLUMN} IS NULL AS {DROPPED_COLUMN}")
    return joined.select(*(_patched(field, patch) for field in fields), dropped, *kept)


def _by_mark(resolved: Iterable[dict[str, Any]]) -> dict[str, list[str | None]]:
    """The resolutions of each mark in their order; only one if all are the same."""
    found: dict[str, list[str | None]] = {}
    for each in resolved:
        repaired = None if each["repaired"] is None else json.dumps(each["repaired"], sort_keys=True)
        found.setdefault(each["mark"], []).append(repaired)
    return {mark: several if len(set(several)) > 1 else several[:1] for mark, several in found.items()}


def patched(frame: DataFrame, fields: list[StructField]) -> DataFrame:
    """These columns, with the values of the repair in REPAIRED_COLUMN."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    patch = _fitting(F.from_json(F.col(REPAIRED_COLUMN), PATCH), fields)
    return frame.select(*(_patched(field, patch) for field in fields))


def with_file(frame: DataFrame, *marks: Column) -> DataFrame:
    """Adds the marks, and the file of each row. After a join or an aggregation a row has no file."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if FILE_COLUMN in frame.columns:
        return frame.select("*", *marks)
    try:
        found = frame.select("*", F.expr(f"_metadata.file_path AS {FILE_COLUMN}"), *marks)
        found.columns  # noqa: B018 - Connect analyses the plan only on request
    except AnalysisException:
        # If the author's own condition is wrong, this raises the error.
        return frame.select("*", *marks)
    return found


def _fitting(patch: Column, fields: list[StructField]) -> Column:
    """The repair if its values fit the columns, else NULL: then the record stays as it was and is set aside again."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415
    from pyspark.sql.types import DecimalType  # noqa: PLC0415

    names = [field.name for field in fields if field.name != CORRUPT_COLUMN]
    is_fit = F.size(F.array_except(F.map_keys(patch), F.array(*map(F.lit, names)))) == 0
    for field in fields:
        if field.name == CORRUPT_COLUMN:
            continue
        text, value = patch.getItem(field.name), _value(field, patch)
        is_same = value.isNotNull()
        if isinstance(field.dataType, DecimalType):  # a cast to a decimal may round
            is_same &= text.try_cast(DecimalType(38, 18)).eqNullSafe(value.cast(DecimalType(38, 18)))
        is_fit &= text.isNull() | is_same
    return F.when(is_fit, patch)


def _patched(field: StructField, patch: Column) -> Column:
    """The column, or its value in the repair. The values of a repair are texts, which a person can edit."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    old = F.col(quoted(field.name))
    if field.name == CORRUPT_COLUMN:
        return F.when(patch.isNull(), old).alias(field.name)
    is_given = F.map_contains_key(patch, field.name)
    return F.when(is_given, _value(field, patch)).otherwise(old).alias(field.name)


def _value(field: StructField, patch: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415

    text = patch.getItem(field.name)
    is_nested = isinstance(field.dataType, ArrayType | MapType | StructType)
    return F.from_json(text, field.dataType) if is_nested else text.try_cast(field.dataType)
