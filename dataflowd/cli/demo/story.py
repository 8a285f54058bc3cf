"""The demo's story: set up, run, fail, explain, repair, run again, and what to try next.

The orders of February 2026 come as one file a day. February is the shortest month: 28 days, each cleaned and summed, make one
month. One file never comes, and one has its amounts in cents. Both keep the month from being made, `why` says so, and both
files are sent again. Any other failure ends the story with an error, because the story shows only what the database says.
"""

from __future__ import annotations

import datetime as dt
import os
import shlex
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from dataflowd.cli.ask import call
from dataflowd.cli.demo import place as places
from dataflowd.cli.demo import programs
from dataflowd.cli.demo.frame import BOLD, DIM
from dataflowd.cli.demo.place import Place
from dataflowd.cli.demo.programs import StoryError, dataflowctl, script
from dataflowd.cli.demo.watch import Cue, Plan, Watch
from dataflowd.cli.output import bold, coloured, mark, say
from dataflowd.cli.show import cell, duration, folded, table
from dataflowd.database import db
from dataflowd.host import settings
from dataflowd.host.embedded import java, postgres
from dataflowd.model.errors import DataflowError, EmbeddedError, either
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    import psycopg

    from dataflowd.cli.demo.programs import Command

FIRST = dt.date(2026, 2, 1)
WHOLE_MONTH = 28
FEWEST_DAYS = 3
MISSING_SHARE, BAD_SHARE = 0.42, 0.67  # where in the month the two days are
SOME_DONE, MOST_DONE = 0.1, 0.6
SAMPLE = "quickstart/sample.py"
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Month:
    """The days of the month that the demo uses, and the two of them that are wrong."""

    days: int

    @property
    def dataids(self) -> list[str]:
        return [str(FIRST + dt.timedelta(days=offset)) for offset in range(self.days)]

    @property
    def dataid(self) -> str:
        return f"{FIRST:%Y-%m}"

    @property
    def missing(self) -> str:
        return self.dataids[int(self.days * MISSING_SHARE)]

    @property
    def in_cents(self) -> str:
        return self.dataids[int(self.days * BAD_SHARE)]

    @property
    def is_whole(self) -> bool:
        return self.days == WHOLE_MONTH

    def plan(self) -> Plan:
        return Plan(
            f"{FIRST:%B %Y}: {counted(self.days, 'day')} of orders",
            {"clean_orders": self.days, "daily_totals": self.days, "monthly_totals": 1},
            {
                **dict.fromkeys(("raw_orders", "orders", "daily_totals"), self.dataids),
                "monthly_totals": [self.dataid],
            },
        )


def run(directory: Path, days: int, *, clean: str) -> None:
    """Runs the whole demo. `clean` is the command that removes it. After an interruption no process of the demo is left."""
    place, month = Place(directory), Month(days)
    with place.taken():
        for number in INTERRUPTS:
            signal.signal(number, _interrupt)
        hidden = places.leave_settings_behind(place)
        try:
            _tell(place, month)
            _say_what_next(place, month, hidden, clean)
        except StoryError as error:
            look = f"to look yourself: {' && '.join(places.shell_lines(place, hidden))}"
            raise StoryError(error.message, "; ".join(filter(None, (error.remedy, look)))) from None
        except BaseException as error:
            with suppress(DataflowError):
                postgres.stop(directory)
            if isinstance(error, EmbeddedError):
                # The demo has a directory of its own, and no database but the embedded one.
                elsewhere = "choose another directory with --dir" if error.can_move else ""
                raise EmbeddedError(error.message, either(error.remedy_here, elsewhere)) from None
            if not isinstance(error, DataflowError):
                # The terminal or the pipe may be closed, so that nobody can read it.
                with suppress(OSError):
                    say("\nstopped: nothing of the demo runs any more")
            raise


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Interrupts the demo once. Ending in order takes a moment, during which further signals are ignored."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _tell(place: Place, month: Month) -> None:
    began = time.monotonic()
    say(bold("A month of retail orders, from CSV files to totals"))
    say(f"all files of the demo go into {place.directory}; --dir names another place")
    say()
    place.furnish()
    current = settings.load().settings
    _set_up(place, month, current)
    with programs.daemon(place.daemon_log) as daemon, db.connect(current) as connection:
        watch = Watch(connection, daemon, month.plan(), began)
        watch.note("$ dataflowctl concurrency 2    two at a time, for a start", BOLD)
        watch.note("$ dataflowd run    Spark starts, the first chunks take the longest", BOLD)
        say()
        _run(watch, month)
        _explain(month)
        _repair(month)
        _run_again(watch, month)
        daemon.stop()
        _sum_up(connection, month, time.monotonic() - began)


def _set_up(place: Place, month: Month, current: settings.Settings) -> None:
    postgres.ensure_running(place.directory, say)
    say(f"{mark('ok')} Postgres {postgres.status(place.directory).version}, embedded")
    found = java.find(current)
    say(f"{mark('ok')} Java {found.version}, {'embedded' if found.source == 'embedded' else found.home}")
    say(f"{bold('$')} cd {shlex.quote(str(place.directory))}")
    os.chdir(place.directory)
    _do(dataflowctl("init"))
    _do(script(SAMPLE, str(FIRST), str(month.days), "--missing", month.missing, "--cents", month.in_cents))
    _do(dataflowctl("apply", "quickstart/flow.toml"))
    _do(dataflowctl("ready", "raw_orders", *_ranges(month)))
    dataflowctl("concurrency", "2").read()


