"""A sample of an input for a trial, chosen by the content of each row, so that every trial sees the same rows.

Spark's own sample depends on how the files were split, which differs from host to host. A hash of the row and a seed is the
same everywhere. Of equal rows all are chosen, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflowd.storage.checks import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dataflowd.model.work_order import Trial

PARTS = 1_000_000_000


def sampled(frame: DataFrame, trial: Trial) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    # As JSON, because some types (maps) cannot be hashed.
    mark = f"xxhash64(to_json(struct({', '.join(map(quoted, frame.columns))})), {int(trial.seed)})"
    if trial.share is not None:
        frame = frame.where(f"pmod({mark}, {PARTS}) < {round(trial.share * PARTS)}")
    return frame if trial.rows is None else frame.orderBy(F.expr(mark)).limit(trial.rows)
