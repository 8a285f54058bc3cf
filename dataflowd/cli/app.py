"""The tree of dataflowctl's commands. A command's module is imported only when the command is used: `--help` stays quick.

`COMMANDS` is the whole tree: adding a command means a line here and a module with `register(app)`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from dataflowd.cli import options  # noqa: TC001 - Typer reads the types of options at run time
from dataflowd.model.errors import EXIT
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

# Section, then name: (module, summary).
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Look": {
        "status": ("status", "what needs a hand, first; then every job at a glance"),
        "why": ("why", "why a run did, does or does not run, and what to do"),
        "chunks": ("runs", "chunks of a dataset: status, size, version; a heat map"),
        "runs": ("runs", "recent runs, newest first"),
        "attempts": ("runs", "all attempts of one run"),
        "history": ("runs", "the history of one run"),
        "logs": ("logs", "the log of an attempt"),
        "jobs": ("catalog", "what jobs are declared"),
        "datasets": ("catalog", "what datasets are declared"),
        "lineage": ("catalog", "what a dataset is made of, and what is made of it"),
        "stats": ("catalog", "all about a job, with times and counts"),
        "env": ("exec_", "the environment that a script would find"),
    },
    "Act": {
        "try": ("try_", "run a job on a sample of its input, and publish nothing"),
        "ready": ("ready", "register chunks that arrived from outside"),
        "unregister": ("ready", "withdraw a wrong registration, and delete or keep what was made of it"),
        "run": ("run", "run a job's next chunk here and now, without a daemon"),
        "force": ("run", "run a chunk although a question is answered no"),
        "exec": ("exec_", "execute any command in the environment of a job"),
        "begin": ("outside", "claim a run that something else executes"),
        "renew": ("outside", "prolong the lease of such a run"),
        "end": ("outside", "end such a run, and publish what was made"),
        "resubmit": ("recover", "run again what failed, in the right order"),
        "accept": ("recover", "accept chunks that older code made, so that they are not stale"),
        "hold": ("recover", "lock chunks against reading and writing"),
        "release": ("recover", "unlock chunks that are on hold"),
        "cancel": ("recover", "stop what is running"),
        "pause": ("control", "start no new attempts"),
        "resume": ("control", "start attempts again after pause"),
        "concurrency": ("control", "show or set how many attempts run at a time"),
        "partition": ("partition", "split a keyed source into batches: create, list, delete"),
        "quarantine": ("quarantine", "bad records: list, show, resolve"),
    },
    "Maintain": {
        "delete": ("maintain", "forget what a job did"),
        "gc": ("gc", "remove directories that nobody needs"),
        "prune": ("maintain", "delete old history"),
        "rebuild": ("maintain", "make the derived tables anew"),
        "psql": ("maintain", "open psql on the database in use"),
    },
    "Set up": {
        "new": ("new", "a flow to begin with: new flow NAME"),
        "init": ("setup", "create or upgrade the schema"),
        "apply": ("apply", "check a flow file and store it"),
        "job": ("job", "jobs that run the code of another one: create, drop"),
        "key": ("credentials", "keys that passwords are sealed with: generate, list, rotate"),
        "seal": ("credentials", "seal the password of a dataset"),
        "doctor": ("doctor.command", "check this host and its database"),
        "embedded": ("embedded", "the embedded Postgres by hand"),
    },
}

FIRST_STEPS = """\
dataflowctl steers dataflowd: what runs, what failed, why, and what to do.

The first time:
  dataflowd demo                   see all of it in a minute, on a database of its own
  dataflowctl init                 create the schema, in an embedded Postgres unless DATAFLOW_DSN names one
  dataflowctl doctor               a tick or a remedy for all that a run needs
  dataflowctl new flow NAME        a flow to begin with, which runs as it is
  dataflowctl apply FLOW           declare datasets and jobs
  dataflowctl ready DATASET ID     register data that has arrived
  dataflowd run                    start the daemon

Every day:
  dataflowctl status               what needs a hand, first
  dataflowctl why JOB [DATAID]     what keeps it, and what to do
  dataflowctl logs JOB DATAID      what it said
  dataflowctl resubmit             run again what failed

dataflowctl --help lists all commands; each has --help with examples, and --explain prints its SQL.
"""


class Tree(TyperGroup):
    """Knows every command by name, and its module only when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is Typer's
        return [name for names in COMMANDS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        for names in COMMANDS.values():
            if cmd_name in names:
                part = typer.Typer(rich_markup_mode=None, add_completion=False)
                import_module(f"dataflowd.cli.{names[cmd_name][0]}").register(part)
                return typer.main.get_group(part).commands[cmd_name]
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Adds the nearest command's name to the error. Typer would suggest only commands whose module is imported."""
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            error.message = error.message.rstrip(".") + did_you_mean(args[0], self.list_commands(ctx))
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        for section, names in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl(list(_summaries(names)))


def _summaries(names: dict[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    # All sections are aligned to the longest name of all; by default each section would be aligned to its own.
    width = max(len(name) for group in COMMANDS.values() for name in group)
    yield from ((name.ljust(width), summary) for name, (_, summary) in names.items())


app = typer.Typer(
    cls=Tree,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich alone costs more than the rest of `--help`
    help="Steer dataflowd: what runs, what failed, why, and what to do.",
)


@app.callback()
def root(
    context: typer.Context,
    config: options.Config = None,
    version: options.Version = False,  # noqa: ARG001 - its callback does the work
) -> None:
    context.obj = config
    if context.invoked_subcommand is None:
        sys.stderr.write(FIRST_STEPS)
        raise typer.Exit(EXIT["USAGE"])
