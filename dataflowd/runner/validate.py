"""Validate: judges the declared checks and the limit of bad records, for every kind of job, before anything is published."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError
from dataflowd.sdk import _quarantine
from dataflowd.storage import checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from dataflowd.sdk._quarantine import Seen


def judge_schema_and_keys(
    name: str,
    declared: Mapping[str, Any],
    schema: StructType,
    duplicates: Callable[[list[str]], int],
) -> Iterator[checks.CheckResult]:
    """Judges the checks `schema` and `unique`. `duplicates` returns how many rows repeat the values of these columns."""
    if "schema" in declared:
        yield checks.judge_schema(name, declared["schema"], schema)
    if "unique" in declared:
        yield checks.judge_unique(name, declared["unique"], duplicates(declared["unique"]["columns"]))


@contextmanager
def publishable(
    details: dict[str, Any],
    results: Sequence[checks.CheckResult],
    seen: list[Seen],
    limit: float | None,
    read: int = 0,
) -> Iterator[None]:
    """Raises the fault that forbids publication. `details` are stored with the failed attempt, also if the block raises.

    `limit`: of bad records, as a number or as a share of `read`, the records that the attempt has read.
    """
    try:
        _quarantine.check_limit(seen, limit, read)
        checks.stop_on(results)
        yield
    except AttemptError as error:
        error.details = details
        raise
