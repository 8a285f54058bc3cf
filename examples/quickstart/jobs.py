from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel
from pyspark.sql import Window
from pyspark.sql import functions as F

from dataflowd import Context, job, node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Params(BaseModel):
    currency: str
    late_days: int = 3


@job(params=Params)
def clean_orders(ctx: Context) -> None:
    """Every record of the file goes to `orders` or to quarantine. ctx.read quarantines records that do not fit the schema."""
    raw = ctx.read("raw_orders")
    paid = ctx.quarantine(raw, unless="amount > 0", item="order_id", reason="amount must be positive")
    ctx.write("orders", priced(ctx, once(ctx, timely(ctx, paid))))


@node
def timely(ctx: Context, orders: DataFrame) -> DataFrame:
    """An order may come in the file of a later day. A few days are normal; a person must look at later ones."""
    dated = orders.withColumn("days_late", F.datediff(F.lit(ctx.dataid).cast("date"), "ordered_at"))
    return ctx.quarantine(
        dated,
        unless=F.col("days_late").between(0, ctx.params.late_days),
        item="order_id",
        reason=f"ordered more than {ctx.params.late_days} days ago, or later than the file's day",
    )


@node
def once(ctx: Context, orders: DataFrame) -> DataFrame:
    copies = Window.partitionBy("order_id").orderBy("ordered_at")
    numbered = orders.withColumn("copy", F.row_number().over(copies))
    first = ctx.quarantine(numbered, unless="copy = 1", item="order_id", reason="the same order again")
    return first.drop("copy")


@node
def priced(ctx: Context, orders: DataFrame) -> DataFrame:
    return orders.withColumn("currency", F.lit(ctx.params.currency))
