"""The ledger beside a table: which attempt may replace a chunk's rows (the fence), and which attempt published them.

One control database numbers the attempts, and the numbers rise: a greater fence is a later claim. The ledger also tells
which staging tables can be dropped.
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
    """The fence, and the attempt that published the rows."""
    return _entry(opened, table, dataid, "entry") if is_there(opened, table) else None


def locked_entry(opened: psycopg.Connection[Row], table: Table, dataid: str) -> tuple[int, int | None] | None:
    """As entry, with a lock until the end of the transaction."""
    return _entry(opened, table, dataid, "entry_locked")


def _entry(
    opened: psycopg.Connection[Row], table: Table, dataid: str, which: str
) -> tuple[int, int | None] | None:
    found = rows(opened, statement(which, ledger=table.ledger), {"table": table.name, "dataid": dataid})
    return (found[0][0], found[0][1]) if found else None


def take(opened: psycopg.Connection[Row], table: Table, dataid: str, attempt: int) -> None:
    """Raises the fence to this attempt. Raises LOCKED if a later attempt has it."""
    named = {"table": table.name, "dataid": dataid, "attempt": attempt}
    if not rows(opened, statement("take", ledger=table.ledger), named):
        raise fenced(opened, table, dataid, attempt)


def enter(opened: psycopg.Connection[Row], table: Table, dataid: str, attempt: int, count: int) -> None:
    named = {"table": table.name, "dataid": dataid, "attempt": attempt, "rows": count}
    opened.execute(statement("enter", ledger=table.ledger), named)


def locked_published(opened: psycopg.Connection[Row], table: Table, dataids: Sequence[str]) -> list[str]:
    """The dataids that an attempt has published; their entries are locked until the end of the transaction."""
    named = {"table": table.name, "dataids": list(dataids)}
    return [dataid for [dataid] in rows(opened, statement("published_locked", ledger=table.ledger), named)]


def leave(opened: psycopg.Connection[Row], table: Table, dataids: Sequence[str]) -> None:
    """Records that the rows were deleted. The fences stay and rise: the next attempt has a greater number."""
    named = {"table": table.name, "dataids": list(dataids)}
    opened.execute(statement("leave", ledger=table.ledger), named)


def fenced(opened: psycopg.Connection[Row], table: Table, dataid: str, attempt: int) -> AttemptError:
    found = entry(opened, table, dataid)
    other = f"attempt {found[0]}" if found else "another attempt"
    return AttemptError(
        "LOCKED",
        f"{other} has taken {dataid} of {table}, and attempt {attempt} may not replace its rows",
        f"nothing to do; only if the control database was created again, delete the chunk's row from {table.ledger.as_string()}",
    )


def mark(opened: psycopg.Connection[Row], staging: Table, dataid: str, attempt: int) -> None:
    """Marks a staging table by a comment with its attempt. A table without the mark is never dropped."""
    text = MARK + json.dumps({"dataid": dataid, "attempt": attempt})[1:]
    opened.execute(statement("mark_staging", staging=staging.identifier, text=sql.Literal(text)))


def collect(opened: psycopg.Connection[Row], table: Table, is_dead: Callable[[str, int], bool]) -> list[str]:
    """Drops the staging tables whose attempts are dead, or outdated by the ledger, and returns their names."""
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
