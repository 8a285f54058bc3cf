"""What makes the many short-lived JVMs of a test session cheap.

One archive of Spark's classes for the daemons, where enough tests start Spark to be worth it: made beside the tests, once for
all their processes, and used from the moment at which it is there. And no second compiler: it costs as much as all the rest
of a JVM which ends before it could pay, and in a session there are hundreds of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from dataflowd.engine import class_archive
from dataflowd.host.embedded import java
from dataflowd.host.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED = "DATAFLOWD_TESTS"  # the variable that names a directory of all processes of a test session
ENOUGH = 30  # tests in tests/spark
CONF_VARIABLE = "SPARK_CONF_DIR"  # of Spark's own; daemons hand it on to runners
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1\n"


def pytest_configure(config: pytest.Config) -> None:
    """In the process that starts the others, and removes the directory in the end."""
    if SHARED in os.environ:
        return
    os.environ[SHARED] = tempfile.mkdtemp(prefix="dataflowd-shared-")
    config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(SHARED), ignore_errors=True))
    conf = Path(os.environ[SHARED], "conf")
    conf.mkdir()
    (conf / "java-opts").write_text(JAVA_OPTIONS, encoding="utf-8")
    os.environ.setdefault(CONF_VARIABLE, str(conf))


@pytest.fixture(scope="session", autouse=True)
def class_archives(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    """Where they will be; None when few tests were asked for."""
    if sum(item.path.parent.name == "spark" for item in request.session.items) < ENOUGH:
        yield None
    elif _is_first():
        with subprocess.Popen([sys.executable, "-m", "tests.fix_classes"]) as making:
            yield _directory()
            making.terminate()
    else:
        yield _directory()


def variables() -> dict[str, str]:
    """For a daemon's environment; benches and chaos have daemons too, and nothing of this."""
    if SHARED not in os.environ:
        return {}
    archives = {"DATAFLOW_CLASS_ARCHIVES": str(_directory())} if any(_directory().glob("*.jsa")) else {}
    return {CONF_VARIABLE: os.environ[CONF_VARIABLE]} | archives


def _directory() -> Path:
    return Path(os.environ[SHARED], "classes")


def _is_first() -> bool:
    with suppress(FileExistsError):
        _directory().mkdir()
        return True
    return False


def make() -> None:
    directory = _directory()
    ours = {"data_dir": directory.parent / "training", "class_archives": directory, "java_home": None}
    settings = Settings().model_copy(update=ours)  # the environment would outrank arguments
    anyio.run(class_archive.make, settings, java.find(settings))


if __name__ == "__main__":
    make()
