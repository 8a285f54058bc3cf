"""Reads batches of files: a condition on the key, which Spark pushes down to formats that can prune."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError
from dataflowd.storage.checks import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from dataflowd.model.work_order import Chunk

RANK = "_dataflow_rank"


def chosen(frame: DataFrame, chunks: Sequence[Chunk]) -> DataFrame:
    """The rows of these chunks if they are batches; otherwise all rows."""
    batches = [chunk.batch for chunk in chunks if chunk.batch is not None]
    if not batches:
        return frame
    columns = batches[0].columns
    if len(batches) < len(chunks) or any(batch.columns != columns for batch in batches):
        raise AttemptError(
            "WRONG_DATA",
            f"the chunks {', '.join(chunk.dataid for chunk in chunks)} do not have the same key",
            "read the batches of one partitioning",
        )
    columns_of(frame, columns)
    ranked = with_rank(frame, columns) if any("every" in batch.bounds for batch in batches) else frame
    conditions = [_condition(ranked, columns, batch.bounds) for batch in batches]
    return ranked.where(reduce(or_, conditions)).drop(RANK)


def columns_of(frame: DataFrame, names: Sequence[str]) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise AttemptError(
            "WRONG_DATA",
            f"the source has no column {missing[0]!r}",
            f"it has {', '.join(frame.columns)}",
        )
    return [F.col(quoted(name)) for name in names]


def with_rank(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Adds the column RANK: from 0, in the order of the keys; equal keys have the same rank. Rows with and without a key
    are ranked separately.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    keys = columns_of(frame, columns)
    order = Window.partitionBy(has_key(keys)).orderBy(*keys)
    return frame.withColumn(RANK, F.dense_rank().over(order) - 1)


def has_key(keys: Sequence[Column]) -> Column:
    return reduce(and_, (key.isNotNull() for key in keys))


def _condition(frame: DataFrame, columns: Sequence[str], bounds: dict[str, Any]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    keys = columns_of(frame, columns)
    types = [frame.schema[name].dataType for name in columns]
    present = has_key(keys)
    if bounds.get("null"):
        return ~present
    if "every" in bounds:
        return present & (F.col(RANK) % int(bounds["every"]) == int(bounds["rest"]))

    def values(edge: Sequence[str]) -> list[Column]:
        return [F.lit(text).cast(kind) for text, kind in zip(edge, types, strict=True)]

    if "keys" in bounds:
        wanted = [
            reduce(and_, (key == value for key, value in zip(keys, values(one), strict=True)))
            for one in bounds["keys"]
        ]
        return reduce(or_, wanted, F.lit(False))
    low, high = bounds["low"], bounds["high"]
    above = [] if low is None else [~_less(keys, values(low))]
    below = [] if high is None else [_less(keys, values(high))]
    return reduce(and_, [*above, *below], present)


def _less(keys: Sequence[Column], values: Sequence[Column]) -> Column:
    """Compares keys column by column, as a sort does."""
    first, *others = zip(keys, values, strict=True)
    is_less = first[0] < first[1]
    if not others:
        return is_less
    rest = _less([key for key, _ in others], [value for _, value in others])
    return is_less | ((first[0] == first[1]) & rest)
