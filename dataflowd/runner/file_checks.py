"""Evaluates the checks of a large chunk after the write, from the statistics in its Parquet files where these are enough.

Evaluating the checks for each row during the write can cost a third of the write's time. Parquet files store the number of
NULLs of every column, the bounds of numbers and days, and the distinct texts of a column that has at most a few thousand.
Spark evaluates the checks on these values, so that a rule means the same everywhere. Where the files do not have them, Spark
reads the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataflowd.storage import checks, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dataflowd.storage.checks import ColumnCheck
    from dataflowd.storage.summary import Summary

LISTED = ("accepted_values", "regex")
# Bounds of a text may be cut, bounds of a float hide a NaN, and bounds of a timestamp depend on the time zone.
BOUNDED = ("tinyint", "smallint", "int", "bigint", "decimal", "date")


def is_broken(
    spark: SparkSession,
    path: Path,
    schema: StructType,
    compiled: Sequence[ColumnCheck],
    rows: Callable[[], DataFrame],
) -> bool:
    """Whether a row in the files below the path breaks any of the checks. `rows` returns all rows of these files."""
    kinds = {check.column: schema[check.column].dataType.simpleString() for check in compiled}
    summaries = summary.summaries(
        path,
        kinds,
        bounded={
            check.column
            for check in compiled
            if check.rule == "range" and kinds[check.column].partition("(")[0] in BOUNDED
        },
        listed={
            check.column for check in compiled if check.rule in LISTED and kinds[check.column] == "string"
        },
    )
    by_rows, by_values, values_of = [], [], dict[str, set[Any]]()
    for check in compiled:
        found = summaries[check.column]
        if check.rule == "not_null" and found.nulls is not None:
            if found.nulls:
                return True
        elif (values := _representatives(check, found)) is None:
            by_rows.append(check)
        else:
            by_values.append(check)
            values_of[check.column] = values_of.get(check.column, set()) | values
    if any(values_of.values()) and _has_broken_value(_frame(spark, schema, values_of), by_values):
        return True
    return bool(by_rows) and _has_broken_row(rows(), by_rows)


def _representatives(check: ColumnCheck, found: Summary) -> set[Any] | None:
    """Returns the values that decide the check for the whole column; None: the files do not have them."""
    if check.rule == "not_null":
        return None
    return found.bounds if check.rule == "range" and found.bounds is not None else found.values


def _frame(spark: SparkSession, schema: StructType, values_of: dict[str, set[Any]]) -> DataFrame:
    """Returns the values as a DataFrame. Shorter columns are filled with NULL, which breaks none of their checks."""
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    length = max(map(len, values_of.values()))
    padded = {name: [*values, *[None] * (length - len(values))] for name, values in values_of.items()}
    kinds = StructType([StructField(name, schema[name].dataType) for name in padded])
    return spark.createDataFrame(pa.table(padded), kinds)


def _has_broken_value(frame: DataFrame, compiled: Sequence[ColumnCheck]) -> bool:
    """Written this way, Spark answers from its plan, which holds the values, and starts no job."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return bool(frame.where(checks.any_broken(compiled)).select(F.lit(1)).limit(1).collect())


def _has_broken_row(frame: DataFrame, compiled: Sequence[ColumnCheck]) -> bool:
    """Counts in one pass over the columns of the checks; only the count comes back to the driver."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    row = frame.agg(F.count_if(checks.any_broken(compiled))).first()
    return row is not None and row[0] > 0
