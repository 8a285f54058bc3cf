"""Bad records that a person has dealt with, put right where the job meets them again.

A record is known by its mark, a hash of its content at the place where it was judged. Before the rows are judged again,
those with the mark of a repaired record are replaced by what the person made of them; then they are judged like all
others, so that a repair which repairs nothing is set aside once more. A dropped record is marked, and the sieve that
meets it counts it and leaves it out: the check row_count has to know the fate of every record. Nothing is added beside the record itself:
one that is no longer in the source, or has been corrected there, is not brought back.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dataflowd.checks import quoted
from dataflowd.formats import CORRUPT_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

FILE_COLUMN = "_dataflow_file"
MARK_COLUMN = "_dataflow_mark"
REPAIRED_COLUMN = "_dataflow_repaired"
DROPPED_COLUMN = "_dataflow_dropped"
OWN_COLUMNS = frozenset({FILE_COLUMN, DROPPED_COLUMN})


def whole(frame: DataFrame) -> str:
    """A row as JSON, in Spark SQL."""
    return f"to_json(struct({', '.join(quoted(name) for name in frame.columns if name not in OWN_COLUMNS)}))"


def mark(record: str) -> str:
    return f"hex(xxhash64({record}))"


def applied(frame: DataFrame, resolved: Iterable[dict[str, Any]]) -> DataFrame:
    """The rows, with those that were repaired replaced, and true in DROPPED_COLUMN of those that were dropped."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    repairs = {
        each["mark"]: None if each["repaired"] is None else json.dumps(each["repaired"]) for each in resolved
    }
    if not repairs:
        return frame
    fields = list(frame.schema.fields)
    known = frame.sparkSession.createDataFrame(
        list(repairs.items()), f"{MARK_COLUMN} string, {REPAIRED_COLUMN} string"
    )
    met = with_file(frame, F.expr(f"{mark(whole(frame))} AS _met"))
    joined = met.join(F.broadcast(known), met["_met"] == known[MARK_COLUMN], "left")
    patch = F.from_json(F.col(REPAIRED_COLUMN), "map<string, string>")
    kept = [FILE_COLUMN] if FILE_COLUMN in joined.columns else []
    dropped = F.expr(f"{MARK_COLUMN} IS NOT NULL AND {REPAIRED_COLUMN} IS NULL AS {DROPPED_COLUMN}")
    return joined.select(*(_patched(field, patch) for field in fields), dropped, *kept)


def with_file(frame: DataFrame, *marks: Column) -> DataFrame:
    """With marks, and the file that each row comes from where there is one: not behind a join or an aggregation."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if FILE_COLUMN in frame.columns:
        return frame.select("*", *marks)
    try:
        found = frame.select("*", F.expr(f"_metadata.file_path AS {FILE_COLUMN}"), *marks)
        found.columns  # noqa: B018 - Connect analyses only when it is asked
    except AnalysisException:
        # What is wrong with the author's own condition is said here.
        return frame.select("*", *marks)
    return found


def _patched(field: StructField, patch: Column) -> Column:
    """The column, or its value in the repair. Values come as text, so that a person may edit them as such."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415

    old = F.col(quoted(field.name))
    if field.name == CORRUPT_COLUMN:
        return F.when(patch.isNull(), old).alias(field.name)
    text = patch.getItem(field.name)
    is_nested = isinstance(field.dataType, ArrayType | MapType | StructType)
    value = F.from_json(text, field.dataType) if is_nested else text.cast(field.dataType)
    return F.when(F.map_contains_key(patch, field.name), value).otherwise(old).alias(field.name)
