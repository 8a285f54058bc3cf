"""The declarations of a checked flow file: Flow, Dataset, Job. They are frozen; a changed file is loaded again.

The database gets `Flow.document`. Its keys are columns of dataflow.dataset and dataflow.job. It has no code references and
no Spark configuration: they stay in the file, on this host.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping
    from pathlib import Path

Kind = Literal["python", "sql", "command", "spark_submit", "outside"]
# Checks of the row count that a script reports. All other checks need a look into the files that the script wrote.
TOLD_BY_SCRIPTS = frozenset({"min_rows", "max_rows", "row_count"})


@dataclass(frozen=True, kw_only=True)
class Dataset:
    name: str
    description: str = ""
    format: str = "parquet"
    location: str | None = None
    hostname: str | None = None
    port: int | None = None
    database: str | None = None
    schemaname: str | None = None
    tablename: str | None = None
    username: str | None = None
    columns: str | None = None
    options: Mapping[str, Any]
    checks: Mapping[str, Any]
    custom_checks: tuple[
        Mapping[str, str], ...
    ] = ()  # code: {"function": "module:function", "severity": ...}
    ordering: str = "natural"
    publish: str = "pointer"
    environment: str | None = None
    digest: bool = False
    expect_newer: bool = False
    calendar: str | None = None
    zone: str = "UTC"
    start: dt.datetime | None = None
    ready: str = "end"

    def document(self) -> dict[str, Any]:
        return {
            "datasetid": self.name,
            "description": self.description,
            "format": self.format,
            "location": self.location,
            "hostname": self.hostname,
            "port": self.port,
            "database": self.database,
            "schemaname": self.schemaname,
            "tablename": self.tablename,
            "username": self.username,
            "columns": self.columns,
            "options": dict(self.options),
            "checks": dict(self.checks),
            "ordering": self.ordering,
            "publish": self.publish,
            "environment": self.environment,
            "digest": self.digest,
            "expect_newer": self.expect_newer,
            "calendar": self.calendar,
            "calendar_zone": self.zone,
            "calendar_start": self.start.isoformat() if self.start else None,
            "calendar_ready": self.ready,
        }


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    description: str = ""
    kind: Kind
    code: (
        str | tuple[str, ...]
    )  # "module:function", "file.sql", the words of a command, or "" if the job is executed outside
    inputs: Mapping[str, Mapping[str, Any]]  # dataset -> mapping
    outputs: tuple[str, ...]
    params: Mapping[str, Any]
    max_running: int | None = None
    max_attempts: int = 1
    max_lost: int = 5
    retry_delay: float = 30
    timeout: float | None = None
    priority: int = 0
    strict_order: bool = False
    rowwise: bool = False  # each output row depends on one input row
    reuse: int | None = None  # attempts of one application; None: the host's default
    slots: int | None = None  # chunks side by side in one application; None: the host's default
    quarantine: int | float | None = None  # how many records may be bad: a count, or a share when a float
    spark: Mapping[str, str]
    checks: Mapping[str, Any]
    custom_checks: tuple[Mapping[str, str], ...] = ()
    words: tuple[str, ...] = ()  # added to the command by the person who runs it; they are in no flow file
    is_replaced: bool = False  # the words are the whole command: a person runs it in place of the job's code
    like: str | None = None  # for a job that was created like another: that job, which the file declares

    def document(self) -> dict[str, Any]:
        return {
            "jobid": self.name,
            "description": self.description,
            "kind": self.kind,
            "params": dict(self.params),
            "max_running": self.max_running,
            "max_attempts": self.max_attempts,
            "max_lost": self.max_lost,
            "retry_delay": f"{self.retry_delay} seconds",
            "timeout": None if self.timeout is None else f"{self.timeout} seconds",
            "priority": self.priority,
            "strict_order": self.strict_order,
            "rowwise": self.rowwise,
            "inputs": {dataset: dict(mapping) for dataset, mapping in self.inputs.items()},
            "outputs": sorted(self.outputs),
        }


@dataclass(frozen=True, kw_only=True)
class Flow:
    name: str
    description: str = ""
    path: Path
    datasets: Mapping[str, Dataset]
    jobs: Mapping[str, Job]

    @property
    def directory(self) -> Path:
        """The directory of the flow file: modules, SQL files and commands are found relative to it."""
        return self.path.absolute().parent

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "file": str(self.path.absolute()),
            "datasets": [dataset.document() for dataset in self.datasets.values()],
            "jobs": [
                job.document() | {"config_hash": self.config_hash(name)} for name, job in self.jobs.items()
            ],
        }

    def checks_inside(self, job: Job, output: str) -> list[str]:
        """The checks of an output that need a look into its data."""
        dataset = self.datasets.get(output)
        if dataset is None:
            return []
        custom = ["custom"] if dataset.custom_checks or job.custom_checks else []
        return sorted({*dataset.checks, *job.checks, *custom} - TOLD_BY_SCRIPTS)

    def config_hash(self, job: str) -> str:
        """A hash of everything except code that may change what a run of the job produces.

        Locations, hosts, logins and limits are left out: chunks do not become stale when a disk is replaced or a limit is
        raised.
        """
        declared = self.jobs[job]
        contents = {
            name: [
                dataset.format,
                dataset.columns,
                dict(dataset.options),
                dataset.database,
                dataset.schemaname,
                dataset.tablename,
                dict(dataset.checks) if name in declared.outputs else {},
            ]
            for name, dataset in self.datasets.items()
            if name in declared.inputs or name in declared.outputs
        }
        document = declared.document()
        meaning = {key: document[key] for key in ("kind", "params", "inputs", "outputs")}
        effective = [meaning, dict(declared.spark), dict(declared.checks), declared.quarantine, contents]
        return hashlib.sha256(json.dumps(effective, sort_keys=True).encode()).hexdigest()
