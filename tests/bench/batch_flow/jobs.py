"""The job of the flow: transforms one batch. The program without dataflowd transforms the whole table."""

from __future__ import annotations

import etl  # type: ignore[import-not-found] # beside the flow file, where a runner looks

from dataflowd import Context, job


@job
def load(ctx: Context) -> None:
    ctx.write("bench_loaded", etl.named(ctx.read("bench_customers")))
