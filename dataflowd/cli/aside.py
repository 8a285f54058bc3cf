"""Executes a command in the environment of a job, without a claim and without publishing: `dataflowctl exec`.

The command is prepared and started by the process that becomes scripts (dataflowd.runner.script), and the
person's terminal takes the place of a log. The command writes to directories of its own, which are removed when it ends.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataflowd.engine.command import INHERITED, Said
from dataflowd.host import scratch, supervise
from dataflowd.host.keyfile import KeySource
from dataflowd.model.errors import NotAllowedError
from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.host.settings import Settings

SIGNALLED = 128  # the exit status that shells give for it


def execute(
    settings: Settings, document: dict[str, Any], jobid: str, dataid: str, command: Sequence[str]
) -> int:
    """Returns the command's exit status. Raises an error if the command cannot be started."""
    if settings.runner_user and settings.runner_user != getpass.getuser():
        raise NotAllowedError(
            f"jobs run as the user {settings.runner_user} here, and this is {getpass.getuser()}",
            f"run it as that user: sudo -u {settings.runner_user} dataflowctl exec ...",
        )
    scratch.remove(settings)
    directory = supervise.own_directory(Path(tempfile.gettempdir()), scratch.TRIAL)
    try:
        return _execute(settings, _order(settings, document, jobid, dataid, directory), command)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _order(settings: Settings, document: dict[str, Any], jobid: str, dataid: str, directory: Path) -> Order:
    """`document` is what dataflow.preview_order returns. An input that is not READY has no location, as after `force`."""
    told = {
        "attempt": 0,
        "jobid": jobid,
        "dataid": dataid,
        "tag": "",
        "forced": True,
        "kind": "command",
        "code": "",
        "directory": str(Path.cwd()),
        "allowed_roots": (*settings.effective_allowed_roots, str(directory)),
        "allowed_hosts": settings.effective_allowed_hosts,
    }
    order = Order.parse(document | told)
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
    document = {
        "order": order.document(),
        "before": (),
        "words": (),
        "after": tuple(command),
        "env": {name: os.environ[name] for name in (*INHERITED, "TERM") if name in os.environ},
        "key": KeySource.of(settings).document(),
        "lent": (),
    }
    order_file = os.memfd_create("order", 0)
    receive, send = os.pipe()
    with os.fdopen(order_file, "wb", buffering=0) as file, os.fdopen(receive, "rb") as reading:
        file.write(json.dumps(document).encode())
        file.seek(0)
        try:
            child = subprocess.Popen(  # noqa: S603 - a program of ours, which becomes what a person has typed
                [sys.executable, "-I", "-m", "dataflowd.runner.script", str(order_file), str(send)],
                env={"PATH": os.environ.get("PATH", os.defpath)},
                pass_fds=(order_file, send),
            )
        finally:
            os.close(send)
        # Evidence is stored with an attempt, and there is no attempt here.
        said = Said(lambda: None, lambda _found: None)
        said.hear(reading.read())
        status = _waited(child)
    if said.fault is not None:
        raise AttemptError(**said.fault)
    return SIGNALLED - status if status < 0 else status


def _waited(child: subprocess.Popen[bytes]) -> int:
    """Waits for the command. Ctrl-C reaches the command, which decides what to do; this process ignores it."""
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue
