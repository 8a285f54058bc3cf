"""The command line's tree. A command imports its work when it runs, so that `--help` stays quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dataflowd.ctl import apply, doctor, embedded, setup

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich alone costs more than the rest of `--help`
    help="Steer dataflowd: what runs, what failed, why, and what to do.",
)


@app.callback()
def root(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="Settings file; default: the user's, then the system's.")
    ] = None,
) -> None:
    context.obj = config


setup.register(app)
apply.register(app)
doctor.register(app)
embedded.register(app)
