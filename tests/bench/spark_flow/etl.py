"""The transformations of this flow's jobs; as a program, the first step as a person writes it without dataflowd."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "order_id bigint, customer string, country string, amount decimal(12,2), ordered_at timestamp"


def clean(raw: DataFrame) -> DataFrame:
    return raw.where("amount > 0").withColumn("currency", F.lit("EUR"))


def total(orders: DataFrame) -> DataFrame:
    return orders.groupBy("customer").agg(F.sum("amount").alias("amount"), F.count("*").alias("orders"))


def write_clean(spark: SparkSession, source: str, target: str) -> None:
    clean(spark.read.schema(COLUMNS).csv(source)).write.parquet(target)


def write_total(spark: SparkSession, source: str, target: str) -> None:
    total(spark.read.parquet(source)).write.parquet(target)


def write_large(spark: SparkSession, source: str, target: str) -> None:
    clean(spark.read.parquet(source)).write.parquet(target)


def main() -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only the program makes a session

    source, target = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    write_clean(spark, source, target)
    spark.stop()


if __name__ == "__main__":
    main()
