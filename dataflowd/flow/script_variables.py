"""The environment variables of a script, which existing ETL scripts expect.

They are `dataid` and `jobid`; `<datasetid>_<column>` for each of COLUMNS and every input and output dataset; `param_<name>`
for each parameter. Characters that a variable's name cannot have become `_`. Values are passed unchanged; NULL is the empty
text, so that a script under `set -u` runs. For an input of several chunks, location and dataid have one line for each chunk.
If a job reads and writes the same dataset (yesterday's chunk and today's), these variables describe the output; the chunks
that it reads are in `<datasetid>_in_location` and `<datasetid>_in_dataid`. This module does not set passwords
(`<datasetid>_password`): the process that becomes the script opens them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import attempt_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from dataflowd.model.work_order import Dataset, Input, Order, Output

COLUMNS = (
    "datasetid",
    "itemtype",
    "dataid",
    "location",
    "format",
    "hostname",
    "port",
    "database",
    "schemaname",
    "tablename",
    "username",
    "encryptedpass",
)
PASSWORD = "password"  # noqa: S105 - the name of a column
SEALED = "encryptedpass"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


def variables(order: Order) -> dict[str, str]:
    found: dict[str, str] = {"dataid": order.dataid, "jobid": order.jobid}
    for name, value in _all(order):
        if name in found:
            raise AttemptError(
                "INVALID_CODE",
                f"the variable {name} would stand for two things in job {order.jobid}",
                "rename a dataset or a parameter",
            )
        found[name] = value
    return found


def sayable(found: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be used in the words of a command."""
    return {name: value for name, value in found.items() if not name.endswith(f"_{SEALED}")}


def names(inputs: Iterable[str], outputs: Iterable[str], params: Iterable[str]) -> dict[str, bool]:
    """The names that `variables` will return for a job, and whether each may be used in the words of its command."""
    written = set(outputs)
    described = [variable(name, column) for name in {*inputs, *written} for column in (*COLUMNS, PASSWORD)]
    both = [
        variable(name, column) for name in written & set(inputs) for column in ("in_location", "in_dataid")
    ]
    found = ["dataid", "jobid", *described, *both, *(variable("param", name) for name in params)]
    return {name: not name.endswith((f"_{SEALED}", f"_{PASSWORD}")) for name in found}


def password_variables(order: Order) -> dict[str, Dataset]:
    """Which variable gets the opened password of which dataset."""
    used = [one.dataset for one in order.inputs.values()] + [one.dataset for one in order.outputs.values()]
    return {
        variable(dataset.name, PASSWORD): dataset
        for dataset in used
        if dataset.connection.encryptedpass is not None
    }


def variable(*parts: str) -> str:
    return _NOT_IN_NAMES.sub("_", "_".join(parts))


def output_location(order: Order, output: Output) -> str | None:
    """The directory that this attempt alone writes; None for tables."""
    if output.location is None:
        return None
    return attempt_location(output.location, order.dataid, order.attempt, order.allowed_roots)


def _all(order: Order) -> Iterator[tuple[str, str]]:
    for output in order.outputs.values():
        place = {"itemtype": "OUT", "dataid": order.dataid, "location": output_location(order, output)}
        yield from _described(output.dataset, place)
    for source in order.inputs.values():
        place = {"itemtype": "IN", **_chunks(source)}
        if source.name not in order.outputs:
            yield from _described(source.dataset, place)
        else:
            yield variable(source.name, "in_location"), _text(place["location"])
            yield variable(source.name, "in_dataid"), _text(place["dataid"])
    for name, value in order.params.items():
        yield variable("param", name), _text(value)


def _chunks(source: Input) -> dict[str, str]:
    return {
        "dataid": "\n".join(chunk.dataid for chunk in source.chunks),
        "location": "\n".join(source.locations),
    }


def _described(dataset: Dataset, place: dict[str, Any]) -> Iterator[tuple[str, str]]:
    values = {"datasetid": dataset.datasetid, "format": dataset.format, **vars(dataset.connection), **place}
    for column in COLUMNS:
        yield variable(dataset.name, column), _text(values[column])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
