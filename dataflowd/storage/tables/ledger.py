"""The ledger beside a table: which attempt may replace a chunk's rows, and which one has. And what staging tables are dead.

Attempts are numbered by one control database, and the numbers rise: a greater fence is a later claim.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from dataflowd.model.faults import AttemptError
from dataflowd.storage.tables.catalog import rows, statement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dataflowd.storage.tables.catalog import Row
    from dataflowd.storage.tables.place import Table

MARK = '{"dataflow": "staging", '


def make(opened: psycopg.Connection[Row], table: Table) -> None:
    if is_there(opened, table):
        return
    with opened.transaction():
        opened.execute(statement("lock_names"), {"schema": table.schema})
        opened.execute(statement("create_ledger", ledger=table.ledger))
        opened.execute(statement("comment_ledger", ledger=table.ledger))


def is_there(opened: psycopg.Connection[Row], table: Table) -> bool:
    [[there]] = rows(opened, statement("has_ledger"), {"ledger": table.ledger.as_string()})
    return bool(there)


def entry(opened: psycopg.Connection[Row], table: Table, dataid: str) -> tuple[int, int | None] | None:
    """The fence, and the attempt that is published."""
    return _entry(opened, table, dataid, "entry") if is_there(opened, table) else None


def locked_entry(opened: psycopg.Connection[Row], table: Table, dataid: str) -> tuple[int, int | None] | None:
    """The same; nobody else changes it before the transaction ends."""
    return _entry(opened, table, dataid, "entry_locked")


def _entry(
    opened: psycopg.Connection[Row], table: Table, dataid: str, which: str
) -> tuple[int, int | None] | None:
    found = rows(opened, statement(which, ledger=table.ledger), {"table": table.name, "dataid": dataid})
    return (found[0][0], found[0][1]) if found else None


def take(opened: psycopg.Connection[Row], table: Table, dataid: str, attempt: int) -> None:
    """Raises LOCKED when a later attempt has been here."""
    named = {"table": table.name, "dataid": dataid, "attempt": attempt}
    if not rows(opened, statement("take", ledger=table.ledger), named):
        raise fenced(opened, table, dataid, attempt)


def enter(opened: psycopg.Connection[Row], table: Table, dataid: str, attempt: int, count: int) -> None:
    named = {"table": table.name, "dataid": dataid, "attempt": attempt, "rows": count}
    opened.execute(statement("enter", ledger=table.ledger), named)


def locked_published(opened: psycopg.Connection[Row], table: Table, dataids: Sequence[str]) -> list[str]:
    """Those that an attempt has published; nobody else changes their entries before the transaction ends."""
    named = {"table": table.name, "dataids": list(dataids)}
    return [dataid for [dataid] in rows(opened, statement("published_locked", ledger=table.ledger), named)]


def leave(opened: psycopg.Connection[Row], table: Table, dataids: Sequence[str]) -> None:
    """Their rows are gone; each fence stays, and rises: the next attempt's number is greater than any until now."""
    named = {"table": table.name, "dataids": list(dataids)}
    opened.execute(statement("leave", ledger=table.ledger), named)


def fenced(opened: psycopg.Connection[Row], table: Table, dataid: str, attempt: int) -> AttemptError:
    found = entry(opened, table, dataid)
    other = f"attempt {found[0]}" if found else "another attempt"
    return AttemptError(
        "LOCKED",
        f"{other} has taken {dataid} of {table}, and attempt {attempt} may not replace its rows",
        f"if the control database was made anew, delete the chunk's row from {table.ledger.as_string()}; otherwise nothing",
    )


def mark(opened: psycopg.Connection[Row], staging: Table, dataid: str, attempt: int) -> None:
    """Says whose it is; what bears no mark is never dropped."""
    text = MARK + json.dumps({"dataid": dataid, "attempt": attempt})[1:]
    opened.execute(statement("mark_staging", staging=staging.identifier, text=sql.Literal(text)))


def collect(opened: psycopg.Connection[Row], table: Table, is_dead: Callable[[str, int], bool]) -> list[str]:
    """Drops the staging tables of the table whose attempts are dead, or outdated by the ledger; their names."""
    dropped = []
    for name, comment in rows(opened, statement("stagings"), {"schema": table.schema, "mark": MARK}):
        found = json.loads(comment)
        dataid, attempt = found["dataid"], found["attempt"]
        staging = table.staging(attempt)
        if staging.name != name:
            continue
        if not (_is_outdated(opened, table, dataid, attempt) or is_dead(dataid, attempt)):
            continue
        try:
            with opened.transaction():
                opened.execute(statement("hurry"))
                opened.execute(statement("drop_staging", staging=staging.identifier))
        except psycopg.errors.LockNotAvailable:
            continue
        dropped.append(name)
    return dropped


def _is_outdated(opened: psycopg.Connection[Row], table: Table, dataid: str, attempt: int) -> bool:
    found = entry(opened, table, dataid)
    return found is not None and (found[0] > attempt or (found[1] or 0) >= attempt)
