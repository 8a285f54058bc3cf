"""Flow files: reads them, checks them completely, and applies them to the database.

`load` turns a file into a frozen Flow, or raises with all its mistakes. `plan` compares a flow with the database, and
`apply` changes the database. Code references, commands and Spark configuration stay in the file.

This room knows what a flow declares and which code each job runs on this host. It knows neither where the data lies nor
how it is read, and starts no process.
"""

from __future__ import annotations

from dataflowd.flow.apply import Change, apply, conflicts, plan
from dataflowd.flow.check import load
from dataflowd.flow.mistakes import FlowMistakesError, Mistake
from dataflowd.flow.model import Dataset, Flow, Job

__all__ = [
    "Change",
    "Dataset",
    "Flow",
    "FlowMistakesError",
    "Job",
    "Mistake",
    "apply",
    "conflicts",
    "load",
    "plan",
]
