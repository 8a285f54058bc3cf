"""Judges the declared checks of inputs that come from outside, before the job's code begins.

The chunk that a job makes is judged before it is published. A chunk from outside is not published by dataflowd, so the first
attempt that reads a version of it judges it, in one more pass over the chunk, and the answer is stored for all other
attempts. A failed check raises NOT_VALIDATED. Rows that cannot be parsed count as rows whose columns are NULL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dataflowd.model import formats
from dataflowd.model.faults import AttemptError
from dataflowd.runner.validate import judge_schema_and_keys
from dataflowd.storage import checks, files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from dataflowd.model.work_order import Chunk, Dataset, Input, Order

# row_count compares an output with the inputs of its job, and a chunk from outside has no job.
CHECKS_OF_OUTPUTS = frozenset({"row_count"})


def judge(order: Order, spark: SparkSession, result: dict[str, Any]) -> None:
    """Adds `checks` and `judged` to the result as it goes. Raises NOT_VALIDATED."""
    if order.forced or order.trial is not None:
        return
    for source in order.inputs.values():
        declared = source.dataset.checks
        applicable = {name: check for name, check in declared.items() if name not in CHECKS_OF_OUTPUTS}
        if not applicable or source.dataset.format not in formats.FILES:
            continue
        for chunk in source.chunks:
            if chunk.files is None and chunk.batch is None and chunk.location is not None:
                _judge(source, chunk, replace(source.dataset, checks=applicable), spark, result)


def _judge(
    source: Input, chunk: Chunk, dataset: Dataset, spark: SparkSession, result: dict[str, Any]
) -> None:
    if chunk.judged is not None:
        if not chunk.judged:
            raise _not_validated(source.name, chunk, "its checks failed before")
        return
    try:
        results = list(_judged(spark, dataset, str(chunk.location)))
    except AttemptError as error:
        if error.code != "CHECK_FAILED":
            raise
        results = [checks.CheckResult(dataset.name, "columns", "error", False, error.message, "its columns")]
    if len(source.chunks) > 1:
        results = [replace(one, name=f"{one.name} of {chunk.dataid}") for one in results]
    broken = [f"{one.name}: observed {one.observed}, expected {one.expected}" for one in results if one.stops]
    summary = "; ".join(broken)
    result.setdefault("checks", []).extend(one.document() for one in results)
    result.setdefault("judged", []).append(
        {"dataset": source.name, "dataid": chunk.dataid, "passed": not broken, "said": summary}
    )
    if broken:
        raise _not_validated(source.name, chunk, summary)


def _judged(spark: SparkSession, dataset: Dataset, location: str) -> Iterator[checks.CheckResult]:
    frame = files.read(spark, dataset, [location]).drop(formats.CORRUPT_COLUMN)
    compiled = checks.column_checks(dataset.checks, frame.schema, dataset.name)
    for column in dataset.checks.get("unique", {}).get("columns", []):
        checks.require(frame.columns, column, "unique", dataset.name)
    row = frame.agg(*checks.aggregates(compiled)).first()
    observed = {} if row is None else row.asDict(recursive=False)
    wanted = checks.examples(compiled, observed)
    shown = frame.agg(*wanted).first() if wanted else None
    yield from checks.judge_columns(
        dataset.name, compiled, observed, {} if shown is None else shown.asDict(recursive=False)
    )
    yield from checks.judge_rows(dataset.name, dataset.checks, observed[checks.ROWS], checks.SetAside(), {})
    yield from judge_schema_and_keys(
        dataset.name,
        dataset.checks,
        frame.schema,
        lambda columns: files.duplicates(spark, dataset, location, frame.schema, columns),
    )


def _not_validated(name: str, chunk: Chunk, why: str) -> AttemptError:
    return AttemptError(
        "NOT_VALIDATED",
        f"{name}/{chunk.dataid} does not pass the checks of its dataset: {why}",
        f"correct it and `dataflowctl ready {name} {chunk.dataid}`; if it is right all the same, call dataflow.validated()",
    )
