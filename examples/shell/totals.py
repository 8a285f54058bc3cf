"""Sums the orders of a day for each customer. It was written for spark-submit alone:

orders_location=/data/orders/2026-01-01 totals_location=/data/totals/2026-01-01 spark-submit totals.py
"""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("totals").getOrCreate()
orders = spark.read.csv(
    os.environ["orders_location"],
    header=True,
    schema="order_id bigint, customer string, amount decimal(12,2)",
)
totals = orders.groupBy("customer").agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))
totals.coalesce(1).write.parquet(os.environ["totals_location"])
spark.stop()
