"""The command logs: shows the log of an attempt, from the file that its daemon wrote."""

from __future__ import annotations

import socket
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call
from dataflowd.cli.output import JobOutput, say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import first_line
from dataflowd.model.errors import NotAllowedError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataflowd.cli.ask import Row

BLOCK = 1 << 16
LOOK_SECONDS = 0.2
# Read the file every LOOK_SECONDS, but ask the database only every so many readings whether the attempt has ended.
LOOKS_A_QUESTION = 5
WAITS = "WAITS_FOR_SPARK"
ALIVE = ("RUNNING", WAITS)


def register(app: typer.Typer) -> None:
    options.add(app, logs)


def logs(  # noqa: PLR0913
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    *,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="Which attempt: its number in the run, or its id; default: the last."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the attempt ends.")] = False,
    explained: options.Explain = False,
) -> None:
    """Show the log of an attempt. The log is on the host whose daemon ran the attempt.

    Examples:
    dataflowctl logs clean_orders 2026-01-31 --follow
    dataflowctl logs clean_orders 2026-01-31 --attempt 1
    """
    asked = call("attempts", jobid=job, dataid=dataid)
    found = ask(context, asked, explained=explained)
    chosen = [row for row in found if attempt in (None, row["number"])] or [
        row for row in found if attempt == row["attempt"]
    ]
    if not chosen:
        numbers = ", ".join(str(row["number"]) for row in found)
        raise NotFoundError(
            f"{job} has no attempt {attempt} of {dataid}" if found else f"{job} was never tried on {dataid}",
            f"its attempts are {numbers}" if found else f"`dataflowctl why {job} {dataid}` says why",
        )
    row = chosen[-1]
    path = settings_of(context).effective_log_dir / job / dataid / f"{row['attempt']}.log"
    try:
        _show(context, job, dataid, path, row, follow=follow)
    except PermissionError as error:
        raise NotAllowedError(
            f"{error.filename} is for the daemon's user and group alone",
            "run this command as that user, or as a member of that group",
        ) from None


def _show(  # noqa: PLR0913 - each says which attempt is shown, or how
    context: typer.Context, job: str, dataid: str, path: Path, row: Row, *, follow: bool
) -> None:

    is_alive = row["status"] in ALIVE
    if row["started"] is None and not is_alive and row["error"] and _is_here(row) and not _has_text(path):
        raise NotFoundError(
            f"attempt {row['number']} of {job} {dataid} has no log: it ended before the job's code began, "
            f"{row['code']}: {first_line(row['error'])}",
            f"dataflowctl why {job} {dataid}",
        )
    if row["status"] == WAITS and _is_here(row) and not _has_text(path):
        why = f"attempt {row['number']} of {job} {dataid} {row['error']}"
        if not follow:
            raise NotFoundError(f"{why}; it has printed nothing yet", "wait, or add --follow")
        say(f"-- {why}")
    if not path.exists() and not (follow and is_alive and _is_here(row)):
        raise _missing(row, path, job, dataid)
    shown = JobOutput(sys.stdout)
    if not (follow and is_alive):
        for block in _blocks(path):
            shown.write(block)
        shown.flush()
        return
    try:
        _follow(context, path, job, dataid, row["number"], shown)
    except KeyboardInterrupt:
        return


def _has_text(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _is_here(row: Row) -> bool:
    return row["hostname"] in (None, socket.gethostname())


def _missing(row: Row, path: Path, job: str, dataid: str) -> Exception:

    what = f"attempt {row['number']} of {job} {dataid}"
    if not _is_here(row):
        return NotFoundError(
            f"the log of {what} is on host {row['hostname']}: daemon {row['daemon']} ran it there",
            f"run this command on {row['hostname']}",
        )
    return NotFoundError(
        f"{what} has no log at {path}",
        "it ended before its runner started, its log was cleared away, or log_dir differs from the daemon's",
    )


def _blocks(path: Path, start: int = 0) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(BLOCK):
            yield block


def _follow(  # noqa: PLR0913, PLR0917 - each says which attempt is shown, or how
    context: typer.Context, path: Path, job: str, dataid: str, number: int, shown: JobOutput
) -> None:
    place, looks, ended = 0, 0, False
    while True:
        for block in _blocks(path, place) if path.exists() else ():
            place += len(block)
            shown.write(block)
        shown.flush()
        if ended:
            say(f"-- attempt {number} has ended: `dataflowctl why {job} {dataid}`")
            return
        time.sleep(LOOK_SECONDS)
        looks += 1
        if looks % LOOKS_A_QUESTION == 0:
            rows = ask(context, call("attempts", jobid=job, dataid=dataid), explained=False)
            # The file is read once more after the end of the attempt, for its last lines.
            ended = all(row["status"] not in ALIVE for row in rows if row["number"] == number)
