"""Brings a checked flow into the database: dataflow.apply_flow compares and writes, in one transaction.

`plan` calls the same function without writing. `conflicts` asks the database for names and outputs that belong to another
flow, and reports each with its line in the file.

The functions import psycopg when they run: every process that becomes a script imports this room and needs no database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dataflowd.flow.graph import element_key
from dataflowd.flow.mistakes import Report
from dataflowd.flow.source import read

if TYPE_CHECKING:
    import psycopg

    from dataflowd.flow.model import Flow

Action = Literal["created", "changed", "retired", "unchanged"]


@dataclass(frozen=True)
class Change:
    kind: Literal["dataset", "job"]
    name: str
    action: Action
    columns: tuple[str, ...]


def plan(connection: psycopg.Connection, flow: Flow, prune: bool = False) -> list[Change]:
    return _call(connection, flow, prune=prune, dry_run=True)


def apply(connection: psycopg.Connection, flow: Flow, prune: bool = False) -> list[Change]:
    return _call(connection, flow, prune=prune, dry_run=False)


def conflicts(connection: psycopg.Connection, flow: Flow, prune: bool = False) -> None:
    """Raises FlowMistakesError with all conflicts between this flow and others in the database."""
    from psycopg.types.json import Jsonb  # noqa: PLC0415 - see above

    from dataflowd.database import db  # noqa: PLC0415 - see above

    with db.translated():
        rows = connection.execute(
            db.query("flow_conflicts"), {"flow": Jsonb(flow.document()), "prune": prune}
        ).fetchall()
    if not rows:
        return
    report = Report(read(flow.path))
    for kind, name, dataset, what, remedy in rows:
        key = (kind, name) if dataset is None else element_key(report, name, kind, dataset)
        report.add(key, what, remedy)
    report.raise_if_any()


def _call(connection: psycopg.Connection, flow: Flow, *, prune: bool, dry_run: bool) -> list[Change]:
    from psycopg.types.json import Jsonb  # noqa: PLC0415 - see above

    from dataflowd.database import db  # noqa: PLC0415 - see above

    parameters = {"flow": Jsonb(flow.document()), "prune": prune, "dry_run": dry_run}
    # The database evaluates every run of a changed job again; there may be a million of them.
    with db.translated(), connection.transaction():
        connection.execute(db.query("long_timeout"))
        rows = connection.execute(db.query("flow_apply"), parameters).fetchall()
    return [Change(kind, name, action, tuple(columns)) for kind, name, action, columns in rows]
