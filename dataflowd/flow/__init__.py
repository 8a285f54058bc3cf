"""Flow files: read, checked completely, and brought into the database.

`load` turns a file into a frozen Flow, or raises with all its mistakes; `plan` and `apply` compare it with the
database and change that. Code references, commands and Spark configuration never leave the file.

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
