"""The Spark Data Source over ADBC: Spark's Python workers copy Arrow batches, many at a time.

All that a worker needs, including the login, is inside the pickled class that is made for one read or one write. It is not
an option, because Spark shows options in plans, in its UI and in its event log. The columns are chosen when the frame is
made, because Spark 4 does not push columns down to a Python source. It does push filters down. The server applies them to
save work, and Spark applies them again: so the server may return too many rows, but never too few.
"""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from adbc_driver_postgresql import dbapi
from psycopg import sql
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema

from dataflowd.host import sqlfiles
from dataflowd.storage.tables import catalog, types
from dataflowd.storage.tables.slices import Conditions, Keyed, Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dataflowd.storage.tables.catalog import Column
    from dataflowd.storage.tables.place import Table

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

_COMPARISONS: dict[type[Any], Any] = {
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
}


@dataclass(frozen=True)
class Reading:
    table: Table
    columns: tuple[Column, ...]
    schema: StructType
    slices: tuple[Slice | Keyed, ...] = ()
    partitions: int = 1
    partition_column: Column | None = None


@dataclass
class Part(datasource.InputPartition):  # type: ignore[misc]
    slices: tuple[Slice | Keyed, ...]


def read(spark: SparkSession, reading: Reading) -> DataFrame:
    spark.conf.set(PUSHDOWN, "true")

    class Source(datasource.DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return named

        def reader(self, schema: StructType) -> TableReader:  # noqa: ARG002 - the schema of `reading`
            return TableReader(reading)

    named = _source_name(reading.table)
    spark.dataSource.register(Source)
    with _active(spark):
        return spark.read.format(named).schema(reading.schema).load()


def write(frame: DataFrame, staging: Table) -> None:
    """Appends the frame to a staging table, which exists and has the frame's columns."""

    class Source(datasource.DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return named

        def writer(self, schema: StructType, overwrite: bool) -> TableWriter:  # noqa: ARG002 - nothing is overwritten
            return TableWriter(staging)

    named = _source_name(staging)
    frame.sparkSession.dataSource.register(Source)
    with _active(frame.sparkSession):
        frame.write.format(named).mode("append").save()


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Makes the session the active one of this thread: Spark looks a Python source up there, not in the frame's session."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:  # Connect has one session
        yield
        return
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - Spark has no public way
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _source_name(table: Table) -> str:
    """A name that is readable in a plan, and different for each read."""
    return f"postgres_{table.name}_{secrets.token_hex(4)}"


class TableReader(datasource.DataSourceReader):  # type: ignore[misc]
    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.slices = reading.slices

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - the name is Spark's
        known = {
            column.name: column
            for column, field in zip(self.reading.columns, self.reading.schema, strict=True)
            if types.can_filter(column, field.dataType)
        }
        self.slices += tuple(filter(None, (_slice(known, one) for one in filters)))
        return filters

    def partitions(self) -> list[Part]:
        column, parts = self.reading.partition_column, self.reading.partitions
        # With several parts, each part would rank all keys of the table again.
        is_ranked = any(isinstance(one, Keyed) and one.is_ranked for one in self.slices)
        if column is None or parts == 1 or is_ranked:
            return [Part(self.slices)]
        return [
            Part((*self.slices, Slice(column.name, column.type, "range", bounds)))
            for bounds in _bounds(self.reading, column, self.slices)
        ]

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        reading = self.reading
        conditions = Conditions(partition.slices)
        shown = sql.SQL(", ").join(_selected(column) for column in reading.columns)
        what = catalog.statement(
            "read", columns=shown, source=reading.table.identifier, condition=conditions.sql
        )
        schema = to_arrow_schema(reading.schema, timezone="UTC")
        with dbapi.connect(reading.table.login.conninfo()) as opened, opened.cursor() as cursor:
            _begin(cursor, conditions)
            cursor.execute(what.as_string())
            for batch in cursor.fetch_record_batch():
                arrays = [array.cast(kind) for array, kind in zip(batch.columns, schema.types, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class TableWriter(datasource.DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, staging: Table) -> None:
        self.staging = staging

    def write(self, iterator: Iterator[pa.RecordBatch]) -> datasource.WriterCommitMessage:
        """One transaction for each task: a failed task leaves no rows."""
        first = next(iterator, None)
        if first is not None:
            with dbapi.connect(self.staging.login.conninfo()) as opened, opened.cursor() as cursor:
                batches = pa.RecordBatchReader.from_batches(first.schema, _after(first, iterator))
                cursor.adbc_ingest(
                    self.staging.name, batches, mode="append", db_schema_name=self.staging.schema
                )
                opened.commit()
        return datasource.WriterCommitMessage()


def _after(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _begin(cursor: Any, conditions: Conditions) -> None:
    cursor.execute(catalog.statement("begin").as_string())
    cursor.fetchall()
    if conditions.values:
        cursor.execute(sqlfiles.table_statement("bind"), [json.dumps(conditions.values)])
        cursor.fetchall()


def _selected(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    return name if types.is_plain(column) else sql.SQL("{}::text AS {}").format(name, name)


def _bounds(
    reading: Reading, column: Column, slices: Sequence[Slice | Keyed]
) -> list[tuple[str | None, str | None]]:
    """The bounds of the parts: equal steps between the least and the greatest value, open at both ends."""
    conditions = Conditions(slices)
    what = catalog.statement(
        "extremes",
        column=sql.Identifier(column.name),
        source=reading.table.identifier,
        condition=conditions.sql,
    )
    with catalog.connection(reading.table) as opened:
        if conditions.values:
            bind = sqlfiles.table_statement("bind").replace("$1", "%s").removesuffix(";")
            opened.execute(sql.SQL(bind), [json.dumps(conditions.values)])
        [[low, high]] = catalog.rows(opened, what)
    if low is None:
        return [(None, None)]
    parts = reading.partitions
    steps = [
        (high - low) * number // parts if isinstance(low, int) else (high - low) / parts * number
        for number in range(1, parts)
    ]
    inner = [low + step for step in steps]
    edges = [None, *dict.fromkeys(map(_text, inner)), None]
    return list(itertools.pairwise(edges))


def _slice(known: dict[str, Column], one: Any) -> Slice | None:
    """The slice of a Spark filter; None if only Spark can apply the filter."""
    [name, *inner] = getattr(one, "attribute", ("",))
    if inner or name not in known:
        return None
    column = known[name]
    if isinstance(one, datasource.IsNull | datasource.IsNotNull):
        return Slice(name, column.type, "null" if isinstance(one, datasource.IsNull) else "not null")
    if isinstance(one, datasource.EqualTo | datasource.In):
        values = one.value if isinstance(one, datasource.In) else (one.value,)
        bounds = tuple(_bound(column, value) for value in values if value is not None)
        is_whole = bounds and all(bound is not None for bound in bounds)
        return Slice(name, column.type, "in", bounds) if is_whole else None
    if type(one) in _COMPARISONS and (bound := _bound(column, one.value)) is not None:
        return Slice(name, column.type, _COMPARISONS[type(one)], (bound,))
    return None


def _bound(column: Column, value: Any) -> str | None:
    """The value as text; None if the server could read the text as another value."""
    match value:
        case bool():
            return str(value).lower() if column.kind == "bool" else None
        case int() | float() | decimal.Decimal():
            return (
                str(value) if column.kind in {"int2", "int4", "int8", "float4", "float8", "numeric"} else None
            )
        case str():
            return value if "\0" not in value else None
        case dt.datetime():
            is_aware = value.tzinfo is not None
            return _text(value) if column.kind == ("timestamptz" if is_aware else "timestamp") else None
        case dt.date():
            return _text(value) if column.kind == "date" else None
        case _:
            return None


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.date) else str(value)
