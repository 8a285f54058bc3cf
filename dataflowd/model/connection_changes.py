"""The changes of a dataset's connection since its password was sealed: which column, when and by whom.

A sealed password does not open after such a change. The process that opens passwords has no connection to the control
database, so it cannot name the change. Programs with a connection do: the daemon adds the changes to the attempt's
error, and `dataflowctl doctor`, `dataflowctl seal` and `dataflowctl key rotate` print them. The owner of the database
can also edit this history. It helps a person to find a mistake; it is no protection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime


@dataclass(frozen=True)
class Change:
    """A row of the query connection_changes, oldest first."""

    datasetid: str
    attribute: str
    was: str | None
    is_now: str | None
    at: datetime
    actor: str
    application: str

    def __str__(self) -> str:
        how = f" with {self.application}" if self.application else ""
        when = self.at.isoformat(sep=" ", timespec="seconds")
        return f"{self.attribute} of {self.datasetid} from {_quoted(self.was)} to {_quoted(self.is_now)} on {when} by {self.actor}{how}"


def lasting(changes: Iterable[Change]) -> list[Change]:
    """Leaves out the columns that have their first value again."""
    found: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        found.setdefault((change.datasetid, change.attribute), []).append(change)
    return [change for of_one in found.values() if of_one[0].was != of_one[-1].is_now for change in of_one]


def describe_changes(changes: Iterable[Change]) -> str:
    """One sentence; empty if nothing was changed."""
    kept = lasting(changes)
    return f"changed since it was sealed: {'; '.join(map(str, kept))}" if kept else ""


def _quoted(value: str | None) -> str:
    return "nothing" if value is None else repr(value)
