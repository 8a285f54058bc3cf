"""Makes the result of a script: from the files in its attempt's directories, and from what the script reported about them.

Checks on the number of rows are judged here, by the rows that the script reported. For other checks Spark reads the files (looks.py).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataflowd.flow import script_variables
from dataflowd.host import allowed_roots
from dataflowd.model.faults import AttemptError
from dataflowd.model.formats import FILES
from dataflowd.runner.validate import publishable
from dataflowd.sdk import _quarantine
from dataflowd.storage import checks, files
from dataflowd.storage.manifest import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dataflowd.engine.report import Report
    from dataflowd.model.work_order import Order, Output


def publish(order: Order, report: Report) -> dict[str, Any]:
    """Returns outputs, checks and quarantine of the result; raises if the chunk must not be published."""
    outputs = {name: _manifest(order, output, report) for name, output in order.outputs.items()}
    results = [*report.checks.values(), *_judged(order, outputs, len(report.bad))]
    details: dict[str, Any] = {"checks": [result.document() for result in results]}
    rows = sum(made["rows"] or 0 for made in outputs.values()) + len(report.bad)
    seen = [_quarantine.Seen("report", rows, len(report.bad), 0, tuple(report.bad))]
    with publishable(details, results, seen, order.quarantine):
        return details | {"outputs": outputs, "quarantine": _quarantine.documents(seen)}


def _judged(order: Order, outputs: Mapping[str, Any], bad: int) -> Iterator[checks.CheckResult]:
    """Judges the checks on the number of rows."""
    counted = {name: source.rows for name, source in order.inputs.items()}
    for name, output in order.outputs.items():
        declared, rows = output.dataset.checks, outputs[name]["rows"]
        for result in checks.judge_rows(name, declared, rows or 0, checks.SetAside(bad), counted):
            if rows is None:
                yield checks.CheckResult(
                    name,
                    result.name,
                    result.severity,
                    False,
                    "the script reported no number of rows",
                    result.expected,
                )
            else:
                yield result


def _manifest(order: Order, output: Output, report: Report) -> dict[str, Any]:
    reported = report.files.get(output.name, {})
    location = script_variables.output_location(order, output)
    path = allowed_roots.local_path(location) if location is not None else None
    if path is None or output.dataset.format not in FILES:
        found: list[dict[str, Any]] = [
            {"path": name, "bytes": 0, **known} for name, known in reported.items()
        ]
    else:
        found = [file.document() | reported.get(file.path, {}) for file in _files(order, output, path)]
        if unknown := sorted(reported.keys() - {file["path"] for file in found}):
            raise AttemptError(
                "WRONG_DATA",
                f"{output.name}: the script reported the file {unknown[0]}, which is not in {path}",
                f"write into the directory that {script_variables.variable(output.name, 'location')} names",
            )
    rows = report.rows.get(output.name)
    if rows is None and found and all("rows" in file for file in found):
        rows = sum(file["rows"] for file in found)
    return manifest(location, found, rows)


def _entries(path: Path) -> Iterator[Path]:
    """Yields the directory itself, and everything below it."""
    if os.path.lexists(path):
        yield path
    for parent, directories, names in os.walk(path):
        for name in (*directories, *names):
            yield Path(parent) / name


def _files(order: Order, output: Output, path: Path) -> list[files.File]:
    """Lists the files that a script has left; refuses links, which would lead readers elsewhere, and pipes, on which they
    would wait. Parquet and ORC files of a spark_submit job have their number of rows in their footers.
    """
    name = output.name
    allowed_roots.check(str(path), order.allowed_roots)
    for entry in _entries(path):
        kind = entry.lstat().st_mode
        if stat.S_ISLNK(kind) or not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
            what = "a link" if stat.S_ISLNK(kind) else "neither a file nor a directory"
            raise AttemptError("INVALID_PATH", f"{name}: {entry} is {what}", "let the script write files")
    footers = output.dataset.format if order.kind == "spark_submit" else ""
    found = files.local_listing(path, footers, digest=output.dataset.digest)
    if not found:
        raise AttemptError(
            "NO_OUTPUT",
            f"there is no file in {path}"
            if order.kind == "outside"
            else f"the script ended with status 0 and left no file in {path}",
            f"write into the directory that {script_variables.variable(name, 'location')} names, or declare {name} with format none",
        )
    return found
