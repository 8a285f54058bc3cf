"""What is done to the customers, in batches and in one go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def named(customers: DataFrame) -> DataFrame:
    return customers.where("id > 0").withColumn("name", F.upper("name"))
