"""The embedded Postgres by hand: embedded start, stop, status, psql."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.ctl.setup import settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from dataflowd.embedded.postgres import Status

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["--help"]}


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="The Postgres that dataflowd brings along and uses while no DSN is configured.",
    )
    group.command()(start)
    group.command()(stop)
    group.command()(status)
    group.command(context_settings=PASS_THROUGH)(psql)
    app.add_typer(group, name="embedded")


def start(context: typer.Context) -> None:
    """Start the server, which other commands do by themselves when they need it. Prints its DSN."""
    from dataflowd.ctl.output import say
    from dataflowd.embedded import postgres

    say(postgres.ensure_running(_data_dir(context)))


def stop(context: typer.Context) -> None:
    """Stop the server and disconnect its clients. The data stays; the next command, or a running daemon, starts it again."""
    from dataflowd.ctl.output import say
    from dataflowd.embedded import postgres

    data_dir = _data_dir(context)
    alive = _alive(context) if postgres.status(data_dir).running else []
    say("stopped" if postgres.stop(data_dir) else "it was not running")
    if alive:
        say(
            f"daemon {', '.join(alive)} still runs: one without a DSN of its own starts it again; stop it first"
        )


def status(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether the server runs, and where. Starts nothing."""
    from dataclasses import asdict

    from dataflowd.ctl.output import columns, say, say_json
    from dataflowd.embedded import postgres

    found = postgres.status(_data_dir(context))
    if as_json:
        say_json(asdict(found))
        return
    for line in columns(_described(found)):
        say(line)


def psql(context: typer.Context) -> None:
    """Open psql on the embedded database; arguments go to psql: `dataflowctl embedded psql -c 'SELECT 1'`."""
    import os

    from dataflowd.embedded import postgres

    address = postgres.ensure_running(_data_dir(context))
    program = postgres.binary("psql")
    os.execv(program, [str(program), "--dbname", address, *context.args])  # noqa: S606 - psql takes our place


def _alive(context: typer.Context) -> list[str]:
    """Daemons that would miss it; none where there is no schema to ask."""
    from dataflowd.ctl.ask import call, connected
    from dataflowd.errors import DataflowError

    try:
        with connected(context) as connection:
            found = call("status", jobid=None, ignored=[]).send(connection)[0]["overview"]["daemons"]
    except DataflowError:
        return []
    return [one["daemon"] for one in found if one["state"] == "ALIVE"]


def _data_dir(context: typer.Context) -> Path:
    """Refuses where a DSN is configured: the person would look at a database that nothing uses."""
    from dataflowd.errors import NotAllowedError

    settings = settings_of(context)
    if settings.dsn is not None:
        raise NotAllowedError(
            "a DSN is configured, so nothing uses the embedded Postgres",
            "unset DATAFLOW_DSN and the setting dsn to work with the embedded one",
        )
    return settings.data_dir


def _described(found: Status) -> list[list[str]]:
    rows = [
        ["state", f"running, pid {found.pid}" if found.running else "not running"],
        ["version", f"Postgres {found.version}" if found.version else "not initialised"],
        ["data", str(found.data_directory)],
    ]
    return rows + ([["dsn", found.dsn]] if found.dsn else [])
