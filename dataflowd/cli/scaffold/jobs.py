"""The jobs of the flow flowname. A job is a function of a Context, which reads and writes the chunk of the run."""

from __future__ import annotations

from pydantic import BaseModel
from pyspark.sql import functions as F

from dataflowd import Context, job


class Params(BaseModel):
    least: float


@job(params=Params)
def clean(ctx: Context) -> None:
    raw = ctx.read("flowname_raw")  # lines that do not fit the schema go to quarantine here
    good = ctx.quarantine(
        raw, unless=F.col("amount") >= ctx.params.least, item="id", reason="the amount is too small"
    )
    ctx.write("flowname_clean", good.withColumn("day", F.lit(ctx.dataid)))
