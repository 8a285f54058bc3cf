"""Jobs that come with dataflowd: `python = "dataflowd.jobs:copy"` in a flow file. They use nothing but the Context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflowd.model.faults import AttemptError
from dataflowd.sdk.declare import job

if TYPE_CHECKING:
    from dataflowd.sdk.context import Context


@job
def copy(ctx: Context) -> None:
    """Copies one input to one output, from any format to any other."""
    source = _only(list(ctx.order.inputs), "input", ctx.jobid)
    target = _only(list(ctx.order.outputs), "output", ctx.jobid)
    ctx.write(target, ctx.read(source))


@job
def validate(ctx: Context) -> None:
    """Checks data that another program has put at the output's location, and publishes it there.

    The job is the producer of the dataset. Its input, such as a calendar, says when to run.
    """
    ctx.adopt(_only(list(ctx.order.outputs), "output", ctx.jobid))


@job
def look(ctx: Context) -> None:
    """Runs the checks on a script's outputs. The daemon starts it after the script has ended."""
    for name in ctx.order.outputs:
        ctx.adopt(name)


def _only(names: list[str], what: str, jobid: str) -> str:
    if len(names) != 1:
        raise AttemptError(
            "INVALID_CODE",
            f"job {jobid} has {len(names)} {what}s, and this job takes one",
            "correct the flow file",
        )
    return names[0]
