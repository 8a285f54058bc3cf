"""The jobs of the flow flowname: functions of a Context, which knows the chunk that they are to work on."""

from __future__ import annotations

from pydantic import BaseModel
from pyspark.sql import functions as F

from dataflowd import Context, job


class Params(BaseModel):
    least: float


@job(params=Params)
def clean(ctx: Context) -> None:
    raw = ctx.read("flowname_raw")  # lines that do not fit the schema are set aside here
    good = ctx.quarantine(
        raw, unless=F.col("amount") >= ctx.params.least, item="id", reason="the amount is too small"
    )
    ctx.write("flowname_clean", good.withColumn("day", F.lit(ctx.dataid)))
