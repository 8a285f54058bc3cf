"""The command status. `--watch` draws again when the database says that something changed."""

from __future__ import annotations

import json as encoder
import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import Call, ask, call, connected, explain
from dataflowd.cli.output import bold, mark, say
from dataflowd.cli.show import as_json, cell, duration, folded, moment, on_terminal, plain, table
from dataflowd.model.errors import EXIT, InvalidValueError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

REDRAW_SECONDS = 1.0
# Draw at least so often: a notice is only a hint and may be lost, and the clock on the screen should move.
LATEST_REDRAW_SECONDS = 10.0
SHOWN_JOBS = 20
SHOWN_HANDS = 10
HANGING = 6  # how far the lines below a cause are indented
CODE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def register(app: typer.Typer) -> None:
    options.add(app, status)


def status(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    *,
    job: Annotated[str | None, typer.Option("--job", help="Only this job.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and draw again when something changes.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with 1 if something needs a hand; for scripts and cron.")
    ] = False,
    ignored: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="CODE", help="Leave this code out of what needs a hand; may be repeated."
        ),
    ] = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Show first what needs a hand; then daemons, limits and every job at a glance.

    A run is waiting if its data is READY and it has not begun. Runs whose data is not READY are not counted; see `why JOB`.

    With --exit-code the exit status is 1 if anything is listed as needing a hand, and 0 if not; any other status says that
    the command itself failed. These need a hand: runs that FAILED and are not tried again, runs that no daemon starts, a
    daemon that is lost with its attempts, a pause or a limit of 0 for everything, chunks on hold (HELD) and records that
    were set aside (QUARANTINED). --ignore leaves out a code that you do not want to hear of.

    Examples:
    dataflowctl status
    dataflowctl status --watch --job clean_orders
    dataflowctl status --exit-code --ignore HELD --ignore QUARANTINED > report.txt || mail -s dataflowd ops < report.txt
    dataflowctl status --json | jq '.causes[] | {code, runs}'
    """
    if watch and exit_code:
        raise typer.BadParameter("--watch and --exit-code exclude each other")
    asked = call("status", jobid=job, ignored=_codes(ignored or []))
    if not watch:
        found = ask(context, asked, explained=explained)[0]["overview"]
        as_json(found) if json else draw(found)
        if exit_code and found["needs_hand"]:
            raise typer.Exit(EXIT["FAILED"])
        return
    if explained:
        explain(call("status_listen"), asked)
    try:
        for found in _changes(context, asked):
            _frame(found, json=json)
    except KeyboardInterrupt:
        return


def _codes(given: list[str]) -> list[str]:
    """Checks only the form of the codes: which codes exist, the database knows."""
    for code in given:
        if not CODE.fullmatch(code):
            raise InvalidValueError(
                f"{code!r} is not a code", "give a code that `status` lists: NETWORK, HELD, QUARANTINED ..."
            )
    return [code.upper() for code in given]


def _changes(context: typer.Context, asked: Call) -> Iterator[dict[str, Any]]:
    """Yields the overview now, and again whenever it may have changed, at most once a second."""
    from dataflowd.database import db  # noqa: PLC0415 - slow; `--help` does without

    with connected(context) as connection:
        connection.execute(db.query("status_listen"))
        while True:
            yield asked.send(connection)[0]["overview"]
            drawn = time.monotonic()
            heard = list(connection.notifies(timeout=LATEST_REDRAW_SECONDS, stop_after=1))
            remaining = drawn + REDRAW_SECONDS - time.monotonic()
            if heard and remaining > 0:
                # Later notices until then are covered by the same redraw.
                list(connection.notifies(timeout=remaining))


def _frame(found: dict[str, Any], *, json: bool) -> None:
    if json:
        say(encoder.dumps(plain(found)))
    else:
        if on_terminal():
            sys.stdout.write(CLEAR)
        draw(found)
    sys.stdout.flush()


def draw(found: dict[str, Any]) -> None:
    for_spark = sum(each["runs"] for each in found["waits_for_spark"])
    claimed = f", {for_spark} claimed" if for_spark else ""
    head = (
        f"{found['running'] - for_spark} of {found['limit']} running{claimed}, {found['waiting']:,} waiting"
    )
    say(f"{moment(found['at'])}  {head}{', PAUSED' if found['paused'] else ''}")
    for each in found["waits_for_spark"]:
        who = f"{counted(each['runs'], 'claimed run')} of daemon {each['daemon']}: "
        say(folded(f"{mark('skipped')} {who}{cell(each['detail'])}", indent=HANGING))
    _draw_hands(found["needs_hand"])
    say()
    if found["daemons"]:
        table(
            ["daemon", "host", "state", "last heard", "running", "limit", "since"],
            [
                [
                    d["daemon"],
                    d["hostname"],
                    "PAUSED" if d["paused"] else d["state"],
                    moment(d["heard"]),
                    d["running"],
                    d["concurrency"],
                    moment(d["started"]),
                ]
                for d in found["daemons"]
            ],
        )
    else:
        say("no daemon is known; start one with `dataflowd run`")
    say()
    _draw_jobs(found["jobs"])


def _draw_hands(hands: list[dict[str, Any]]) -> None:
    if not hands:
        say(f"{mark('ok')} nothing needs a hand")
        return
    say(bold("needs a hand:"))
    for hand in hands[:SHOWN_HANDS]:
        cause = f"{hand['code']} ({hand['count']:,}): {cell(hand['detail'])}"
        say(f"  {mark('failed')} {folded(cause, taken=HANGING - 2, indent=HANGING)}")
        say(folded(" " * HANGING + cell(hand["remedy"]), indent=HANGING))
    if len(hands) > SHOWN_HANDS:
        say(f"  ... and {counted(len(hands) - SHOWN_HANDS, 'more cause')}; --json lists all")


def _draw_jobs(jobs: list[dict[str, Any]]) -> None:
    if not jobs:
        say("no job is declared; `dataflowctl apply FLOW` declares some")
        return
    for_spark = any(job["waits_for_spark"] for job in jobs)
    table(
        [
            "job",
            "done",
            "running",
            *(["for Spark"] if for_spark else []),
            "waiting",
            "failed",
            "held",
            "quarantined",
            "eta",
            "oldest waiting",
            "per hour",
            "limit",
        ],
        [
            [
                j["jobid"] + (" (paused)" if j["paused"] else ""),
                f"{j['done']} ({j['forced']} forced)" if j["forced"] else j["done"],
                j["running"] - j["waits_for_spark"],
                *([j["waits_for_spark"]] if for_spark else []),
                j["waiting"],
                j["failed"],
                j["held"],
                j["quarantined"],
                # Without waiting or running runs there is no end to estimate: failed runs wait for a person.
                duration(j["eta_seconds"] if j["waiting"] or j["running"] else None),
                moment(j["oldest_waiting"]),
                j["per_hour"],
                j["limit"],
            ]
            for j in jobs[:SHOWN_JOBS]
        ],
    )
    if len(jobs) > SHOWN_JOBS:
        rest = jobs[SHOWN_JOBS:]
        totals = {key: sum(job[key] for job in rest) for key in ("done", "running", "waiting", "failed")}
        say(
            f"... and {counted(len(rest), 'job')}: "
            + ", ".join(f"{number:,} {key}" for key, number in totals.items())
            + "; --job shows one, --json all"
        )
