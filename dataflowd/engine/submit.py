"""The command and environment of `spark-submit`: for a runner of `reuse = 1`, and for a `spark_submit` job.

The configuration is a file in the attempt's own directory, because everybody on the host can read the arguments of a
process. A warm runner gets its configuration the same way: its PySpark calls spark-submit. Of the daemon's environment only
the INHERITED variables are passed on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.engine.script_process import inherited
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
    # libpq uses these for connections to tables.
    "PGPASSFILE",
    "PGSSLMODE",
    "PGSSLROOTCERT",
)


def words(conf: Mapping[str, str], directory: Path, user: str) -> tuple[str, ...]:
    """The command up to the application. `directory` is private to the user who runs jobs, and removed after the process.

    The host's spark-defaults.conf applies where the configuration says nothing, so that the secret of a cluster need not
    stand in a flow file.
    """
    import pyspark  # noqa: PLC0415 - only its directory is needed

    properties = directory / "spark.properties"
    text = "".join(f"{name} {_escaped(value)}\n" for name, value in conf.items())
    runner_user.write(properties, text, user)
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    return str(program), "--load-spark-defaults", "--properties-file", str(properties)


def client_words(application: Sequence[str]) -> tuple[str, ...]:
    """The command of a script that is the client of a Connect server: nothing is submitted there."""
    if not application[0].endswith(".py"):
        raise NotAllowedError(
            f"{application[0]} cannot run on a Connect server, which takes only scripts in Python",
            "name the script first, or use another master",
        )
    return sys.executable, *application


def environment(
    master: str, spark: Mapping[str, str], java: Mapping[str, str], directory: Path, user: str
) -> dict[str, str]:
    return (
        inherited(INHERITED)
        | dict(java)
        | runner_user.environment(user)
        | protection.variables(master)
        | {
            "TMPDIR": str(directory),
            # The Python of the executors: a cluster may have it in another place.
            "PYSPARK_PYTHON": spark.get("spark.pyspark.python", sys.executable),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",
        }
    )


def _escaped(value: str) -> str:
    """Escapes a value for java.util.Properties."""
    return value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
