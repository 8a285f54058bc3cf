"""Runs a job on DataFrames or files, through the steps of an attempt, with no daemon and no database.

`dataflowd.testing` is the public face of this module. `training` makes the class archive with it.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dataflowd.flow import load as load_checked
from dataflowd.flow.compose import with_checks
from dataflowd.host import scratch
from dataflowd.host.settings import load
from dataflowd.model import formats
from dataflowd.model.faults import AttemptError
from dataflowd.model.plural import counted
from dataflowd.model.work_order import Chunk, Dataset, Input, Order, Output
from dataflowd.runner import execute
from dataflowd.runner.explain import fault
from dataflowd.runner.own_spark import own_spark
from dataflowd.runner.session import NOISY_LOGGERS
from dataflowd.sdk.context import Context
from dataflowd.storage import files, stored_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from dataflowd.flow import Flow, Job
    from dataflowd.flow.model import Dataset as Declared


@contextmanager
def local_spark(cores: int = 2) -> Iterator[SparkSession]:
    """Starts a small Spark, which leaves no files behind. If this process has a Spark already, uses it and leaves it running."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only a caller of this function pays for the import

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    few = {"spark.sql.shuffle.partitions": "2"}
    with own_spark(load().settings, str(cores), scratch.REHEARSAL, few) as session:
        yield session


def load_flow(path: Path) -> Flow:
    """Loads a flow file with this host's settings and checks it completely."""
    return load_checked(path, load().settings)


@dataclass
class Recorded:
    """Everything that a job reported while it ran."""

    lines: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    done: list[tuple[int, int | None]] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)

    def log(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, done: int, total: int | None) -> None:
        self.done.append((done, total))

    def step(self, name: str) -> None:
        self.steps.append(name)

    def found(self, document: dict[str, Any]) -> None:
        self.evidence = document

    def confirm(self) -> bool:
        return True


@dataclass(frozen=True)
class Ran:
    outputs: dict[str, DataFrame]
    quarantine: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    lines: list[str]


def run_job(  # noqa: PLR0913 - all but the first four have defaults
    function: Callable[[Context], Any],
    spark: SparkSession,
    inputs: Mapping[str, DataFrame | Path],
    outputs: Iterable[str],
    *,
    params: Mapping[str, Any] | None = None,
    dataid: str = "test",
    flow: Flow | None = None,
    job: str | None = None,
    datasets: Mapping[str, Declared] | None = None,
    quarantine: float | None = None,
    resolved: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = (),
) -> Ran:
    """`inputs`: a DataFrame, or a file that is read as its dataset says.

    `flow`: from `load_flow`. The job is the one whose code is this function; if several jobs have this code, `job` names one.
    The job's declarations apply: `params` adds to its parameters, `quarantine` replaces its limit. `datasets`: without a flow,
    the declarations of datasets.

    `resolved`: records from the quarantine of an earlier run, each with the columns that a person repaired; None drops it.
    """
    declared = flow.datasets if flow is not None else datasets or {}
    own = _job_of(flow, function, job) if flow is not None else None
    with TemporaryDirectory(prefix="dataflowd-test-") as directory:
        order = Order(
            attempt=1,
            jobid=own.name if own is not None else getattr(function, "__name__", "job"),
            dataid=dataid,
            tag="dataflow-test",
            params=(dict(own.params) if own is not None else {}) | dict(params or {}),
            code="",
            directory=str(flow.directory) if flow is not None else "",
            quarantine=own.quarantine if own is not None and quarantine is None else quarantine,
            inputs={name: _input(name, value, declared) for name, value in inputs.items()},
            outputs={
                name: Output(dataset=_dataset(name, declared), location=f"{directory}/{name}")
                for name in outputs
            },
            resolved=tuple({"mark": bad["details"]["mark"], "repaired": fix} for bad, fix in resolved),
        )
        if flow is not None and own is not None:
            order = with_checks(order, flow, own)
        recorded = Recorded()
        frames = {name: value for name, value in inputs.items() if not isinstance(value, Path)}
        ctx = Context(order, spark, recorded, threading.Event(), frames=frames)
        with _explained(frames):
            for name, source in order.inputs.items():
                if name not in frames:
                    stored_columns.check(spark, source.dataset, source.chunks)
            execute.run(ctx, function)
            found = execute.validate(ctx)
        written = {
            name: _in_memory(files.read_back(spark, item.dataset, item.location, item.schema))
            for name, item in ctx.written().items()
        }
    return Ran(written, found["quarantine"], found["checks"], found["nodes"], recorded.lines)


def _job_of(flow: Flow, function: Callable[[Context], Any], name: str | None) -> Job:
    """Finds the job of a flow whose code is this function, or whose name is `name`."""
    own = getattr(function, "__name__", "")
    found = [
        job
        for job in flow.jobs.values()
        if (job.name == name if name is not None else str(job.code).rpartition(":")[2] == own)
    ]
    if len(found) == 1:
        return found[0]
    known = f"its jobs are {', '.join(flow.jobs) or 'none'}"
    if name is not None:
        raise AttemptError("INVALID_CODE", f"{flow.path} has no job {name!r}", known)
    raise AttemptError(
        "INVALID_CODE",
        f"{flow.path} has {counted(len(found), 'job')} whose code is {own!r}",
        f'name one with job="..."; {known}',
    )


@contextmanager
def _explained(frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Raises errors as an attempt would report them: once, and without the stack of the JVM."""
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415

    loggers = {name: logging.getLogger(name).level for name in NOISY_LOGGERS}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is raised again
        failure = fault(error)
        lacking = error.getMessageParameters() if isinstance(error, AnalysisException) else None
        if frames and "`_metadata`" in (lacking or {}).get("objectName", ""):
            failure = AttemptError(
                failure.code,
                f"the job asks for _metadata, which only rows of files have, and {', '.join(frames)} came as a DataFrame",
                "give run_job the path of a file for this input",
            )
        raise failure from (None if isinstance(error, PySparkException) else error)
    finally:
        for name, level in loggers.items():
            logging.getLogger(name).setLevel(level)


def _input(name: str, value: DataFrame | Path, declared: Mapping[str, Declared]) -> Input:
    location = str(value) if isinstance(value, Path) else None
    return Input(dataset=_dataset(name, declared), chunks=(Chunk(dataid="test", location=location),))


def _dataset(name: str, declared: Mapping[str, Declared]) -> Dataset:
    if name not in declared:
        return Dataset(name=name)
    found = declared[name]
    return Dataset(
        name=name,
        # Without a database, the rows of a table go to files.
        format="parquet" if found.format in formats.TABLES else found.format,
        columns=found.columns,
        options={} if found.format in formats.TABLES else dict(found.options),
        checks=dict(found.checks),
        custom_checks=tuple(dict(check) for check in found.custom_checks),
    )


def _in_memory(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.createDataFrame(frame.collect(), frame.schema)
