"""The embedded Postgres by hand: embedded start, stop, status, psql, copy."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli.ask import call, connected
from dataflowd.cli.output import columns, say, say_json
from dataflowd.cli.setup import settings_of
from dataflowd.model.errors import DataflowError, NotAllowedError, NotFoundError, SchemaMismatchError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    import psycopg

    from dataflowd.host.embedded.postgres import Status
    from dataflowd.host.settings import Settings

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
    group.command()(copy)
    app.add_typer(group, name="embedded")


def start(context: typer.Context) -> None:
    """Start the server, which other commands do by themselves when they need it. Prints its DSN."""
    from dataflowd.database import db

    say(db.dsn(_settings(context)))


def stop(context: typer.Context) -> None:
    """Stop the server and disconnect its clients. The data stays; the next command, or a running daemon, starts it again."""
    from dataflowd.host.embedded import postgres

    data_dir = _settings(context).data_dir
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
    from dataflowd.host.embedded import postgres

    found = postgres.status(_settings(context).data_dir)
    if as_json:
        say_json(asdict(found))
        return
    for line in columns(_described(found)):
        say(line)


def psql(context: typer.Context) -> None:
    """Open psql on the embedded database; arguments go to psql: `dataflowctl embedded psql -c 'SELECT 1'`."""
    from dataflowd.cli.maintain import open_psql
    from dataflowd.database import db
    from dataflowd.host.embedded import programs

    open_psql(str(programs.binary("psql")), db.dsn(_settings(context)), context.args, {})


def copy(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy all that the embedded database holds into the one that DATAFLOW_DSN names, of any Postgres from 15 on.

    First: stop the daemons, let DATAFLOW_DSN name an empty database, dataflowctl init. It is copied whole, or not at all; the embedded
    database stays as it is. Private keys, data and flows are files: they stay where they are.
    """
    from dataflowd.database import db, move

    settings = settings_of(context)
    embedded = _source(settings)
    with db.connect(embedded) as source, db.connect(settings) as target:
        _require_schemas(source, target)
        copied = move.copy(source, target)
        place = f"{target.info.host}:{target.info.port}/{target.info.dbname}"
    rows = sum(copied.values())
    if as_json:
        say_json({"database": place, "rows": rows, "tables": copied})
        return
    say(f"copied {counted(rows, 'row')} of {counted(len(copied), 'table')} to {place}")
    say(f"private keys, data and logs stay in {settings.data_dir}: keep this data_dir, or carry it along")


def _source(settings: Settings) -> Settings:
    """The address of the embedded database while DATAFLOW_DSN names another one."""
    from dataflowd.host.embedded import postgres

    if settings.dsn is None:
        raise NotAllowedError(
            "no DSN is configured, so there is nowhere to copy to",
            "let DATAFLOW_DSN name an empty database of your own server, then dataflowctl init, then this",
        )
    found = postgres.status(settings.data_dir)
    if found.version is None:
        raise NotFoundError(
            f"there is no embedded database in {settings.data_dir}",
            "let DATAFLOW_DATA_DIR name the data_dir whose database is to be copied",
        )
    return settings.model_copy(update={"dsn": None})


def _require_schemas(source: psycopg.Connection, target: psycopg.Connection) -> None:
    from dataflowd.database import migrate

    here, there = ((one.info.host, one.info.port, one.info.dbname) for one in (source, target))
    if here == there:
        raise NotAllowedError(
            "DATAFLOW_DSN names the embedded database itself", "let it name a database of your own server"
        )
    for connection, remedy in (
        (source, "run `dataflowctl init` without DATAFLOW_DSN, which upgrades the embedded database"),
        (target, "run `dataflowctl init`, which makes the schema there"),
    ):
        try:
            migrate.require(connection)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(error.message, remedy) from None


def _alive(context: typer.Context) -> list[str]:
    """Daemons that use the embedded database; none if it has no schema."""
    try:
        with connected(context) as connection:
            found = call("status", jobid=None, ignored=[]).send(connection)[0]["overview"]["daemons"]
    except DataflowError:
        return []
    return [one["daemon"] for one in found if one["state"] == "ALIVE"]


def _settings(context: typer.Context) -> Settings:
    """The settings. Refuses if a DSN is configured: then nothing uses the embedded database."""
    settings = settings_of(context)
    if settings.dsn is not None:
        raise NotAllowedError(
            "a DSN is configured, so nothing uses the embedded Postgres",
            "unset DATAFLOW_DSN and the setting dsn to work with the embedded one",
        )
    return settings


def _described(found: Status) -> list[list[str]]:
    rows = [
        ["state", f"running, pid {found.pid}" if found.running else "not running"],
        ["version", f"Postgres {found.version}" if found.version else "not initialised"],
        ["data", str(found.data_directory)],
    ]
    return rows + ([["dsn", found.dsn]] if found.dsn else [])
