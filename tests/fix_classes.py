"""Makes the many short-lived JVMs of a test session start faster.

If enough tests start Spark, one archive of Spark's classes is made in the background, once for all processes of the session.
Daemons use it as soon as it exists. Also, the JVMs run without the second compiler: for a JVM that ends soon it doubles the
cost, and a session starts hundreds of them.
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

SHARED = "DATAFLOWD_TESTS"  # the variable with a directory that all processes of a test session share
ENOUGH = 1  # tests in tests/spark
CONF_VARIABLE = "SPARK_CONF_DIR"  # Spark reads it; daemons pass it to runners
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1\n"


def pytest_configure(config: pytest.Config) -> None:
    """Makes the shared directory in the first process, which removes it at the end."""
    if SHARED in os.environ:
        return
    os.environ[SHARED] = tempfile.mkdtemp(prefix="dataflowd-shared-")
    config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(SHARED), ignore_errors=True))
    conf = Path(os.environ[SHARED], "conf")
    conf.mkdir()
    (conf / "java-opts").write_text(JAVA_OPTIONS, encoding="utf-8")
    os.environ.setdefault(CONF_VARIABLE, str(conf))


@pytest.fixture(scope="session", autouse=True)
def class_archives(request: pytest.FixtureRequest, temporary_directory: Path) -> Iterator[Path | None]:  # noqa: ARG001 - the guard knows its programs by it
    """The directory of the archives; None if few tests of tests/spark were selected."""
    if sum(item.path.parent.name == "spark" for item in request.session.items) < ENOUGH:
        yield None
    elif _is_first():
        with subprocess.Popen([sys.executable, "-m", "tests.fix_classes"]) as making:
            yield _directory()
            making.terminate()
    else:
        yield _directory()


def variables() -> dict[str, str]:
    """The variables for a program's environment. Empty outside of pytest, as in benches and chaos."""
    if SHARED not in os.environ:
        return {}
    archives = {"DATAFLOW_CLASS_ARCHIVES": str(_directory())} if made() else {}
    return {CONF_VARIABLE: os.environ[CONF_VARIABLE]} | archives


def made() -> Path | None:
    """The directory of archives, as soon as one is there."""
    is_made = SHARED in os.environ and any(_directory().glob("*.jsa"))
    return _directory() if is_made else None


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
    settings = Settings().model_copy(update=ours)  # variables of the environment would override arguments
    anyio.run(class_archive.make, settings, java.find(settings))


if __name__ == "__main__":
    make()
