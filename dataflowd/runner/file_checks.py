"""Checks of a large chunk, asked when it is written, and of what its files tell where that is enough.

To ask each row of a large chunk costs its pass up to a third of its time. Its Parquet files tell the NULLs of every
column, the bounds of numbers and days, and the few thousand texts that occur, which stand for all rows. Spark judges
them, so that a rule means the same everywhere; and it looks at the rows where the files do not tell.
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
# Bounds of a text may be cut, those of a float hide a NaN, and those of a moment depend on the time zone.
BOUNDED = ("tinyint", "smallint", "int", "bigint", "decimal", "date")


def is_broken(
    spark: SparkSession,
    path: Path,
    schema: StructType,
    compiled: Sequence[ColumnCheck],
    rows: Callable[[], DataFrame],
) -> bool:
    """Whether a row in the files below the path breaks any of the checks. `rows`: all of them."""
    kinds = {check.column: schema[check.column].dataType.simpleString() for check in compiled}
    told = summary.summaries(
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
    left, answered, standing = [], [], dict[str, set[Any]]()
    for check in compiled:
        found = told[check.column]
        if check.rule == "not_null" and found.nulls is not None:
            if found.nulls:
                return True
        elif (values := _standing(check, found)) is None:
            left.append(check)
        else:
            answered.append(check)
            standing[check.column] = standing.get(check.column, set()) | values
    if any(standing.values()) and _breaks_standing(_frame(spark, schema, standing), answered):
        return True
    return bool(left) and _breaks(rows(), left)


def _standing(check: ColumnCheck, found: Summary) -> set[Any] | None:
    """The values that stand for all of the column."""
    if check.rule == "not_null":
        return None
    return found.bounds if check.rule == "range" and found.bounds is not None else found.values


def _frame(spark: SparkSession, schema: StructType, standing: dict[str, set[Any]]) -> DataFrame:
    """NULL, where another column has more values, breaks no rule that is asked of it."""
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    length = max(map(len, standing.values()))
    padded = {name: [*found, *[None] * (length - len(found))] for name, found in standing.items()}
    kinds = StructType([StructField(name, schema[name].dataType) for name in padded])
    return spark.createDataFrame(pa.table(padded), kinds)


def _breaks_standing(frame: DataFrame, asked: Sequence[ColumnCheck]) -> bool:
    """The values are a part of the plan: asked so, they need no Spark job."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return bool(frame.where(checks.any_broken(asked)).select(F.lit(1)).limit(1).collect())


def _breaks(frame: DataFrame, asked: Sequence[ColumnCheck]) -> bool:
    """One pass of all partitions over the columns that are asked; no value of a row comes here."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    row = frame.agg(F.count_if(checks.any_broken(asked))).first()
    return row is not None and row[0] > 0
