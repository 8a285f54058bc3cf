"""Reads chunks of tables. Checks first that the table has the wanted columns and rows, before any job code runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from dataflowd.model import formats
from dataflowd.model.faults import AttemptError
from dataflowd.model.suggest import did_you_mean
from dataflowd.storage.tables import catalog, ledger
from dataflowd.storage.tables.catalog import statement
from dataflowd.storage.tables.place import Table, table_of
from dataflowd.storage.tables.slices import Keyed, Slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dataflowd.model.work_order import Chunk, Dataset, Input
    from dataflowd.storage.tables.catalog import Column, Row
    from dataflowd.storage.tables.source import Reading

PARTITION_KINDS = frozenset({"int2", "int4", "int8", "numeric", "date", "timestamp", "timestamptz"})


def check_input(source: Input, allowed_hosts: Sequence[str]) -> None:
    """The host's side of the five questions: the table is reachable and has the columns, and its rows are of the attempt
    that the manifest names.
    """
    table = table_of(source.dataset, allowed_hosts)
    with catalog.connection(table) as opened:
        _planned(opened, table, source.dataset, source.chunks, None)
        wrong = _changed(opened, table, source)
    if wrong:
        raise AttemptError(
            "WRONG_DATA",
            wrong,
            "restore them, or make the chunk again: `dataflowctl resubmit` on its producer",
        )


def check_unchanged(source: Input, allowed_hosts: Sequence[str]) -> None:
    """Called after the last row was read. Each part is read separately, and rows may be replaced between two parts."""
    table = table_of(source.dataset, allowed_hosts)
    if not _named(source):
        return
    with catalog.connection(table) as opened:
        wrong = _changed(opened, table, source)
    if wrong:
        raise AttemptError(
            "INPUT_CHANGED",
            f"an input changed while the job read it: {wrong}",
            "nothing to do: the job reads it again when it is ready",
        )


def _named(source: Input) -> dict[str, int]:
    """The attempts that the manifests name, by dataid. A chunk that no attempt published has none."""
    listed = [(chunk.dataid, file) for chunk in source.chunks for file in chunk.files or ()]
    return {dataid: file["attempt"] for dataid, file in reversed(listed) if "attempt" in file}


def _changed(opened: psycopg.Connection[Row], table: Table, source: Input) -> str:
    """A sentence about rows of another attempt than their manifest names; empty if there are none."""
    for dataid, named in _named(source).items():
        found = ledger.entry(opened, table, dataid)
        there = found[1] if found else None
        if there != named:
            holds = "no attempt that is known" if there is None else f"attempt {there}"
            chunk = f"{source.name}/{dataid}"
            return f"{chunk} was published by attempt {named}, and {table} holds the rows of {holds}"
    return ""


def read(
    spark: SparkSession,
    dataset: Dataset,
    chunks: Sequence[Chunk],
    allowed_hosts: Sequence[str],
    columns: Sequence[str] | None = None,
) -> DataFrame:
    from dataflowd.storage.tables import source  # noqa: PLC0415 - it imports Spark

    table = table_of(dataset, allowed_hosts)
    with catalog.connection(table) as opened:
        reading = _planned(opened, table, dataset, chunks, columns)
    return source.read(spark, reading)


def read_staged(
    spark: SparkSession,
    dataset: Dataset,
    attempt: int,
    allowed_hosts: Sequence[str],
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Reads the rows that an attempt has written and not yet published."""
    from dataflowd.storage.tables import source  # noqa: PLC0415

    staging = table_of(dataset, allowed_hosts).staging(attempt)
    with catalog.connection(staging) as opened:
        found = catalog.columns(opened, staging)
    chosen = [column for column in found if columns is None or column.name in columns]
    return source.read(spark, source.Reading(staging, tuple(chosen), _schema(chosen, {})))