def _ranges(month: Month) -> list[str]:
    """The ranges of days before and after the missing one, as options of `ready`."""
    parts = [
        [dataid for dataid in month.dataids if dataid < month.missing],
        [dataid for dataid in month.dataids if dataid > month.missing],
    ]
    return [argument for part in parts for argument in ("--range", f"{part[0]}..{part[-1]}")]


def _do(command: Command) -> None:
    """Runs a command and shows it, with the last line of its output."""
    say(bold("$ ") + folded(command.shown, taken=2, indent=6))
    output = command.read().splitlines()
    if output:
        say(coloured(folded(f"    {cell(output[-1])}", indent=4), DIM))


def _show(command: Command) -> None:
    say()
    say(bold(f"$ {command.shown}"))
    command.show()


def _run(watch: Watch, month: Month) -> None:
    found = watch.until_idle(
        [
            Cue(
                "clean_orders",
                max(1, int(month.days * SOME_DONE)),
                dataflowctl("concurrency", "4"),
                "turned up",
            ),
            Cue("clean_orders", int(month.days * MOST_DONE), dataflowctl("concurrency", "2"), "and down"),
        ]
    )
    expected = {"clean_orders": month.days - 2, "daily_totals": month.days - 2, "monthly_totals": 0}
    failed = [(cause["runs"], cause["example_jobid"], cause["example_dataid"]) for cause in found["causes"]]
    if failed != [(1, "clean_orders", month.in_cents)] or _done(found) != expected:
        raise _unexpected(found)


def _explain(month: Month) -> None:
    say()
    say(bold(f"Nothing is left to do, and {month.dataid} is not there. Why?"))
    _show(dataflowctl("why", "monthly_totals", month.dataid))
    _show(dataflowctl("why", "clean_orders", month.in_cents))


def _repair(month: Month) -> None:
    say()
    say(bold(f"{month.missing} never came, and {month.in_cents} is in cents. Both are sent again:"))
    say()
    for day in (month.missing, month.in_cents):
        _do(script(SAMPLE, day, "1"))
    _do(dataflowctl("ready", "raw_orders", month.missing, month.in_cents))
    _do(dataflowctl("resubmit", "--error", "CHECK_FAILED", "--yes"))
    say()


def _run_again(watch: Watch, month: Month) -> None:
    watch.notes.clear()
    watch.note(f"{month.missing} has arrived, {month.in_cents} is run again")
    found = watch.until_idle()
    expected = {
        "clean_orders": month.days,
        "daily_totals": month.days,
        "monthly_totals": 1 if month.is_whole else 0,
    }
    if found["causes"] or _done(found) != expected:
        raise _unexpected(found)


def _done(found: dict[str, Any]) -> dict[str, int]:
    return {job["jobid"]: job["done"] for job in found["jobs"]}


def _unexpected(found: dict[str, Any]) -> StoryError:
    causes = [f"{cause['runs']} x {cause['code']}: {cell(cause['reason'])}" for cause in found["causes"]]
    done = ", ".join(f"{job} {count}" for job, count in _done(found).items())
    return StoryError(
        f"the demo did not go as planned; done: {done}; " + ("; ".join(causes) or "nothing failed"),
        "`dataflowctl status` in the demo's directory says what it waits for",
    )


def _sum_up(connection: psycopg.Connection, month: Month, seconds: float) -> None:
    names = month.plan().jobs
    jobs = [call("job_stats", jobid=name).send(connection)[0]["stats"] for name in names]
    say()
    what = "Everything" if month.is_whole else "Every day"
    say(f"{mark('ok')} {bold(f'{what} is READY')}, after {duration(seconds)}.")
    say()
    table(
        ["job", "chunks", "attempts", "failed", "rows", "set aside", "median"],
        [
            [
                job["jobid"],
                job["chunks"].get("READY", 0),
                job["execution"]["attempts"],
                job["execution"]["failed"],
                job["published"]["rows"],
                job["quarantine"]["open"],
                duration(job["execution"]["seconds"]["median"]),
            ]
            for job in jobs
        ],
    )
    say()
    if month.is_whole:
        _show_month(connection, month)
    else:
        rest = counted(WHOLE_MONTH - month.days, "day")
        say(f"{month.dataid} waits for its other {rest}: a month is made of all its days.")


def _show_month(connection: psycopg.Connection, month: Month) -> None:
    """Shows the month's totals, read from the location that the manifest names, as any reader does."""
    from pyarrow import dataset  # noqa: PLC0415 - slow; the story has begun before

    [chunk] = call(
        "chunks",
        datasetid="monthly_totals",
        statuses=["READY"],
        first=month.dataid,
        last=month.dataid,
        pattern=None,
        stale=False,
        sort="dataid",
        descending=False,
        at_most=1,
    ).send(connection)
    rows = dataset.dataset(chunk["location"], format="parquet").to_table().to_pylist()
    columns = ["customer", "days", "orders", "late", "total"]
    table(columns, [[row[name] for name in columns] for row in sorted(rows, key=lambda row: -row["total"])])


def _say_what_next(place: Place, month: Month, hidden: list[str], clean: str) -> None:
    say()
    say(bold("The database stays. To look around:"))
    for line in (
        *places.shell_lines(place, hidden),
        "dataflowctl status",
        f"dataflowctl history clean_orders {month.in_cents}",
        "dataflowctl quarantine list clean_orders",
    ):
        say(f"  {line}")
    say()
    say("A flow of your own:  dataflowctl new flow NAME")
    say(f"Remove all of this:  {clean}")
