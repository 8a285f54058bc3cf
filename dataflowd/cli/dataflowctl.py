"""The program `dataflowctl`. `app` lists its commands; each command is in a module of this room."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from dataflowd.cli.output import run
from dataflowd.host import withheld

# Python turns Ctrl-C into KeyboardInterrupt by itself.
ENDING = (signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130  # as dataflowd.model.errors.EXIT has it, which may not be imported yet


def main() -> None:
    withheld.keep()
    try:
        from dataflowd.cli.app import app  # noqa: PLC0415 - Ctrl-C while it is imported has no traceback
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)

    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup it is not
            signal.signal(number, _end)
    sys.exit(run(app, "dataflowctl"))


def _end(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - the signature is Python's
    """Ends the command as an exception would, so that its clean-up runs. A second signal ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)
