"""The jobs of the flow: each reads, calls the same transformation as the loop without dataflowd, and writes."""

from __future__ import annotations

import etl  # type: ignore[import-not-found] # beside the flow file, where a runner looks

from dataflowd import Context, job


@job
def clean(ctx: Context) -> None:
    ctx.write("bench_orders", etl.clean(ctx.read("bench_raw")))


@job
def total(ctx: Context) -> None:
    ctx.write("bench_totals", etl.total(ctx.read("bench_orders")))


@job
def single(ctx: Context) -> None:
    ctx.write("bench_single", etl.clean(ctx.read("bench_single_raw")))


@job
def large(ctx: Context) -> None:
    ctx.write("bench_large", etl.clean(ctx.read("bench_large_raw")))


@job
def heap(ctx: Context) -> None:
    """Reports the used bytes of the heap, after a garbage collection, as the items of a node."""
    jvm = ctx.spark.sparkContext._jvm
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    with ctx.node("heap") as node:
        node.count(successes=runtime.totalMemory() - runtime.freeMemory())
    ctx.write("bench_heap", ctx.spark.range(1))
