"""Setting up: init."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from dataflowd.settings import Settings


def register(app: typer.Typer) -> None:
    app.command()(init)


def settings_of(context: typer.Context) -> Settings:
    from dataflowd.settings import load

    return load(context.obj).settings


def init(context: typer.Context) -> None:
    """Create or upgrade the schema `dataflow`. Safe to run again, and from many machines at once."""
    from dataflowd import db, migrate
    from dataflowd.ctl.output import say

    with db.connect(settings_of(context)) as connection:
        done = migrate.init(connection)
        for line in done:
            say(line)
        say("the schema is up to date" if not done else f"initialised: {len(done)} changes")
