"""An archive of the classes that Spark loads, from which every further JVM takes them.

Finding, checking and linking thousands of classes is nearly half of what a Spark application costs until its first
chunk is done. Java can map them from a file instead (class data sharing). That file belongs to one Java and one Spark, so
a daemon makes it on the host itself: once, after it has started a runner without one, when no attempt has run for a
while or after several such starts, with the time that others leave (dataflowd.runner.training). Java looks whether the
file fits before it uses it, and goes without one that does not, or that is gone. There are only classes of Java and
Spark in it, and nothing of a job.

It fits where the class path begins as it did when the file was made. Spark's own names a jar twice, which Java 21 does not
take for the same; so Spark's jars are put before it, each once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from dataflowd.engine import submit
from dataflowd.host import log, private, supervise
from dataflowd.host.scratch import RUNNER
from dataflowd.runner import session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dataflowd.host.embedded.java import Java
    from dataflowd.host.settings import Settings

TRAINING = "dataflowd.runner.training"
ARCHIVE = "classes.jsa"
QUIET_SECONDS = 30.0
POLL_SECONDS = 5.0
STARTS = 5
MOST_SECONDS = 1800.0
READABLE = 0o644
UNUSED_SECONDS = 30 * 24 * 3600

_log = log.logger(__name__)


def archive(settings: Settings, java: Java) -> Path:
    """Where the file for this Java and the installed Spark is, or would be."""
    jars = "\n".join(f"{path} {path.stat().st_mtime_ns}" for path in session.jars())
    key = f"{java.runtime or java.home}\n{java.version}\n{jars}"
    return settings.effective_class_archives / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def applied(spark: Mapping[str, str], path: Path) -> dict[str, str]:
    """Spark's configuration with the archive, if there is one. What the flow says about Java comes later, and wins."""
    with suppress(OSError):
        os.utime(path)  # so that it is known to be in use; not ours to touch in an image
    if not path.is_file() or session.CLASS_PATH in spark:
        return dict(spark)
    ours = f"-XX:SharedArchiveFile={path} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
    return dict(spark) | {
        session.JAVA_OPTIONS: f"{ours} {spark.get(session.JAVA_OPTIONS, '')}".strip(),
        session.CLASS_PATH: session.class_path(),
    }


async def learn(
    settings: Settings, java: Java, is_busy: Callable[[], bool], starts: Callable[[], int]
) -> None:
    """Makes the archive when the time has come for it. Whatever goes wrong with it leaves everything as it was."""
    log.leave_attempt()
    quiet = 0.0
    while quiet < QUIET_SECONDS and starts() < STARTS:
        await anyio.sleep(POLL_SECONDS)
        quiet = 0.0 if is_busy() else quiet + POLL_SECONDS
    try:
        if not archive(settings, java).exists():  # another daemon's may have come first
            await make(settings, java)
    except (OSError, TimeoutError) as error:
        _log.warning("classes.failed", error=str(error) or type(error).__name__)
    except Exception:  # noqa: BLE001 - without an archive every runner works as before, only slower
        _log.exception("classes.failed")


async def make(settings: Settings, java: Java) -> None:
    began = time.monotonic()
    path = archive(settings, java)
    private.make_passage(path.parent)
    directory = supervise.own_directory(private.make_spool(settings), RUNNER)
    unfinished = path.with_name(f".{directory.name}")
    try:
        ended = await _train(settings, java, directory)
        if ended.code == 0:
            shutil.move(directory / ARCHIVE, unfinished)
            unfinished.chmod(READABLE)  # also where another user runs the jobs
            unfinished.replace(path)
            _log.info("classes.archived", path=str(path), seconds=round(time.monotonic() - began, 1))
            _forget_unused(path.parent)
        else:
            _log.warning("classes.failed", error=str(ended), tail=ended.tail)
    finally:
        unfinished.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


async def _train(settings: Settings, java: Java, directory: Path) -> supervise.Exit:
    """By this daemon's own account: job code has no part in it, and must not be able to change what comes of it."""
    child = supervise.spawn(
        [sys.executable, "-m", TRAINING, str(directory / ARCHIVE)],
        env=submit.environment("local", {}, {"JAVA_HOME": str(java.home)}, directory, ""),
        cwd=directory,
        log_path=settings.effective_log_dir / "runners" / f"{directory.name}.log",
    )
    try:
        with anyio.fail_after(MOST_SECONDS):
            ended = await child.wait()
    except BaseException:
        await child.terminate(0)
        raise
    return ended


def _forget_unused(directory: Path) -> None:
    """Those of a Java or a Spark that is no more; and what a killed daemon has left unfinished."""
    for path in directory.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                path.unlink()
