"""The process that `dataflowctl exec` starts in the environment of a job, without a claim and without publishing.

The command is prepared and started by the process that becomes scripts (dataflowd.runner.script), and the
person's terminal takes the place of a log. The command writes to directories of its own, which are removed when it ends.
"""

from __future__ import annotations

import getpass
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataflowd.engine.script_process import INHERITED, Program, Said, inherited, rest, starting
from dataflowd.flow.compose import vetted
from dataflowd.host import scratch
from dataflowd.host.keyfile import KeySource
from dataflowd.model.errors import NotAllowedError
from dataflowd.model.work_order import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.host.settings import Settings

SIGNALLED = 128  # the exit status that shells give for it
GRACE_SECONDS = 5.0


def execute(
    settings: Settings, document: dict[str, Any], jobid: str, dataid: str, command: Sequence[str]
) -> int:
    """Returns the command's exit status. Raises an error if the command cannot be started."""
    if settings.runner_user and settings.runner_user != getpass.getuser():
        raise NotAllowedError(
            f"jobs run as the user {settings.runner_user} here, and this is {getpass.getuser()}",
            f"run it as that user: sudo -u {settings.runner_user} dataflowctl exec ...",
        )
    with scratch.own_temporary(settings, scratch.TRIAL) as directory:
        return _execute(settings, _order(settings, document, jobid, dataid, directory), command)


def previewed(document: dict[str, Any], jobid: str, dataid: str) -> Order:
    """The order whose variables a script of the job would get. `document` is what dataflow.preview_order returns."""
    return Order.parse(document | _identity(jobid, dataid))


def _identity(jobid: str, dataid: str) -> dict[str, Any]:
    names = {"attempt": 0, "jobid": jobid, "dataid": dataid, "tag": ""}
    return names | {"kind": "command", "code": "", "directory": ""}


def _order(settings: Settings, document: dict[str, Any], jobid: str, dataid: str, directory: Path) -> Order:
    """An input that is not READY has no location, as after `force`."""
    here = {"forced": True, "directory": str(Path.cwd())}
    order = vetted(document, _identity(jobid, dataid) | here, settings, str(directory))
    inputs = {
        name: replace(source, chunks=tuple(chunk for chunk in source.chunks if chunk.version))
        for name, source in order.inputs.items()
    }
    outputs = {
        name: output if output.location is None else replace(output, location=f"{directory}/{name}")
        for name, output in order.outputs.items()
    }
    return replace(order, inputs=inputs, outputs=outputs)


def _execute(settings: Settings, order: Order, command: Sequence[str]) -> int:
    program = Program((), (), inherited((*INHERITED, "TERM")), after=tuple(command))
    with starting(program.document(order, KeySource.of(settings))) as start:
        child = subprocess.Popen(start.argv, env=start.env, pass_fds=start.pass_fds)  # noqa: S603 - it becomes what a person has typed
        start.close_send()
        # Evidence is stored with an attempt, and there is no attempt here.
        said = Said(lambda: None, lambda _found: None)
        said.hear(rest(start.receive))
        status = _waited(child)
    said.require_none()
    return SIGNALLED - status if status < 0 else status


def _waited(child: subprocess.Popen[bytes]) -> int:
    """Waits for the command. Ctrl-C reaches the command, which decides what to do; this process ignores it."""
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue
        except BaseException:
            # This process ends, by SIGTERM for instance, and removes the directories that the command writes.
            _end(child)
            raise


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
