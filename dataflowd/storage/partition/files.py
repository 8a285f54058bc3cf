"""Splits files into batches: Spark ranks the keys, and only the boundaries are collected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataflowd.model.work_order import Chunk
from dataflowd.storage import files, stored_columns
from dataflowd.storage.partition import batches, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from dataflowd.model.work_order import Dataset


class FileSource:
    def __init__(self, spark: SparkSession, dataset: Dataset, location: str, columns: Sequence[str]) -> None:
        stored_columns.check(spark, dataset, [Chunk(dataid="", location=location)])
        frame = files.read(spark, dataset, [location])
        self._keys = batches.columns_of(frame, columns)
        self._present = batches.has_key(self._keys)
        # Keep all columns: if Spark parses only the key, it does not notice a broken record and reads a wrong key.
        self._frame = frame.where(self._present)
        self._keyless = frame.where(~self._present)

    def counts(self) -> tuple[int, int]:
        return self._frame.count(), self._frame.select(*self._keys).distinct().count()

    def keyless(self) -> int:
        return int(self._keyless.count())

    def ranges(self, size: int) -> list[tuple[dict[str, Any], int]]:
        from pyspark.sql import Window  # noqa: PLC0415
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        order = Window.orderBy(*self._keys)
        texts = [key.cast("string").alias(f"key_{place}") for place, key in enumerate(self._keys)]
        rows = (
            self._frame.select(
                *texts,
                (F.row_number().over(order) - 1).alias("n"),
                (F.rank().over(order) - 1).alias("first"),
            )
            .where(F.col("n") % size == 0)
            .orderBy("n")
            .collect()
        )
        if not rows:
            return []
        begins: dict[tuple[str, ...], int] = {}
        for row in rows:
            begins.setdefault(tuple(row[: len(self._keys)]), int(row["first"]))
        return plan.ranges(begins, self._frame.count())
