"""What a command prints, how it ends, and how an error looks: the same for every command."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO

import typer

from dataflowd import __version__
from dataflowd.host import private
from dataflowd.model.errors import EXIT, DataflowError
from dataflowd.model.masking import mask, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

DEBUG_VARIABLE = "DATAFLOW_DEBUG"
DISK_FAILED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

State = Literal["ok", "warning", "failed", "skipped"]
_MARKS: dict[State, str] = {"ok": "\u2713", "warning": "!", "failed": "\u2717", "skipped": "-"}
_ASCII_MARKS: dict[State, str] = {"ok": "[ok]", "warning": "[!!]", "failed": "[no]", "skipped": "[--]"}
_COLOURS: dict[State, str] = {
    "ok": "\x1b[32m",
    "warning": "\x1b[33m",
    "failed": "\x1b[31m",
    "skipped": "\x1b[2m",
}
_PLAIN, _BOLD = "\x1b[0m", "\x1b[1m"
_NEGATIVE = re.compile(r"-\d")  # Typer takes a negative number for an option of one character
_COLOUR = re.compile(r"(\x1b\[(?:[012]|3[0-7])m)")


def run(app: typer.Typer, name: str) -> int:
    """Runs a command line and returns its exit status; no traceback reaches a user unless it is asked for."""
    _open_missing_streams()
    private.limit_umask()
    # A character that the locale lacks is printed escaped; it must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except DataflowError as error:
        return _failed(error)
    except typer.TyperException as error:
        return _misused(error, name)
    except typer.Abort:
        sys.stderr.write("aborted\n")
        return EXIT["INTERRUPTED"]
    except (BrokenPipeError, SystemExit) as error:
        return _hung_up(error)
    except Exception as error:  # noqa: BLE001 - the last line of defence
        return _bug(error)
    return status if isinstance(status, int) else EXIT["OK"]


def say(line: str = "") -> None:
    """Prints a line. It may hold text of a database or a job: of control characters only our own colours reach a terminal."""
    parts = _COLOUR.split(line) if sys.stdout.isatty() else [line]
    parts[::2] = (printable(part, keep="\n\t") for part in parts[::2])
    sys.stdout.write("".join(parts) + "\n")


class JobOutput:
    """Shows what a job prints. Bytes stay as they are, because the job chose the encoding; but on a terminal control characters
    are escaped. A block may end inside a character. Secrets were masked before.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes) -> None:

        self._stream.flush()
        if self._stream.isatty():
            text = printable(self._decoder.decode(data), keep="\n\t")
            # In the terminal's own encoding: a terminal without UTF-8 would take parts of a character for control characters.
            data = text.encode(self._stream.encoding, "backslashreplace")
        self._stream.buffer.write(data)

    def flush(self) -> None:
        self._stream.buffer.flush()


def show_version(wanted: bool) -> None:
    if wanted:
        say(f"dataflowd {__version__}")
        raise typer.Exit


def say_json(value: Any) -> None:
    say(json.dumps(value, default=str, indent=2))


def mark(state: State) -> str:
    """A tick or a cross: coloured on a terminal only, in ASCII if the locale has nothing else."""
    return coloured((_MARKS if unicode_output() else _ASCII_MARKS)[state], _COLOURS[state])


def bold(text: str) -> str:
    return coloured(text, _BOLD)


def unicode_output() -> bool:
    return (sys.stdout.encoding or "ascii").lower().replace("-", "") == "utf8"


def coloured(text: str, colour: str) -> str:
    return f"{colour}{text}{_PLAIN}" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as aligned lines. The last column is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _failed(error: DataflowError) -> int:
    _complain(error.code, error.message, error.remedy)
    return error.exit_code


def _misused(error: typer.TyperException, program: str) -> int:
    """Prints Typer's message about a wrong command line in the form of every other error."""
    context = getattr(error, "ctx", None)
    message, path = error.format_message(), context.command_path if context else program
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(message.rstrip() + "\n")
        return EXIT["USAGE"]
    hint = "a number is 0 or more; " if _NEGATIVE.fullmatch(getattr(error, "option_name", "")) else ""
    _complain("USAGE", message, f"{hint}run `{path} --help`")
    return EXIT["USAGE"]


def _hung_up(error: BrokenPipeError | SystemExit) -> int:
    """Ends quietly when the reader (`| head`) has closed the pipe. Otherwise the flush at exit would print an error."""
    if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
        raise error
    _drop_output()
    return EXIT["OK"]


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_missing_streams() -> None:
    """Opens /dev/null for a stream that was closed (`>&-`), so that no connection gets the stream's number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - open until the end


def _bug(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    if isinstance(error, UnicodeEncodeError):
        # Only an argument can hold bytes that are no text: everything else is read as UTF-8.
        _complain("USAGE", f"{error.object!r:.100} has bytes that are no UTF-8", "type it anew")
        return EXIT["USAGE"]
    if isinstance(error, OSError) and error.errno in DISK_FAILED:
        _drop_output()
        _complain(
            "OUTPUT_FAILED",
            f"{error.filename or 'the output'} cannot be written: {error.strerror}",
            "make room, or write it elsewhere; what the command was to do may be done",
        )
        return EXIT["OUTPUT_FAILED"]
    _complain(
        "INTERNAL",
        f"{type(error).__name__}: {error}",
        f"this is a bug in dataflowd; run again with {DEBUG_VARIABLE}=1 and report the traceback",
    )
    return EXIT["INTERNAL"]


def _complain(code: str, message: str, remedy: str) -> None:

    lines = [f"error [{code}]: {message}"] + ([f"  remedy: {remedy}"] if remedy else [])
    sys.stderr.write("".join(printable(mask(line), keep="\n") + "\n" for line in lines))
