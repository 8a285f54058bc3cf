"""Finds the code that an order names, and makes one function of a Context out of it.

A module is imported from the flow's directory, where the check of the flow has found it. A runner serves one version of
the code; when a file changes, the daemon starts another runner. A Spark SQL file becomes a function too: its inputs are views
of this attempt's session; the dataid and the parameters are bound as arguments and never become a part of the SQL text.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataflowd.model.work_order import Order
    from dataflowd.sdk.context import Context


# The number of imported modules when _carry last went through them: there are thousands, and seldom a new one.
_seen: dict[str, int] = {}


def function(order: Order) -> Callable[[Context], Any]:
    if order.kind == "sql":
        return sql_function(Path(order.directory) / order.code)
    if order.kind == "python":
        return named(order.code, order.directory)
    raise AttemptError(
        "INVALID_CODE",
        f"a runner cannot execute a job of the kind {order.kind!r}",
        "write python or sql in the flow file",
    )


def named(reference: str, directory: str) -> Callable[..., Any]:
    """Imports `module:function`. Errors of the import are the author's, and are raised unchanged."""
    module, _, name = reference.partition(":")
    if directory and directory not in sys.path:
        sys.path.insert(0, directory)
    found = getattr(importlib.import_module(module), name, None)
    _carry(directory)
    if not callable(found):
        raise AttemptError(
            "INVALID_CODE",
            f"the module {module!r} has no function {name!r}",
            "correct the flow file or the module",
        )
    return found  # type: ignore[no-any-return]


def _carry(directory: str) -> None:
    """Makes Spark send functions of the flow's own modules to the executors by value: executors cannot import these modules."""
    from pyspark import cloudpickle  # noqa: PLC0415 - the SDK imports without Spark

    modules = list(sys.modules.values())
    if len(modules) == _seen.get(directory):
        return
    for module in modules:
        place = str(getattr(module, "__file__", None))
        if directory and place.startswith(directory + os.sep) and "site-packages" not in place:
            cloudpickle.register_pickle_by_value(module)
    _seen[directory] = len(modules)  # set last, because an attempt in another thread relies on it


def sql_function(path: Path) -> Callable[[Context], None]:
    def run(ctx: Context) -> None:
        if len(ctx.order.outputs) != 1:
            raise AttemptError(
                "INVALID_CODE",
                f"job {ctx.jobid} has {len(ctx.order.outputs)} outputs, and a SQL file makes one",
                "split the job, or write it in Python",
            )
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise AttemptError(
                "INVALID_CODE", f"{path} cannot be read: {error.strerror}", "correct the flow file"
            ) from None
        for name, source in ctx.order.inputs.items():
            # A calendar says when a job runs, and has no data to read.
            if source.dataset.format != "none":
                ctx.read(name).createOrReplaceTempView(name)
        bound = {"dataid": ctx.dataid} | ctx.order.params
        ctx.write(next(iter(ctx.order.outputs)), ctx.spark.sql(text.strip().removesuffix(";"), args=bound))

    return run
