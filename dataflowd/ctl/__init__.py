"""The command `dataflowctl`: the operator's hands. Commands stand in the modules of this package, one a topic."""

from __future__ import annotations

import sys


def main() -> None:
    from dataflowd.ctl.app import app
    from dataflowd.ctl.output import run

    sys.exit(run(app, "dataflowctl"))
