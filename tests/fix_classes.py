"""One archive of Spark's classes for the daemons of a test session, where enough tests start Spark to be worth it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from dataflowd.embedded import java
from dataflowd.engine import classes
from dataflowd.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "classes"
ENOUGH = 30  # tests in tests/spark


@pytest.fixture(scope="session", autouse=True)
def class_archives(request: pytest.FixtureRequest, temporary_directory: Path) -> Iterator[Path | None]:
    """Where they lie; None when few tests were asked for."""
    if sum(item.path.parent.name == "spark" for item in request.session.items) < ENOUGH:
        yield None
        return
    directory = temporary_directory / NAME
    ours = {"data_dir": temporary_directory / "training", "class_archives": directory, "java_home": None}
    settings = Settings().model_copy(update=ours)  # the environment would outrank arguments
    anyio.run(classes.make, settings, java.find(settings))
    yield directory


def variables() -> dict[str, str]:
    """For a daemon's environment."""
    directory = Path(os.environ.get("TMPDIR", "/nowhere"), NAME)
    return {"DATAFLOW_CLASS_ARCHIVES": str(directory)} if directory.is_dir() else {}
