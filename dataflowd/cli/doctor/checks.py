"""The doctor's checks of a host; those of its database are in database_checks.py.

`examine` yields one Finding after another, in the order in which a person would look: the host first, then the
database. A failed check stops a run; a warning does not. A check that cannot be made because another failed says so
instead of guessing. The checks write only a file that they remove, the default root, and one NOTIFY.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.cli.doctor import attackers, database_checks
from dataflowd.cli.doctor.finding import Finding
from dataflowd.host import private
from dataflowd.model.errors import DataflowError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.host.settings import Loaded, Settings

SPARK_SECONDS = 180.0
GIB = 1024**3
LITTLE_DISK = 5 * GIB
NO_DISK = 500 * 1024**2


def examine(loaded: Loaded, *, spark: bool = True) -> Iterator[Finding]:
    settings = loaded.settings
    yield from _java_and_spark(settings, spark=spark)
    yield from spark_network(settings)
    yield disk(settings.data_dir)
    yield from roots(settings)
    yield from flows(settings)
    yield from database_checks.database(settings)
    yield Finding("promise", *attackers.judged(loaded))


def disk(data_dir: Path) -> Finding:
    existing = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            "disk",
            "failed",
            f"{existing} is not writable",
            "choose another DATAFLOW_DATA_DIR, or change its owner",
        )
    free = shutil.disk_usage(existing).free
    detail = f"{free / GIB:.1f} GiB free in {data_dir}"
    if free < NO_DISK:
        return Finding(
            "disk", "failed", detail, "free some space, or set DATAFLOW_DATA_DIR to a larger file system"
        )
    if free < LITTLE_DISK:
        return Finding("disk", "warning", detail, "Spark spills and shuffles to disk: keep 5 GiB free")
    return Finding("disk", "ok", detail)


def roots(settings: Settings) -> Iterator[Finding]:
    if not settings.root:
        try:
            private.make_passage(settings.data_dir)
            Path(settings.effective_root).mkdir(exist_ok=True)
        except OSError as error:
            yield Finding(
                "roots",
                "failed",
                f"{settings.effective_root} cannot be made: {error.strerror}",
                "set DATAFLOW_ROOT",
            )
            return
    for root in settings.effective_allowed_roots:
        yield _root(root)


def _root(root: str) -> Finding:
    if "://" in root and not root.startswith("file://"):
        return Finding(
            "roots", "skipped", f"{root} is not on this host; the runner checks it before each run"
        )
    directory = Path(root.removeprefix("file://"))
    if not directory.is_dir():
        return Finding(
            "roots",
            "failed",
            f"{directory} is not a directory",
            "create it, or correct DATAFLOW_ALLOWED_ROOTS",
        )
    try:
        with tempfile.TemporaryFile(dir=directory):
            return Finding("roots", "ok", f"{directory} is writable")
    except OSError as error:
        return Finding(
            "roots",
            "failed",
            f"{directory} is not writable: {error.strerror}",
            "change its owner, or remount it read-write",
        )


def flows(settings: Settings) -> Iterator[Finding]:
    from dataflowd import flow

    for path in settings.flows:
        elsewhere: dict[str, flow.Mistake] = {}
        try:
            loaded = flow.load(path, settings, elsewhere=elsewhere)
        except DataflowError as error:
            yield Finding(
                "flows",
                "failed",
                "; ".join(error.message.splitlines()),
                error.remedy or f"correct it; `dataflowctl apply --check {path}`",
            )
        else:
            yield Finding(
                "flows",
                "ok",
                f"{path} declares {counted(len(loaded.jobs), 'job')} for this host"
                if elsewhere
                else f"{path} declares {counted(len(loaded.jobs), 'job')}",
            )
            for job, mistake in elsewhere.items():
                yield Finding(
                    "flows",
                    "failed",
                    f"{path}:{mistake.line}: the job {job} does not run here: {mistake.what}",
                    mistake.remedy,
                )


def _java_and_spark(settings: Settings, *, spark: bool) -> Iterator[Finding]:
    from dataflowd.host.embedded import java
    from dataflowd.runner import session

    if session.is_connect(settings.master):
        yield Finding("java", "skipped", "the Connect server has its own Java")
        yield Finding("spark", "skipped", "the Connect server has its own Spark")
        return

    try:
        found = java.find(settings)
    except DataflowError as error:
        yield Finding("java", "failed", error.message, error.remedy)
        yield Finding("spark", "skipped", "needs Java")
        return
    passed_over = "".join(f"; passed over: {reason}" for reason in found.skipped)
    yield Finding("java", "ok", f"Java {found.version} in {found.home} ({found.source}){passed_over}")
    if spark:
        yield spark_starts(java.environment(found))
    else:
        yield Finding("spark", "skipped", "not asked for")


def spark_starts(environment: dict[str, str]) -> Finding:
    """Counts a few rows with a Spark of its own, in a directory that is removed with all it left there."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dataflowd-doctor-") as directory:
        probe = subprocess.Popen(
            [sys.executable, "-m", "dataflowd.runner.spark_probe"],
            env=os.environ | environment | {"SPARK_LOCAL_DIRS": directory},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        try:
            out, err = probe.communicate(timeout=SPARK_SECONDS)
        except subprocess.TimeoutExpired:
            return Finding(
                "spark",
                "failed",
                f"Spark did not start within {SPARK_SECONDS:.0f} s",
                "look for a host that is short of memory",
            )
        finally:
            _end(probe)
    if probe.returncode == 0:
        return Finding("spark", "ok", f"Spark {out.split()[-1]} counted in {time.monotonic() - began:.1f} s")
    return Finding(
        "spark",
        "failed",
        f"Spark does not start: {_last_words(err)}",
        "run `python -m dataflowd.runner.spark_probe`",
    )


def spark_network(settings: Settings) -> Iterator[Finding]:
    """Reports which ports of a runner's Spark are open to others, and which jobs open more than the host's configuration does."""
    from dataflowd.runner import protection

    if protection.is_local(settings.master):
        yield Finding("spark_network", "ok", "Spark listens on loopback alone, and demands a secret")
        return
    import pyspark

    from dataflowd import flow

    found = dict.fromkeys(protection.openings(settings.master, {}, pyspark.__version__), "")
    for path in settings.flows:
        with suppress(DataflowError):  # another check reports mistakes of a flow
            for name, job in flow.load(path, settings).jobs.items():
                for opening in protection.openings(settings.master, job.spark, pyspark.__version__):
                    found.setdefault(opening, f"job {name}: ")
    for (detail, remedy), job_name in found.items():
        yield Finding("spark_network", "warning", f"{job_name}{detail}", remedy)
    if not found:
        yield Finding("spark_network", "ok", "authenticated and encrypted, as far as this host configures it")


def _end(probe: subprocess.Popen[str]) -> None:
    """Kills the process group of the probe and its JVM. After a probe that ended by itself the group is gone."""
    try:
        os.killpg(probe.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    probe.communicate()


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or lines or ["it printed nothing"])[-1]