def _planned(
    opened: psycopg.Connection[Row],
    table: Table,
    dataset: Dataset,
    chunks: Sequence[Chunk],
    columns: Sequence[str] | None,
) -> Reading:
    """Plans a read, and raises if the table cannot give it."""
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from dataflowd.storage.tables import source  # noqa: PLC0415

    options = formats.read_options(dataset.name, dataset.format, dataset.options)
    there = {column.name: column for column in catalog.columns(opened, table)}
    if not there:
        raise AttemptError(
            "INVALID_PATH",
            f"dataset {dataset.name}: there is no table {table}",
            "create it, or correct the flow file",
            heals=True,
        )
    declared = (
        {field.name: field.dataType for field in StructType.fromDDL(dataset.columns)}
        if dataset.columns
        else {}
    )
    chosen = [existing(there, name, dataset, "column") for name in (columns or declared or there)]
    split = options.get("partition_column")
    return source.Reading(
        table,
        tuple(chosen),
        _schema(chosen, declared),
        _batches(table, there, dataset, chunks)
        or _slices(opened, there, dataset, [chunk.dataid for chunk in chunks], options.get("dataid_column")),
        _partitions(dataset, options.get("partitions", "1")),
        None if split is None else _splitting(there, split, dataset),
    )


def existing(there: dict[str, Column], name: str, dataset: Dataset, what: str) -> Column:
    if name not in there:
        raise AttemptError(
            "WRONG_DATA",
            f"dataset {dataset.name}: its table has no {what} {name!r}{did_you_mean(name, there)}",
            f"it has {', '.join(there)}",
        )
    return there[name]


def _schema(columns: Sequence[Column], declared: dict[str, Any]) -> StructType:
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    from dataflowd.storage.tables import types  # noqa: PLC0415

    return StructType(
        [StructField(column.name, declared.get(column.name) or types.natural(column)) for column in columns]
    )


def _batches(
    table: Table, there: dict[str, Column], dataset: Dataset, chunks: Sequence[Chunk]
) -> tuple[Keyed, ...]:
    """The batches of these chunks; empty if the chunks are no batches."""
    batches = [chunk.batch for chunk in chunks if chunk.batch is not None]
    if not batches:
        return ()
    if len(batches) < len(chunks) or len({batch.columns for batch in batches}) > 1:
        raise AttemptError(
            "WRONG_DATA",
            f"dataset {dataset.name}: its chunks {', '.join(chunk.dataid for chunk in chunks)} do not have the same key",
            "read the batches of one partitioning",
        )
    key = [existing(there, name, dataset, "key column") for name in batches[0].columns]
    names, types = tuple(column.name for column in key), tuple(column.type for column in key)
    return (Keyed(names, types, tuple(batch.bounds for batch in batches), table.schema, table.name),)


def _slices(
    opened: psycopg.Connection[Row],
    there: dict[str, Column],
    dataset: Dataset,
    dataids: Sequence[str],
    name: str | None,
) -> tuple[Slice, ...]:
    if name is None:
        if len(dataids) > 1:
            raise AttemptError(
                "INVALID_OPTION",
                f"dataset {dataset.name}: {len(dataids)} chunks are wanted, and without a dataid_column each is the whole table",
                "name the column that holds the dataid: options = { dataid_column = ... }",
            )
        return ()
    column = existing(there, name, dataset, "dataid_column")
    for dataid in dataids:
        check_dataid(opened, column, dataset, dataid)
    return (Slice(name, column.type, "in", tuple(dataids)),)


def check_dataid(opened: psycopg.Connection[Row], column: Column, dataset: Dataset, dataid: str) -> None:
    try:
        opened.execute(statement("as_type", type=sql.SQL(column.type)), {"dataid": dataid})
    except psycopg.DataError as error:
        raise AttemptError(
            "WRONG_DATA",
            f"dataset {dataset.name}: the dataid {dataid!r} is no {column.type}, as its column {column.name} is: "
            f"{error.diag.message_primary}",
            "name another dataid_column, or give the column a type that has such values",
        ) from None


def _partitions(dataset: Dataset, given: str) -> int:
    if not given.isdigit() or int(given) < 1:
        raise AttemptError(
            "INVALID_OPTION",
            f"dataset {dataset.name}: partitions is {given!r}",
            "write a whole number, 1 or more",
        )
    return int(given)


def _splitting(there: dict[str, Column], name: str, dataset: Dataset) -> Column:
    column = existing(there, name, dataset, "partition_column")
    if column.kind not in PARTITION_KINDS:
        raise AttemptError(
            "INVALID_OPTION",
            f"dataset {dataset.name}: the partition_column {name} is of the type {column.type}",
            "name a column of whole numbers, numerics, dates or timestamps, best one with an index",
        )
    return column
