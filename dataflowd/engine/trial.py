"""A trial: the real code of a job on a part of its real input, in a runner of its own, with nothing published.

A trial takes the steps of every attempt (order, runner, prepare, run, validate) except the first and the last. Nothing is
claimed: the database only says what the inputs are. Nothing is published: the job writes to a directory that is removed when
the trial ends in any way. The runner is on this host, whatever the setting `master` says: a sample is small, and the executors
of a cluster would not see that directory. If this process is killed, the runner dies with it, and the next program removes the
directory (dataflowd.host.scratch).

Most of a trial's time is the start of the JVM and its compilation of code. For code that runs once on a few rows the slow
optimising compiler of the JVM does not pay, so a trial switches it off, unless the job's own options say otherwise.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dataflowd.engine import class_archive
from dataflowd.engine.runner import Pending, Runner, started_alone
from dataflowd.flow import agreement
from dataflowd.flow.compose import composed, environment
from dataflowd.host import scratch
from dataflowd.host.embedded import java
from dataflowd.host.keyfile import KeySource
from dataflowd.model import formats
from dataflowd.model.errors import NotAllowedError
from dataflowd.model.faults import AttemptError
from dataflowd.runner.session import JAVA_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dataflowd.flow import Flow, Job
    from dataflowd.flow.loaded import Declared
    from dataflowd.host.settings import Settings
    from dataflowd.model.work_order import Dataset, Input, Order, Output, Trial

MASTER = "local[*]"
QUICK_START = "-XX:TieredStopAtLevel=1"
ATTEMPT = 0


@dataclass
class Tried:
    """How a trial ended: the result as the runner sent it, and how long each step took."""

    result: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)


def refuse(job: Job) -> None:
    if job.kind not in {"python", "sql"}:
        raise NotAllowedError(
            f"the job {job.name} is of kind {job.kind}: its program writes where it will, and a trial could not hold it back",
            "try jobs of the kinds python and sql; run the program by hand on data of your own",
        )


def order(  # noqa: PLR0913, PLR0917 - everything that an order is composed of
    found: dict[str, Any],
    declared: Declared,
    jobid: str,
    dataid: str,
    trial: Trial,
    settings: Settings,
    directory: Path,
) -> Order:
    """Composes the order of a trial from `found`, the answer of dataflow.trial_order. Raises if that answer is a refusal."""
    flow, job = declared.job(jobid)
    if "code" in found:
        remedy = found.get("remedy") or f"dataflowctl why {jobid} {dataid}"
        raise AttemptError(found["code"], f"{jobid} cannot be tried on {dataid}: {found['detail']}", remedy)
    identity = {
        "attempt": ATTEMPT,
        "jobid": jobid,
        "dataid": dataid,
        "tag": f"dataflow-try-{uuid.uuid4()}",
        "trial": asdict(trial),
    }
    whole = composed(found, identity, flow, job, settings)
    agreement.require(whole, job, declared)
    return replace(
        whole,
        inputs={name: _uncounted(source) for name, source in whole.inputs.items()},
        outputs={name: _aside(output, directory) for name, output in whole.outputs.items()},
        allowed_roots=(*whole.allowed_roots, str(directory)),
    )


def _uncounted(source: Input) -> Input:
    """Removes the row counts of the manifests: a trial reads a sample, whose rows are counted when it is read."""
    return replace(source, chunks=tuple(replace(chunk, rows=None) for chunk in source.chunks))


def _aside(output: Output, directory: Path) -> Output:
    return replace(output, dataset=_as_files(output.dataset), location=f"{directory}/{output.name}")


def _as_files(dataset: Dataset) -> Dataset:
    """Makes min_rows a warning, because a sample may have too few rows, and makes a dataset that is not files Parquet."""
    checks = dict(dataset.checks)
    if "min_rows" in checks:
        checks["min_rows"] = checks["min_rows"] | {"severity": "warn"}
    if dataset.format in formats.FILES:
        return replace(dataset, checks=checks)
    return replace(dataset, checks=checks, format="parquet", options={})


async def run(
    settings: Settings, flow: Flow, job: Job, make_order: Callable[[Path], Order], say: Callable[[str], None]
) -> Tried:
    """Starts a runner, sends it the order, and waits for the end. Removes runner and directory also when it is cancelled."""
    with scratch.own_temporary(settings, scratch.TRIAL) as directory:
        order = make_order(directory / "output")
        local = settings.model_copy(
            update={
                "master": MASTER,
                "data_dir": directory,
                "log_dir": directory / "log",
                "runner_user": "",
                # By default the key is in the data directory, and data_dir is another directory here.
                "key_file": KeySource.of(settings).file,
            }
        )
        # Not in a thread: a signal that ends the program while a thread starts would leave the program waiting for that thread.
        found = java.find(settings)
        quick = {**job.spark, JAVA_OPTIONS: f"{QUICK_START} {job.spark.get(JAVA_OPTIONS, '')}".strip()}
        spark = class_archive.applied(quick, class_archive.archive(settings, found))
        async with started_alone(local, spark, environment(flow, java.environment(found))) as runner:
            return await _execute(runner, order, say)


async def _execute(runner: Runner, order: Order, say: Callable[[str], None]) -> Tried:
    moments = [("start", time.monotonic())]

    def on_message(message: dict[str, Any]) -> None:
        match message["type"]:
            case "log":
                say(message["line"])
            case "step":
                moments.append((message["step"], time.monotonic()))

    pending = runner.pending[order.attempt] = Pending(on_message)
    if await runner.ready():
        await runner.send({"type": "order", "order": order.document()})
        await pending.ended.wait()
    moments.append(("end", time.monotonic()))
    if pending.result is None:
        if pending.failure is not None:
            raise pending.failure
        tail = runner.exit.tail if runner.exit else ""
        said = f"the runner died: {runner.how}\n{tail}".rstrip()
        raise AttemptError("RUNNER_DIED", said, "look at what the job does to its process")
    steps = pairwise(moments)
    seconds = {name: round(after - began, 2) for (name, began), (_, after) in steps if name != "publish"}
    return Tried(pending.result, seconds)
