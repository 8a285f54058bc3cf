"""What `spark-submit` is given: for a runner of `reuse = 1`, and for a `spark_submit` job, whose script knows nothing of us.

The configuration travels in a file of the attempt's own directory and never as arguments, which everybody on the host
can read; so does that of a warm runner, whose PySpark calls spark-submit. The environment is given whole: nothing of the daemon's own is inherited but what is named.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.host import runner_user
from dataflowd.model.errors import NotAllowedError
from dataflowd.runner import protection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "HOME",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "SPARK_CONF_DIR",
    "PYTHONPATH",
    # How libpq finds and protects the way to tables.
    "PGPASSFILE",
    "PGSSLMODE",
    "PGSSLROOTCERT",
)


def words(conf: Mapping[str, str], directory: Path, user: str) -> tuple[str, ...]:
    """The command up to the application; `directory` is private to the user who runs jobs, and gone with the process.

    What the host's spark-defaults.conf says stands behind it: the secret of a cluster is nothing for a flow file.
    """
    import pyspark  # noqa: PLC0415 - where it lies is all that is asked

    properties = directory / "spark.properties"
    text = "".join(f"{name} {_escaped(value)}\n" for name, value in conf.items())
    runner_user.write(properties, text, user)
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    return str(program), "--load-spark-defaults", "--properties-file", str(properties)


def client_words(application: Sequence[str]) -> tuple[str, ...]:
    """A Connect server has its application: the script is its client, and nothing is submitted."""
    if not application[0].endswith(".py"):
        raise NotAllowedError(
            f"{application[0]} cannot run on a Connect server, which takes only scripts in Python",
            "name the script first, or use another master",
        )
    return sys.executable, *application


def environment(
    master: str, spark: Mapping[str, str], java: Mapping[str, str], directory: Path, user: str
) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return (
        inherited
        | dict(java)
        | runner_user.environment(user)
        | protection.variables(master)
        | {
            "TMPDIR": str(directory),
            # That of the executors: a cluster may have it elsewhere.
            "PYSPARK_PYTHON": spark.get("spark.pyspark.python", sys.executable),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",
        }
    )


def _escaped(value: str) -> str:
    """As java.util.Properties reads it."""
    return value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
