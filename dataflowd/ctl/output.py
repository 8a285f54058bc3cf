"""What a command prints, how it ends, and how an error looks: the same for every command."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from dataflowd.errors import EXIT, DataflowError

if TYPE_CHECKING:
    import typer

DEBUG_VARIABLE = "DATAFLOW_DEBUG"


def run(app: typer.Typer, name: str) -> int:
    """Runs a command line and returns its exit status; no traceback reaches a user unless it is asked for."""
    import click

    try:
        status = app(prog_name=name, standalone_mode=False)
    except DataflowError as error:
        return _failed(error)
    except click.exceptions.Abort:
        sys.stderr.write("aborted\n")
        return EXIT["FAILED"]
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted; a flush at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT["OK"]
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except Exception as error:  # the last line of defence
        return _bug(error)
    return status if isinstance(status, int) else EXIT["OK"]


def say(line: str = "") -> None:
    sys.stdout.write(line + "\n")


def say_json(value: Any) -> None:
    say(json.dumps(value, default=str, indent=2))


def _failed(error: DataflowError) -> int:
    sys.stderr.write(f"error [{error.code}]: {error}\n")
    return error.exit_code


def _bug(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    sys.stderr.write(
        f"error [INTERNAL]: {type(error).__name__}: {error}\n"
        f"  remedy: this is a bug in dataflowd; run again with {DEBUG_VARIABLE}=1 and report the traceback\n"
    )
    return EXIT["INTERNAL"]
