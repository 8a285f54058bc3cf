"""Options and arguments that many commands share, so that they are called the same and mean the same everywhere."""

from __future__ import annotations

import inspect
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from dataflowd.cli.json_keys import KEYS, described
from dataflowd.cli.output import show_version
from dataflowd.model.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATTERN = "a dataid, a glob (2026-01-*) or a range (2026-01-01..2026-01-31)"
_PATTERN = re.compile(r"[A-Za-z0-9._:+=*?-]+")  # of the characters of a dataid
STDIN = Path("-")
WORDS = "dataflowd.flow.command_words"  # among what a command keeps of its line
AGE_DIGITS = 12
AGE_MOST = timedelta(days=36_500)  # older than any of our events
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Config = Annotated[
    Path | None, typer.Option("--config", help="Settings file; default: the user's, then the system's.")
]
Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version.")
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON; the keys are listed below.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print the SQL that does the same in psql, and do nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking; for scripts.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]

Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]
AnyJob = Annotated[str | None, typer.Argument(metavar="JOB", help="Only this job.")]
Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="Name of the dataset.")]
Dataid = Annotated[str, typer.Argument(metavar="DATAID", help="Id of the slice.")]

OfDataset = Annotated[str | None, typer.Option("--dataset", help="Only chunks of this dataset.")]


def patterns(given: list[str] | None) -> list[str] | None:
    for pattern in given or ():
        if not _PATTERN.fullmatch(pattern):
            raise typer.BadParameter(
                f"{pattern!r} is no pattern; write {PATTERN}. In a glob * and ? have a meaning"
            )
    return given


Patterns = Annotated[
    list[str] | None,
    typer.Option("--dataid", metavar="PATTERN", help=f"{PATTERN}; may be repeated.", callback=patterns),
]
Statuses = Annotated[
    list[str] | None,
    typer.Option("--status", help="RUNNING, READY, FAILED, RESUBMIT, PENDING or HOLD; may be repeated."),
]
Error = Annotated[
    list[str] | None,
    typer.Option("--error", metavar="CODE", help="Only those that failed so; may be repeated."),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="A time (2026-01-31T08:00) or an age (90m, 12h, 3d)."),
]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; others will read it.")]


def moment(text: str | None) -> datetime | None:
    """Reads a time, or an age before now. A time without a zone is in this host's zone."""
    if text is None:
        return None
    age = _age(text)
    if age is not None:
        return datetime.now(UTC) - age
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is neither a time (2026-01-31T08:00) nor an age (90m, 12h, 3d)"
        ) from None


def age(text: str) -> timedelta:
    found = _age(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no length of time; write 36h, 90d or 12w")
    return found


def _age(text: str) -> timedelta | None:
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS or not number.isdecimal() or len(number) > AGE_DIGITS:
        return None
    found = timedelta(**{UNITS[unit]: int(number)})
    return found if found <= AGE_MOST else None


def content(path: Path, remedy: str) -> str:
    """The content of a file that the command line names; - is standard input."""
    try:
        return sys.stdin.read() if path == STDIN else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise NotFoundError(f"{path} cannot be read: {why}", remedy) from None


def pairs(written: Sequence[str], option: str, *, may_lack_name: bool = False) -> dict[str, str]:
    """Reads options of the form NAME=VALUE. The database judges names and values."""
    found: dict[str, str] = {}
    for each in written:
        name, sign, value = each.partition("=")
        if not sign or not (name or may_lack_name):
            raise typer.BadParameter(f"{each!r} is no parameter: write NAME=VALUE", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name or option} is given twice", param_hint=option)
        found[name] = value
    return found


def selector(**given: Any) -> dict[str, Any]:
    """The selector of dataflow.select_runs: only the options that were given."""
    return {key: value for key, value in given.items() if value not in (None, [], False)}


class WithWords(TyperCommand):
    """A command that takes words for another program behind `--`. Without `--` an unknown option is an error, not such a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[WORDS] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- WORD...]"]


def words(context: typer.Context) -> list[str]:
    """The words behind `--`."""
    return list(context.meta.get(WORDS, ()))


def add(
    app: typer.Typer,
    command: Callable[..., None],
    name: str | None = None,
    prefix: str = "",
    kind: type[TyperCommand] | None = None,
) -> None:
    """Registers a command; its examples stay on lines of their own, and its help ends with the keys of its JSON."""
    called = name or command.__name__
    key = f"{prefix} {called}".strip()
    text = inspect.cleandoc(command.__doc__ or "").replace("\nExamples:\n", "\n\b\nExamples:\n")
    app.command(called, cls=kind, help=text, epilog=described(KEYS[key]) if key in KEYS else None)(command)
