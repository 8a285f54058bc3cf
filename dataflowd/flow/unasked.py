"""Finds declared checks that no job runs, so that `apply` can warn: otherwise a person would rely on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflowd.model.formats import FILES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.flow.model import Dataset, Flow

ON_SPARK = frozenset({"python", "sql"})
OF_OUTPUTS = frozenset({"row_count"})


def unasked(flow: Flow) -> list[str]:
    """One sentence for each dataset from outside whose checks are not run, or not before every job that reads it."""
    made = {output for job in flow.jobs.values() for output in job.outputs}
    return [
        f"dataset {name}: {said}"
        for name, dataset in flow.datasets.items()
        if name not in made and (dataset.checks or dataset.custom_checks)
        for said in _said(flow, dataset)
    ]


def _said(flow: Flow, dataset: Dataset) -> Iterator[str]:
    readers = [job for job in flow.jobs.values() if dataset.name in job.inputs]
    scripts = ", ".join(sorted(job.name for job in readers if job.kind not in ON_SPARK))
    everything = ", ".join(sorted({*dataset.checks, *(("custom",) if dataset.custom_checks else ())}))
    if dataset.format not in FILES:
        yield f"its checks ({everything}) are not run: no job makes it, and format {dataset.format!r} is not looked into"
        return
    if all(job.kind not in ON_SPARK for job in readers):
        who = f"only scripts read it ({scripts})" if scripts else "no job of this flow reads it"
        yield f"its checks ({everything}) are not run: no job makes it, and {who}"
        return
    left_out = sorted(
        {*OF_OUTPUTS.intersection(dataset.checks), *(("custom",) if dataset.custom_checks else ())}
    )
    if left_out:
        yield f"{', '.join(left_out)} is not run: this check needs a job that makes the dataset, and no job does"
    if scripts:
        yield f"its checks are run by the first Spark job that reads it; {scripts} may start before"
