"""Checks of a script's output that need the rows themselves: Spark reads them after the script has ended, before anything is published.

The script reports the number of rows (publish.py). Checks of values need the files. Their format is declared, so a runner reads
them with dataflowd.jobs:look as the code of the job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dataflowd.flow.model import TOLD_BY_SCRIPTS
from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    from dataflowd.model.attempt import Result
    from dataflowd.model.work_order import Order, Output

CODE = "dataflowd.jobs:look"


def needed(order: Order) -> dict[str, Output]:
    """Returns the outputs whose rows have to be read, each with only the checks that need this."""
    found = {}
    for name, output in order.outputs.items():
        inside = {check: how for check, how in output.dataset.checks.items() if check not in TOLD_BY_SCRIPTS}
        if inside or output.dataset.custom_checks:
            found[name] = replace(output, dataset=replace(output.dataset, checks=inside))
    return found


def require_none(order: Order) -> None:
    """Raises if a check needs Spark, for a daemon without Spark: an output that is not checked is not published."""
    for name, output in needed(order).items():
        asked = [*output.dataset.checks, *(["custom"] if output.dataset.custom_checks else [])]
        raise AttemptError(
            "NOT_ALLOWED",
            f"the checks {', '.join(sorted(asked))} of dataset {name} need Spark, and this daemon runs only commands",
            "run the daemon with --engine spark; in the foreground, name the flow file: DATAFLOW_FLOWS=flow.toml",
        )


def order_of(order: Order, made: Result) -> Order:
    """Returns the order to read what the script has made, at its location."""
    where = {
        name: replace(output, location=made.outputs[output.dataset.datasetid]["location"])
        for name, output in needed(order).items()
    }
    changes: dict[str, Any] = {"inputs": {}, "resolved": (), "quarantine": None}
    return replace(order, kind="python", code=CODE, outputs=where, **changes)


def combined(made: Result, looked: Result) -> Result:
    """Joins the results of the script and of the checks. If the checks did not pass, nothing is published, and their results are kept."""
    checks = [*made.checks, *looked.checks]
    if looked.outcome != "DONE":
        return replace(
            looked, checks=checks, usage=made.usage, found=made.found, outputs={}, nodes=[], quarantine=[]
        )
    outputs = {
        name: manifest | {"rows": looked.outputs.get(name, {}).get("rows")}
        if manifest.get("rows") is None and name in looked.outputs
        else manifest
        for name, manifest in made.outputs.items()
    }
    return replace(made, checks=checks, outputs=outputs)
