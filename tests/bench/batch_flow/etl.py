"""The transformation of the customers, for both sides: the batches and the one Spark job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def named(customers: DataFrame) -> DataFrame:
    return customers.where("id > 0").withColumn("name", F.upper("name"))
