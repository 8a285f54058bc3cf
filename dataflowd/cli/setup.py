"""Setting up: init."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli.output import say, say_json
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from dataflowd.host.settings import Settings


def register(app: typer.Typer) -> None:
    app.command()(init)


def settings_of(context: typer.Context) -> Settings:
    from dataflowd.host.settings import load  # noqa: PLC0415 - slow; `--help` does without

    return load(context.obj).settings


def init(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Create or upgrade the schema `dataflow`. Safe to run again, and from many machines at once."""
    from dataflowd.database import db, migrate  # noqa: PLC0415 - slow; `--help` does without

    with db.connect(settings_of(context)) as connection:
        done = migrate.init(connection)
        place = f"{connection.info.host}:{connection.info.port}/{connection.info.dbname}"
    if as_json:
        say_json({"database": place, "done": done})
        return
    for line in done:
        say(line)
    changes = f"made {counted(len(done), 'change')}; {place} is up to date now"
    say(changes if done else f"{place} is up to date; nothing to do")
