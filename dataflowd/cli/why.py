"""The command why: says why a run ran, runs or does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call
from dataflowd.cli.output import State, bold, mark, say
from dataflowd.cli.show import as_json, cell, folded
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.cli.ask import Row

LAST_QUESTION = 5
REMEDY = 6  # how far a remedy is indented


def register(app: typer.Typer) -> None:
    options.add(app, why)


def why(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: options.Job,
    dataid: Annotated[
        str | None, typer.Argument(metavar="DATAID", help="Id of the slice; without it: what blocks most.")
    ] = None,
    *,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="As it was then: a time (2026-01-31T08:00) or an age (90m, 12h, 3d). If an attempt was running then, its "
            "stored evidence answers; else the history does.",
        ),
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(
            "--attempt",
            metavar="N",
            min=1,
            help="As it was for this attempt of the run; `attempts` lists them.",
        ),
    ] = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Answer the five questions about a run, each with evidence and remedy, and say what else keeps it from running.

    Examples:
    dataflowctl why clean_orders 2026-01-31
    dataflowctl why clean_orders 2026-01-31 --at '2026-02-01 06:00'
    dataflowctl why clean_orders 2026-01-31 --attempt 2
    dataflowctl why clean_orders            what keeps most of its runs
    """
    if (at or attempt is not None) and (dataid is None or (at and attempt is not None)):
        raise typer.BadParameter(
            "--at and --attempt ask about the past of one run: name its DATAID, and only one of these options"
        )
    if dataid is None:
        blockers = ask(context, call("blockers", jobid=job), explained=explained)
        if json:
            as_json(_document(job, blockers=blockers))
            return
        _draw_blockers(job, blockers)
        return
    if at:
        asked = call("why_at", jobid=job, dataid=dataid, moment=options.moment(at))
    elif attempt is not None:
        asked = call("why_attempt", jobid=job, dataid=dataid, attempt=attempt)
    else:
        asked = call("why", jobid=job, dataid=dataid)
    state, *questions = ask(context, asked, explained=explained)
    if json:
        as_json(_document(job, dataid, state, questions))
        return
    run = f"{job} {dataid}"
    sentence = f" {'was' if at or attempt else 'is'} {state['code']}: {cell(state['detail'])}"
    say(bold(run) + folded(sentence, taken=len(run), indent=REMEDY))
    if state["remedy"]:
        say("  " + folded(cell(state["remedy"]), taken=2, indent=REMEDY))
    say()
    for row in questions:
        _draw(row, is_taken=state["code"] in ("READY", "RUNNING", "WAITS_FOR_SPARK"))


def _document(
    job: str,
    dataid: str | None = None,
    state: Row | None = None,
    questions: Sequence[Row] = (),
    blockers: Sequence[Row] = (),
) -> Row:
    known = state or {"code": None, "detail": None, "remedy": None}
    return {
        "jobid": job,
        "dataid": dataid,
        "state": known["code"],
        "detail": known["detail"],
        "remedy": known["remedy"],
        "questions": list(questions),
        "blockers": list(blockers),
    }


def _draw(row: Row, *, is_taken: bool) -> None:
    """Prints one question. `is_taken`: the chunk is published or being written, so that a no to question 5 is no fault."""
    state: State = "ok" if row["answer"] else "failed"
    if row["answer"] is None or (is_taken and row["number"] == LAST_QUESTION):
        state = "skipped"
    number = f"{row['number']}. " if row["number"] <= LAST_QUESTION else "   "
    code = f"{row['code']}: " if row["code"] else ""
    question = f"{number}{row['question']:<28} "
    answer = folded(f"{code}{cell(row['detail'])}", taken=2 + len(question), indent=2 + len(question))
    say(f"{mark(state)} {question}{answer}")
    if row["remedy"] and state != "ok":
        say(folded(f"      remedy: {cell(row['remedy'])}", indent=REMEDY + len("remedy: ")))


def _draw_blockers(job: str, blockers: list[Row]) -> None:
    if not blockers:
        say(f"{mark('ok')} nothing keeps {job}")
        return
    for row in blockers:
        span = (
            f", {row['first']} to {row['last']}"
            if row["first"] != row["last"]
            else f", {row['first']}"
            if row["first"]
            else ""
        )
        say(f"{mark('failed')} {bold(row['code'])} {counted(row['runs'], 'run')}{span}: {cell(row['what'])}")
        say(folded(f"      {cell(row['detail'])}", indent=REMEDY))
        say(folded(f"      remedy: {cell(row['remedy'])}", indent=REMEDY + len("remedy: ")))
