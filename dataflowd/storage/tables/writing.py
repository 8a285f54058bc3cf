"""Writes chunks of tables: takes the fence, stages, measures, publishes, removes, and collects leftovers of dead attempts.

The docstring of the package describes the protocol. Each step is one short connection of the process that executes the
attempt. Only Spark's workers move rows (`source`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from dataflowd.model import formats
from dataflowd.model.faults import AttemptError
from dataflowd.model.plural import agreeing
from dataflowd.model.suggest import did_you_mean
from dataflowd.storage.tables import catalog, ledger
from dataflowd.storage.tables.catalog import rows, statement
from dataflowd.storage.tables.place import NAME_BYTES, Table, table_of
from dataflowd.storage.tables.reading import check_dataid, existing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from dataflowd.model.work_order import Dataset, Order, Output
    from dataflowd.storage.tables.catalog import Column, Row


LOCK_SECONDS = 10
REMOVE_SECONDS = 600


def take(order: Order, output: Output) -> None:
    """Takes the fence, before any job code: from here on no older attempt can replace the chunk's rows."""
    dataset, table = output.dataset, table_of(output.dataset, order.allowed_hosts)
    name = dataid_column(dataset)
    with catalog.connection(table) as opened:
        found = catalog.columns(opened, table)
        if found:
            column = existing({one.name: one for one in found}, name, dataset, "dataid_column")
            check_dataid(opened, column, dataset, order.dataid)
        ledger.make(opened, table)
        ledger.take(opened, table, order.dataid, order.attempt)
        ledger.collect(opened, table, lambda _dataid, _attempt: False)


def dataid_column(dataset: Dataset) -> str:
    options = formats.write_options(dataset.name, dataset.format, dataset.options)
    if "dataid_column" not in options:
        raise AttemptError(
            "INVALID_OPTION",
            f"dataset {dataset.name}: its chunks cannot be told apart, because it names no dataid_column",
            "name the column that holds the dataid: options = { dataid_column = ... }",
        )
    return options["dataid_column"]


def stage(frame: DataFrame, output: Output, order: Order) -> str:
    """Writes to the staging table of this attempt, and returns the location that the rows will have."""
    from dataflowd.storage.tables import source  # noqa: PLC0415

    table = table_of(output.dataset, order.allowed_hosts)
    staging, kept = table.staging(order.attempt), dataid_column(output.dataset)
    kinds = _stored(frame.schema, output.dataset)
    with catalog.connection(table) as opened, opened.transaction():
        _make_staging(opened, staging, kinds, order)
        opened.execute(statement("lock_names"), {"schema": table.schema})
        if not (found := catalog.columns(opened, table)):
            _make_target(opened, table, staging, kept, kinds)
        else:
            _check_columns(frame.schema, found, kept, output.dataset)
    with catalog.translated(table):
        source.write(frame, staging)
    return table.url


def _stored(schema: StructType, dataset: Dataset) -> dict[str, str]:
    from dataflowd.storage.tables import types  # noqa: PLC0415

    kinds: dict[str, str] = {}
    for field in schema:
        kind = types.stored(field.dataType)
        if kind is None or len(field.name.encode()) > NAME_BYTES:
            raise AttemptError(
                "WRONG_DATA",
                f"dataset {dataset.name}: a table cannot hold the column {field.name} {field.dataType.simpleString()}",
                f"make it text (to_json) or numbers, and its name no longer than {NAME_BYTES} bytes",
            )
        kinds[field.name] = kind
    return kinds


def _make_staging(
    opened: psycopg.Connection[Row], staging: Table, kinds: dict[str, str], order: Order
) -> None:
    opened.execute(statement("create_staging", staging=staging.identifier))
    ledger.mark(opened, staging, order.dataid, order.attempt)
    for name, kind in kinds.items():
        _add_column(opened, staging, name, kind)


def _add_column(opened: psycopg.Connection[Row], table: Table, name: str, kind: str) -> None:
    column = {"column": sql.Identifier(name), "type": sql.SQL(kind)}
    opened.execute(statement("add_column", target=table.identifier, **column))


def _make_target(
    opened: psycopg.Connection[Row], table: Table, staging: Table, kept: str, kinds: dict[str, str]
) -> None:
    opened.execute(statement("create_target", target=table.identifier, staging=staging.identifier))
    if kept not in kinds:
        _add_column(opened, table, kept, "text")
    opened.execute(statement("index_target", target=table.identifier, column=sql.Identifier(kept)))


def _check_columns(schema: StructType, found: list[Column], kept: str, dataset: Dataset) -> None:
    from dataflowd.storage.tables import types  # noqa: PLC0415

    there = {column.name: column for column in found}
    wrong = [
        f"it has no column {field.name}{did_you_mean(field.name, there)}"
        for field in schema
        if field.name not in there
    ]
    wrong += [
        f"{field.name} is {there[field.name].type} and would get {field.dataType.simpleString()}"
        for field in schema
        if field.name in there and not types.fits(field.dataType, there[field.name])
    ]
    wrong += [
        f"{field.name} is generated"
        for field in schema
        if field.name in there and there[field.name].is_generated
    ]
    given = {*schema.names, kept}
    wrong += [
        f"{column.name} would get nothing, and has no default"
        for column in found
        if column.name not in given and not column.is_filled
    ]
    if wrong:
        raise AttemptError(
            "WRONG_DATA",
            f"dataset {dataset.name}: the columns do not match its table: {'; '.join(wrong)}",
            "write what the table has, or change the table",
        )


