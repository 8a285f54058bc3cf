"""Checks that a work order from the database agrees with the flow files of this host.

The flow files lie on this host. The owner of the database can write any row there. So if a file of this host declares a
dataset, the order must have the file's format, location and login; and a job must read and write the datasets that its
file names. A dataset that only other hosts declare cannot be compared: the settings allowed_roots and allowed_hosts limit
it, and its database name must not be a connection string, because that could name another host.

A file may be newer than the daemon's copy of it, and already applied. So a difference is compared again with the file as
it is now. A file that was changed and not yet applied differs from the database, and the order is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataflowd.flow.loaded import ScriptFlow
from dataflowd.model.faults import AttemptError
from dataflowd.model.location import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from dataflowd.flow import Flow, Job
    from dataflowd.flow.loaded import Declared
    from dataflowd.flow.model import Dataset as Declaration
    from dataflowd.model.work_order import Dataset, Input, Order, Output

LOGIN = ("hostname", "port", "database", "schemaname", "tablename", "username")

# libpq, and the programs that scripts call, read such a text as a connection string.
_CONNECTION_STRING = re.compile(r"=|//|@|^jdbc:", re.IGNORECASE)


@dataclass(frozen=True)
class Difference:
    what: str
    file: Path | None  # the file that differs from the database; None: no file of this host declares it


def require(order: Order, job: Job, declared: Declared) -> None:
    """Raises INVALID_ORDER if something differs, also after reading the flow files again."""
    found = differences(order, job, declared.flows)
    if not found:
        return
    # Each dataset, and the job, may agree with the file as it was read or as it is now: files are edited one by one.
    fresh = differences(order, job, declared.read_again())
    for name in found.keys() & fresh.keys():
        raise AttemptError("INVALID_ORDER", fresh[name].what, _remedy(fresh[name].file))


def differences(order: Order, job: Job, flows: Mapping[str, Flow]) -> dict[str, Difference]:
    """The differences, by the dataset or the job that differs."""
    found = {f"job {job.name}": _of_job(order, job, flows)}
    used = [one.dataset.datasetid for one in order.inputs.values()]
    used += [one.dataset.datasetid for one in order.outputs.values()]
    found |= {f"dataset {name}": _of_dataset(order, name, flows) for name in used}
    return {name: difference for name, difference in found.items() if difference is not None}


def _of_job(order: Order, job: Job, flows: Mapping[str, Flow]) -> Difference | None:
    """A script that a person named has no flow file, so there is nothing to compare.

    A job that was created like another uses that job's code. Its own datasets stand in the order under the names that
    this code uses.
    """
    name = job.like or job.name
    flow = next((one for one in flows.values() if name in one.jobs), None)
    if flow is None or isinstance(flow, ScriptFlow):
        return None
    declared = flow.jobs[name]
    sides = (("reads", declared.inputs, order.inputs), ("writes", declared.outputs, order.outputs))
    wrong = [
        f"the job {job.name} {verb} {_listed(said)} in {flow.path} and {_listed(found)} in the database"
        for verb, said, found in ((verb, set(said), _known(found, job)) for verb, said, found in sides)
        if said != found
    ]
    return Difference("; ".join(wrong), flow.path) if wrong else None


def _known(found: Mapping[str, Input] | Mapping[str, Output], job: Job) -> set[str]:
    return set(found) if job.like else {one.dataset.datasetid for one in found.values()}


def _of_dataset(order: Order, name: str, flows: Mapping[str, Flow]) -> Difference | None:
    written = next((one for one in order.outputs.values() if one.dataset.datasetid == name), None)
    read = next((one for one in order.inputs.values() if one.dataset.datasetid == name), None)
    sides = [one.dataset for one in (read, written) if one is not None]
    flow = next((one for one in flows.values() if name in one.datasets), None)
    if flow is None:
        return next((Difference(wrong, None) for side in sides for wrong in _strings(side)), None)
    said = flow.datasets[name]
    wrong = {line: None for side in sides for line in _compared(side, said)}
    if written is not None and written.location != (expected := _written_to(said)):
        wrong[_describe("location", expected, written.location)] = None
    if not wrong:
        return None
    return Difference(f"dataset {name} is not what {flow.path} declares: {'; '.join(wrong)}", flow.path)


def _compared(found: Dataset, said: Declaration) -> Iterator[str]:
    for column in ("format", "location", "publish"):
        if getattr(found, column) != getattr(said, column):
            yield _describe(column, getattr(said, column), getattr(found, column))
    for column in LOGIN:
        if getattr(found.connection, column) != getattr(said, column):
            yield _describe(column, getattr(said, column), getattr(found.connection, column))


def _written_to(said: Declaration) -> str | None:
    """The same rule as dataflow._written_to in SQL."""
    if said.location is None or said.publish != "rename":
        return said.location
    return f"{said.location.rstrip('/')}/{ATTEMPTS}"


def _strings(found: Dataset) -> Iterator[str]:
    value = found.connection.database
    if value is not None and _CONNECTION_STRING.search(value):
        yield f"dataset {found.datasetid}: its database {value!r:.200} is a connection string, which may name another host"


def _describe(column: str, said: object, found: object) -> str:
    return f"{column} is {_shown(said)} in the file and {_shown(found)} in the database"


def _shown(value: object) -> str:
    return "not given" if value is None else f"{value!r:.200}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _remedy(file: Path | None) -> str:
    if file is None:
        return "declare the dataset in a flow file of this host, or write the database's name alone"
    return (
        f"if the file is right, `dataflowctl apply {file}` with the settings of this host; if not, undo its change; "
        "if nobody has changed it, see who writes to the control database"
    )
