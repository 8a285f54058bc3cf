"""Refuses user-defined types that a file names, unless Spark or the job itself brought them.

PySpark imports the module of a user-defined type when it reads a schema. The schema is part of the data (the footer of a
Parquet file, the log of a Delta table), so the writer of the data would choose which module is imported. All releases that
pyproject.toml allows do this (4.2.0 to 4.3.0); none of them unpickles the class, and their JVM loads only classes that its
configuration lists. `guard` accepts a type of Spark, and a type whose module the job has imported before. All others are
refused.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_SPARK = frozenset({"pyspark.ml.linalg", "pyspark.mllib.linalg"})


class ForeignTypeError(AttemptError):
    def __init__(self, name: str, where: str = "a schema") -> None:
        self.name = name
        super().__init__(
            "WRONG_DATA",
            f"{where} names the type {name!r:.200}, whose module would be imported: data does not choose code",
            "write the data with Spark's own types; for a type of the job's own, import its module in the job first",
        )


def guard() -> None:
    """Replaces PySpark's import in this process: from now on a schema cannot make it import a module."""
    from pyspark.sql.types import UserDefinedType  # noqa: PLC0415 - the SDK imports without Spark

    if UserDefinedType.fromJson.__func__ is not _from_json:
        UserDefinedType.fromJson = classmethod(_from_json)


def behind(error: BaseException | None) -> ForeignTypeError | None:
    """The ForeignTypeError inside an error: Spark wraps errors that are raised while it parses a schema."""
    while error is not None and not isinstance(error, ForeignTypeError):
        error = error.__cause__ or error.__context__
    return error


def _from_json(_cls: type[Any], json: Mapping[str, Any]) -> Any:
    from pyspark.sql.types import UserDefinedType  # noqa: PLC0415

    name = str(json["pyClass"])
    module, _, attribute = name.rpartition(".")
    if module in OF_SPARK:
        importlib.import_module(module)
    # Not getattr: a module's __getattr__ could import other modules.
    found = getattr(sys.modules.get(module), "__dict__", {}).get(attribute)
    if not (isinstance(found, type) and issubclass(found, UserDefinedType)):
        raise ForeignTypeError(name)
    return found()