def measure(
    dataset: Dataset, attempt: int, observed: int, allowed_hosts: Sequence[str]
) -> list[dict[str, Any]]:
    """Measures the staged rows, and returns the manifest's one entry, with the attempt that the ledger will name."""
    table = table_of(dataset, allowed_hosts)
    staging = table.staging(attempt)
    with catalog.connection(table) as opened:
        what = statement("measure", staging=staging.identifier)
        [[there, size]] = rows(opened, what, {"staging": staging.identifier.as_string()})
    if there != observed:
        raise AttemptError(
            "WRONG_DATA",
            f"{dataset.name}: {agreeing(observed, 'row', 'was', 'were')} observed, and {there:,} staged",
            "a task may have written twice: run it again",
        )
    return [{"path": f"{table.schema}.{table.name}", "bytes": size, "rows": there, "attempt": attempt}]


def publish(dataset: Dataset, order: Order, staged: int, confirm: Callable[[], bool]) -> None:
    """Replaces the chunk's rows in one transaction. `confirm` says whether the attempt's token is still valid."""
    table, kept = table_of(dataset, order.allowed_hosts), dataid_column(dataset)
    with catalog.connection(table) as opened, opened.transaction():
        found = ledger.locked_entry(opened, table, order.dataid)
        if found is None or found[0] != order.attempt:
            raise ledger.fenced(opened, table, order.dataid, order.attempt)
        if found[1] == order.attempt:
            return
        replaced = _replace(opened, table, kept, order)
        if replaced != staged:
            raise AttemptError(
                "WRONG_DATA",
                f"{dataset.name}: {agreeing(staged, 'row', 'was', 'were')} staged, and {replaced:,} of them were found when they were published",
                "the server may have been restarted, which empties staging tables: run it again",
            )
        ledger.enter(opened, table, order.dataid, order.attempt, replaced)
        if not confirm():
            raise AttemptError(
                "LOCKED",
                f"{dataset.name}/{order.dataid} is no longer this attempt's: its rows stay as they are",
                "nothing to do: the attempt that has the chunk now publishes it",
            )


def _replace(opened: psycopg.Connection[Row], table: Table, kept: str, order: Order) -> int:
    staging = table.staging(order.attempt)
    there = {column.name: column for column in catalog.columns(opened, table)}
    given = [column.name for column in catalog.columns(opened, staging)]
    column, kind = sql.Identifier(kept), sql.SQL(there[kept].type)
    chunk = {"dataid": order.dataid}
    if kept in given:
        what = statement("strays", staging=staging.identifier, column=column, type=kind)
        [[strays]] = rows(opened, what, chunk)
        if strays:
            raise AttemptError(
                "WRONG_DATA",
                f"{agreeing(strays, 'row', 'has', 'have')} another {kept} than the dataid {order.dataid}: not of this chunk",
                f"write only rows of this chunk, or leave {kept} out: it is filled with the dataid",
            )
    opened.execute(statement("delete_rows", target=table.identifier, column=column, type=kind), chunk)
    names = [*given, *([] if kept in given else [kept])]
    sources = [
        sql.SQL("{}::{}").format(
            sql.Identifier(name) if name in given else sql.Placeholder("dataid"), sql.SQL(there[name].type)
        )
        for name in names
    ]
    what = statement(
        "insert_rows",
        target=table.identifier,
        columns=sql.SQL(", ").join(map(sql.Identifier, names)),
        sources=sql.SQL(", ").join(sources),
        staging=staging.identifier,
    )
    inserted = opened.execute(what, None if kept in given else chunk).rowcount
    opened.execute(statement("drop_staging", staging=staging.identifier))
    return inserted


def remove(dataset: Dataset, dataids: Sequence[str], allowed_hosts: Sequence[str]) -> int:
    """Deletes the rows of chunks in one transaction, and returns how many. Rows that no attempt published stay.

    The caller has an open transaction in the control database, so no statement here takes longer than REMOVE_SECONDS.
    """
    table, kept = table_of(dataset, allowed_hosts), dataid_column(dataset)
    with catalog.connection(table) as opened, opened.transaction():
        bounds = {"lock": f"{LOCK_SECONDS}s", "statement": f"{REMOVE_SECONDS}s"}
        opened.execute(statement("bounds"), bounds)
        kinds = {column.name: column.type for column in catalog.columns(opened, table)}
        if kept not in kinds or not ledger.is_there(opened, table):
            return 0
        published = ledger.locked_published(opened, table, dataids)
        named = {"column": sql.Identifier(kept), "type": sql.SQL(kinds[kept])}
        what = statement("delete_chunks", target=table.identifier, **named)
        removed = opened.execute(what, {"dataids": published}).rowcount
        ledger.leave(opened, table, published)
    return removed


def collect(dataset: Dataset, allowed_hosts: Sequence[str], is_dead: Callable[[str, int], bool]) -> list[str]:
    """Drops the staging tables of dead attempts (dataid, attempt), and returns their names."""
    table = table_of(dataset, allowed_hosts)
    with catalog.connection(table) as opened:
        return ledger.collect(opened, table, is_dead)
