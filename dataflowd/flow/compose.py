"""Composes a work order: adds this host's half, from the flow file and the settings, to the database's half.

Also computes the version of a job's code and configuration, which is stored with each attempt.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dataflowd.flow import codehash
from dataflowd.model import vetting
from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import Order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dataflowd.flow import Flow, Job
    from dataflowd.flow.codehash import Code
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Result


def composed(
    found: dict[str, Any], identity: dict[str, Any], flow: Flow, job: Job, settings: Settings
) -> Order:
    """`found`: the database's half of the order; `identity`: the fields of the attempt. Raises INVALID_ORDER."""
    here = {
        "kind": job.kind,
        "code": job.code,
        "directory": str(flow.directory),
        "quarantine": job.quarantine,
    }
    return with_checks(vetted(found, identity | here, settings), flow, job)


def vetted(found: dict[str, Any], here: dict[str, Any], settings: Settings, *more_roots: str) -> Order:
    """The order of both halves, vetted and parsed: once, on the side that composes it. Raises INVALID_ORDER."""
    vetting.database_half(found)
    allowed = {
        "allowed_roots": (*settings.effective_allowed_roots, *more_roots),
        "allowed_hosts": settings.effective_allowed_hosts,
    }
    return Order.parse(found | here | allowed)


def with_checks(order: Order, flow: Flow, job: Job) -> Order:
    """Adds the checks of this host's flow file. Custom checks name code, so none is taken from the database."""
    inputs = {
        name: replace(source, dataset=replace(source.dataset, custom_checks=()))
        for name, source in order.inputs.items()
    }
    outputs = {}
    for name, output in order.outputs.items():
        declared = flow.datasets.get(name)
        custom = (*(declared.custom_checks if declared else ()), *job.custom_checks)
        dataset = replace(
            output.dataset,
            checks=output.dataset.checks | dict(job.checks),
            custom_checks=tuple(map(dict, custom)),
        )
        outputs[name] = replace(output, dataset=dataset)
    return replace(order, inputs=inputs, outputs=outputs)


def of_order(result: Result, order: Order) -> Result:
    """Adds the code and configuration that the order names, and renames the datasets of a result to their own names: a job that
    was created like another uses that job's names.
    """
    told = {"outputs": result.outputs, "checks": result.checks, "judged": result.judged}
    return replace(
        result, **told_by_own_names(told, order), code_hash=order.code_hash, config_hash=order.config_hash
    )


def told_by_own_names(told: Mapping[str, Any], order: Order) -> dict[str, Any]:
    """As of_order, for the fields of a result that is not complete yet."""
    own = {name: source.dataset.datasetid for name, source in order.inputs.items()}
    own |= {name: output.dataset.datasetid for name, output in order.outputs.items()}
    renamed = dict(told)
    if "outputs" in told:
        renamed["outputs"] = {own.get(name, name): manifest for name, manifest in told["outputs"].items()}
    for listed in {"checks", "judged"} & told.keys():
        renamed[listed] = [
            {**one, "dataset": own.get(one.get("dataset", ""), one.get("dataset"))} for one in told[listed]
        ]
    return renamed


def environment(flow: Flow, java: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a runner of this flow, and its Python workers, find Java and the flow's modules."""
    path = [str(flow.directory), os.environ.get("PYTHONPATH", "")]
    return dict(java) | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def references(flow: Flow, job: Job) -> list[str]:
    """The functions that a job names: its own, and its custom checks."""
    own = [str(job.code)] if job.kind == "python" else []
    datasets = [flow.datasets[name] for name in job.outputs if name in flow.datasets]
    outputs = [check["function"] for dataset in datasets for check in dataset.custom_checks]
    return [*own, *outputs, *(check["function"] for check in job.custom_checks)]


@dataclass(frozen=True)
class Version:
    """The version of a job's code and configuration."""

    code: Code
    config_hash: str


def versions(flow: Flow) -> dict[str, Version]:
    """The code and configuration of each job whose code can be read here."""
    found = {}
    for name, job in flow.jobs.items():
        if job.kind == "outside" or job.is_replaced:
            continue
        with suppress(OSError):
            found[name] = version_of(flow, job)
    return found


def as_parameters(told: Mapping[str, Version]) -> dict[str, list[Any]]:
    """The parameters of the queries code_versions and other_code."""
    return {
        "jobids": list(told),
        "code_hashes": [version.code.hash for version in told.values()],
        "config_hashes": [version.config_hash for version in told.values()],
        "parts": [json.dumps(dict(version.code.parts)) for version in told.values()],
        "whole_hashes": [version.code.whole_hash for version in told.values()],
    }


@contextmanager
def readable() -> Iterator[None]:
    """Around what reads a job's code or its flow file. Raises INVALID_CODE."""
    try:
        yield
    except OSError as error:
        raise AttemptError(
            "INVALID_CODE",
            f"the job's code cannot be read: {error}",
            "put the file back, or let the user who runs the jobs read it",
        ) from None


def version_of(flow: Flow, job: Job) -> Version:
    return Version(_code(flow, job), flow.config_hash(job.like or job.name))


def _code(flow: Flow, job: Job) -> Code:
    match job.code:
        case str() if job.kind == "sql":
            return codehash.of_sql(job.code, flow.directory)
        case str():
            return codehash.of_python(references(flow, job), flow.directory)
        case words:
            return codehash.of_command(words, flow.directory)
