"""Every script starts through a small Python process, so that process imports little."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["psycopg", "pydantic", "anyio", "structlog", "pyspark", "pyarrow"])
def test_the_process_that_becomes_a_script_does_not_import(module: str) -> None:
    program = f"import sys, dataflowd.runner.script; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", program], check=False).returncode == 0
