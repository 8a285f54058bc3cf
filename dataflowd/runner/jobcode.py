"""Finds the code that an order names, and makes one function of a Context out of it.

A module is imported from the flow's directory, as the flow's check has found it. The process that imports it serves
one version of that code; a changed file is another version, and another process's. A Spark SQL file becomes a function
too: its inputs are views of this attempt's session, the dataid and the parameters are bound and never pasted.
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


# How many modules there were when those of a directory were last looked for: there are thousands, and new ones seldom.
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
    """`module:function`; errors of the import are the author's, and come out as they are."""
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
    """Functions of the flow's own modules go to the executors as they are: those have no such modules to import."""
    from pyspark import cloudpickle  # noqa: PLC0415 - the SDK imports without Spark

    modules = list(sys.modules.values())
    if len(modules) == _seen.get(directory):
        return
    for module in modules:
        place = str(getattr(module, "__file__", None))
        if directory and place.startswith(directory + os.sep) and "site-packages" not in place:
            cloudpickle.register_pickle_by_value(module)
    _seen[directory] = len(modules)  # only now: an attempt beside this one must not take them for carried


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
            # A calendar says when, and has nothing to read.
            if source.dataset.format != "none":
                ctx.read(name).createOrReplaceTempView(name)
        bound = {"dataid": ctx.dataid} | ctx.order.params
        ctx.write(next(iter(ctx.order.outputs)), ctx.spark.sql(text.strip().removesuffix(";"), args=bound))

    return run
