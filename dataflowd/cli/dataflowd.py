"""The program `dataflowd`: the daemon, the demo, and the settings that the daemon would use."""

from __future__ import annotations

import io
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - Typer reads the types of options at run time
from typing import Annotated

import typer

from dataflowd.cli import options  # noqa: TC001 - Typer reads the types of options at run time
from dataflowd.cli.output import columns, run, say, say_json
from dataflowd.host import withheld
from dataflowd.model.masking import printable

PATIENCE = "1m"  # that --once has for retries

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich alone costs more than the rest of `--help`
    add_completion=False,
    help="Run jobs on chunks of data whose five questions are all answered yes.",
)


def main() -> None:
    withheld.keep()
    sys.exit(run(app, "dataflowd"))


@app.callback()
def root(
    context: typer.Context,
    config: options.Config = None,
    version: options.Version = False,  # noqa: ARG001 - its callback does the work
) -> None:
    context.obj = config


@app.command("run")
def run_daemon(
    context: typer.Context,
    *,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Process all that is ready and that this host has the code of, then exit: 0, or 1 if a run failed.",
        ),
    ] = False,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="With --once: for how long in all it waits for retries that are due by then; default: 1m.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="spark, process (only command jobs) or noop; default: the setting.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Name of this daemon; default: the setting, then the host's.")
    ] = "",
) -> None:
    """Run what is ready, until SIGTERM or Ctrl-C. SIGHUP reads flows and settings again.

    With --once it ends when nothing is ready any more. Retries that are due within a minute, or within --wait, are waited for;
    what is left then is said in the log (once.left).

    These settings need a restart, and SIGHUP leaves them as they were: dsn, data_dir, environment, statement_timeout, daemon_name,
    engine, lease, http_host, http_port.
    """
    from dataflowd.cli import options
    from dataflowd.daemon.start import serve

    if wait is not None and not once:
        raise typer.BadParameter("--wait goes with --once: without it the daemon runs on")
    patience = options.age(wait or PATIENCE).total_seconds()
    given = {key: value for key, value in (("engine", engine), ("daemon_name", name)) if value}
    raise typer.Exit(serve(context.obj, given, once=once, patience=patience))


@app.command("demo")
def run_demo(
    context: typer.Context,
    *,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where all of it lives; default: <data_dir>/demo.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=3, max=28, help="Days of orders; with fewer than 28 the month is not made.")
    ] = 28,
    clean: Annotated[
        bool, typer.Option("--clean", help="Stop the demo's Postgres and remove everything, and run nothing.")
    ] = False,
) -> None:
    """Run the quickstart on an embedded Postgres, and show how it goes, fails and is repaired.

    It takes about a minute, starts anew each time, and touches no database that is configured. The database stays for a look.
    """
    from dataflowd.cli.demo import story
    from dataflowd.cli.demo.place import Place, default_directory
    from dataflowd.host.settings import CONFIG_VARIABLE, load

    chosen = (directory or default_directory(load(context.obj).settings.data_dir)).expanduser().absolute()
    if clean:
        say(f"removed {chosen}" if Place(chosen).remove() else f"there is no demo in {chosen}")
        if os.environ.get(CONFIG_VARIABLE) == str(Place(chosen).config):
            say(f"this shell still looks there: unset {CONFIG_VARIABLE}")
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    options = ["--dir", str(chosen)] if directory else []
    story.run(chosen, days, clean=shlex.join(["dataflowd", "demo", "--clean", *options]))


@app.command("config")
def show_config(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every setting, its value, where it came from and what it means. Secrets are masked."""
    from dataflowd.host.settings import describe, load

    described = describe(load(context.obj))
    if as_json:
        say_json([asdict(setting) for setting in described])
        return
    for setting, line in zip(
        described,
        columns([(setting.name, printable(_plain(setting.value)), setting.origin) for setting in described]),
        strict=True,
    ):
        say(line)
        say(f"    {setting.description}")


def _plain(value: object) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) or "-" if isinstance(value, list) else str(value)
