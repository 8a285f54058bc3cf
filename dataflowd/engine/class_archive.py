"""Makes an archive of the classes that Spark loads, from which every later JVM maps them.

Finding, checking and linking thousands of classes takes nearly half of the time until a Spark application has done its first
chunk. Java can map the classes from a file instead (class data sharing). The file fits one version of Java and of Spark, so a
daemon makes it on its own host, once: after it has started a runner without an archive, when no attempt has run for
QUIET_SECONDS or after STARTS such starts, with idle priority (dataflowd.runner.training). Java checks whether the file fits
before it uses it, and starts without it otherwise. The archive holds only classes of Java and Spark, none of a job.

The archive fits only if the class path begins as it did when the archive was made. Spark's own class path names a jar twice,
which Java 21 does not accept as the same path; so Spark's jars are put in front of it, each once.
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
    """Returns the path of the archive for this Java and the installed Spark, whether it exists or not."""
    jars = "\n".join(f"{path} {path.stat().st_mtime_ns}" for path in session.jars())
    key = f"{java.runtime or java.home}\n{java.version}\n{jars}"
    return settings.effective_class_archives / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def applied(spark: Mapping[str, str], path: Path) -> dict[str, str]:
    """Returns Spark's configuration with the archive, if there is one. The flow's own options for Java come last, and win."""
    with suppress(OSError):  # the archive of an image may be read-only
        os.utime(path)  # marks the archive as in use
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
    """Waits until the host is quiet, or until STARTS cold starts, and makes the archive. A failure is only logged."""
    log.leave_attempt()
    quiet = 0.0
    while quiet < QUIET_SECONDS and starts() < STARTS:
        await anyio.sleep(POLL_SECONDS)
        quiet = 0.0 if is_busy() else quiet + POLL_SECONDS
    try:
        if not archive(settings, java).exists():  # another daemon may have made it first
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
            unfinished.chmod(READABLE)  # another user may run the jobs
            unfinished.replace(path)
            _log.info("classes.archived", path=str(path), seconds=round(time.monotonic() - began, 1))
            _remove_unused(path.parent)
        else:
            _log.warning("classes.failed", error=str(ended), tail=ended.tail)
    finally:
        unfinished.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


async def _train(settings: Settings, java: Java, directory: Path) -> supervise.Exit:
    """Runs the training as the daemon's own user, so that job code cannot change the archive."""
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


def _remove_unused(directory: Path) -> None:
    """Removes archives of a Java or a Spark that is no longer used, and files that a killed daemon has left unfinished."""
    for path in directory.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                path.unlink()
