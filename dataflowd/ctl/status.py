"""At a glance: status. `--watch` draws again when the database says that something changed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.ctl import options
from dataflowd.ctl.ask import Call, ask, call, connected, explain
from dataflowd.ctl.output import bold, mark, say
from dataflowd.ctl.show import as_json, cell, duration, folded, moment, on_terminal, plain, table
from dataflowd.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

REDRAW_SECONDS = 1.0
# A notice is a hint and may be lost; and a clock on the screen should move.
LATEST_REDRAW_SECONDS = 10.0
SHOWN_JOBS = 20
SHOWN_HANDS = 10
HANGING = 6  # how far the lines below a cause are indented
CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def register(app: typer.Typer) -> None:
    options.add(app, status)


def status(
    context: typer.Context,
    *,
    job: Annotated[str | None, typer.Option("--job", help="Only this job.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and draw again when something changes.")
    ] = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """What needs a hand, first; then daemons, limits and every job at a glance.

    A run whose data is there and that has not begun is waiting; one whose data is not READY is not counted, see `why JOB`.

    Examples:
    dataflowctl status
    dataflowctl status --watch --job clean_orders
    dataflowctl status --json | jq '.causes[] | {code, runs}'
    """
    asked = call("status", jobid=job)
    if not watch:
        found = ask(context, asked, explained=explained)[0]["overview"]
        as_json(found) if json else draw(found)
        return
    if explained:
        explain(call("status_listen"), asked)
    try:
        for found in _changes(context, asked):
            _frame(found, json=json)
    except KeyboardInterrupt:
        return


def _changes(context: typer.Context, asked: Call) -> Iterator[dict[str, Any]]:
    """The overview now, and again whenever it may have changed, at most once a second."""
    from dataflowd import db

    with connected(context) as connection:
        connection.execute(db.query("status_listen"))
        while True:
            yield asked.send(connection)[0]["overview"]
            drawn = time.monotonic()
            heard = list(connection.notifies(timeout=LATEST_REDRAW_SECONDS, stop_after=1))
            remaining = drawn + REDRAW_SECONDS - time.monotonic()
            if heard and remaining > 0:
                # Whatever else arrives until then is in the same picture.
                list(connection.notifies(timeout=remaining))


def _frame(found: dict[str, Any], *, json: bool) -> None:
    if json:
        import json as encoder

        say(encoder.dumps(plain(found)))
    else:
        if on_terminal():
            sys.stdout.write(CLEAR)
        draw(found)
    sys.stdout.flush()


def draw(found: dict[str, Any]) -> None:
    head = f"{found['running']} of {found['limit']} running, {found['waiting']:,} waiting"
    say(f"{moment(found['at'])}  {head}{', PAUSED' if found['paused'] else ''}")
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
        said = f"{hand['code']} ({hand['count']:,}): {cell(hand['detail'])}"
        say(f"  {mark('failed')} {folded(said, taken=HANGING - 2, indent=HANGING)}")
        say(folded(" " * HANGING + cell(hand["remedy"]), indent=HANGING))
    if len(hands) > SHOWN_HANDS:
        say(f"  ... and {counted(len(hands) - SHOWN_HANDS, 'more cause')}; --json lists all")


def _draw_jobs(jobs: list[dict[str, Any]]) -> None:
    if not jobs:
        say("no job is declared; `dataflowctl apply FLOW` declares some")
        return
    table(
        [
            "job",
            "done",
            "running",
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
                j["done"],
                j["running"],
                j["waiting"],
                j["failed"],
                j["held"],
                j["quarantined"],
                # What has failed waits for a hand and not for time.
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
        told = {key: sum(job[key] for job in rest) for key in ("done", "running", "waiting", "failed")}
        say(
            f"... and {counted(len(rest), 'job')}: "
            + ", ".join(f"{number:,} {key}" for key, number in told.items())
            + "; --job shows one, --json all"
        )
