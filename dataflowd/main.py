"""The command `dataflowd`: the daemon itself, and what it would run with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dataflowd.ctl.output import columns, run, say, say_json, show_version

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich alone costs more than the rest of `--help`
    add_completion=False,
    help="Run jobs on chunks of data whose five questions are all answered yes.",
)


def main() -> None:
    sys.exit(run(app, "dataflowd"))


@app.callback()
def root(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="Settings file; default: the user's, then the system's.")
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version.")
    ] = False,
) -> None:
    context.obj = config


@app.command("run")
def run_daemon(
    context: typer.Context,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Process all that is ready, then exit: 0, or 1 if a run failed.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="spark, process (only command jobs) or noop; default: the setting.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Name of this daemon; default: the setting, then the host's.")
    ] = "",
) -> None:
    """Run what is ready, until SIGTERM or Ctrl-C. SIGHUP reads flows and settings again."""
    from dataflowd.launcher import serve

    given = {key: value for key, value in (("engine", engine), ("daemon_name", name)) if value}
    raise typer.Exit(serve(context.obj, given, once=once))


@app.command("config")
def show_config(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every setting, its value, where it came from and what it means. Secrets are masked."""
    from dataclasses import asdict

    from dataflowd.masking import printable
    from dataflowd.settings import describe, load

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
