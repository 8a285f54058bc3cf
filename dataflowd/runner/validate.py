"""Validate: the declared checks and the limit of bad records, judged for every kind of job before anything is published."""

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
    """The checks that need the columns themselves. `duplicates`: how many rows too many there are by these columns."""
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
    """Raises what forbids publication, and around what else may do so; `details` are stored with the failed attempt.

    `limit`: of bad records; `read`: the records that the attempt has read, of which a share is meant.
    """
    try:
        _quarantine.check_limit(seen, limit, read)
        checks.stop_on(results)
        yield
    except AttemptError as error:
        error.details = details
        raise
