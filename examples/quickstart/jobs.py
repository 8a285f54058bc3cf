from __future__ import annotations

from pydantic import BaseModel
from pyspark.sql import functions as F

from dataflowd import Context, job


class Params(BaseModel):
    currency: str


@job(params=Params)
def clean_orders(ctx: Context) -> None:
    raw = ctx.read("raw_orders")
    good = ctx.quarantine(raw, unless="amount > 0", item="order_id", reason="amount must be positive")
    with ctx.node("enrich"):
        out = good.withColumn("currency", F.lit(ctx.params.currency))
    ctx.write("orders", out)
