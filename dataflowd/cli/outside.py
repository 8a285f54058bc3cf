"""Runs that something other than a daemon executes: begin, renew, end.

Claim and end use the same SQL as a daemon's runs (sql/functions/outside.sql). This module does the host's part, with the same
code as for scripts: before the work it checks the inputs and the attempt's directories, after the work the files and the
checks. The handle is a secret, because whoever has it can publish. So it may be given in a variable instead of the command line.
"""

from __future__ import annotations

import os
import shlex
import time
from contextlib import suppress
from pathlib import Path  # noqa: TC003 - Typer reads the types of options at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call, connected, explain
from dataflowd.cli.output import say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import as_json, cell, first_line, moment
from dataflowd.model.attempt import told_by
from dataflowd.model.endings import told_error
from dataflowd.model.errors import (
    EXIT,
    DataflowError,
    InvalidValueError,
    LockedError,
    NotAllowedError,
    NotFoundError,
)
from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    import psycopg

    from dataflowd.cli.ask import Row
    from dataflowd.engine.report import Report
    from dataflowd.host.settings import Settings
    from dataflowd.model.work_order import Order

VARIABLE = "DATAFLOW_HANDLE"
HIDDEN = "..."  # what --explain prints instead of a handle
CLAIMS = 3  # how often a claim is tried: one that meets a run which may no longer start removes it from the queue and returns nothing
BUSY_TRIES = 20
ROWS_DIGITS = 18
OF_DAEMONS = frozenset({"config_hash", "replay"})  # fields of the order that only a daemon uses
BUSY_SECONDS = 0.5
Handle = Annotated[
    str | None,
    typer.Argument(
        metavar="HANDLE", help=f"The handle that `begin` printed; default: the variable {VARIABLE}."
    ),
]
Lease = Annotated[
    str,
    typer.Option("--lease", metavar="TIME", help="How long the run is yours without a renewal: 90m, 2h, 1d."),
]


def register(app: typer.Typer) -> None:
    for command in (begin, renew, end):
        options.add(app, command)


def begin(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: options.Job,
    dataid: Annotated[
        str | None, typer.Argument(metavar="DATAID", help="Id of the slice; default: the next.")
    ] = None,
    *,
    lease: Lease = "1h",
    executor: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Who executes it; `runs` and `why` show the name.")
    ] = "outside",
    instead: Annotated[
        bool,
        typer.Option(
            "--instead", help="Also for a job that daemons execute: you make this run instead of them."
        ),
    ] = False,
    passwords: Annotated[
        bool, typer.Option("--passwords", help="Open the passwords of its datasets, and print them too.")
    ] = False,
    shell: Annotated[bool, typer.Option("--shell", help="Print `export NAME=VALUE` lines for eval.")] = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Claim a run that something else executes, and print its environment and a handle to end it with.

    For jobs with executor = "outside": a notebook, an appliance, a person. The five questions are asked, the limits apply, and the
    attempt has output directories of its own, as for a script. Whoever has the handle can publish: keep it secret. If the run is neither
    renewed nor ended before its lease is over, it is taken back and can be begun again. Exit status: 0 begun, 10 to 14 the question that is answered no.

    Examples:
    eval "$(dataflowctl begin train --lease 2h --shell)" && ./work && dataflowctl end --ok --rows 1200
    dataflowctl begin train 2026-01-31 --json
    """
    if shell and json:
        raise typer.BadParameter("--shell and --json exclude each other")
    if instead and not explained:
        _require_asked(context, job)
    asked = call(
        "begin_instead" if instead else "begin",
        jobid=job,
        dataid=dataid,
        lease=options.age(lease),
        environment=settings_of(context).environment,
        executor=executor,
    )
    row = _claimed(context, asked, explained=explained)
    if row is None:
        from dataflowd.cli.foreground import nothing

        raise nothing(context, job, dataid)
    found, until = _prepared(context, row, options.age(lease), passwords=passwords)
    if json:
        names = ("handle", "jobid", "dataid", "attempt", "number")
        as_json({name: row[name] for name in names} | {"lease_until": until, "environment": found})
    elif shell:
        for name, value in sorted({VARIABLE: row["handle"], **found}.items()):
            say(f"export {name}={shlex.quote(value)}")
    else:
        say(f"{row['jobid']} {row['dataid']}: attempt {row['number']}, yours until {moment(until)}")
        say(f"{VARIABLE}={row['handle']}")
        for name, value in sorted(found.items()):
            say(f"{name}={value if name.endswith('_password') else cell(value)}")


def renew(
    context: typer.Context,
    handle: Handle = None,
    *,
    lease: Lease = "1h",
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Prolong the lease of a run that `begin` claimed, from now on, at most until the job's timeout.

    Exit status: 0 prolonged, 8 the claim is lost: somebody has cancelled the run, or its lease was over and it was taken back.

    Examples:
    dataflowctl renew --lease 2h
    """
    found = _handle(handle, explained=explained)
    asked = call("renew", handle=found, lease=options.age(lease))
    [row] = ask(context, asked, explained=explained)
    if row["lease_until"] is None:
        raise _lost()
    if json:
        as_json({"lease_until": row["lease_until"]})
        return
    say(f"yours until {moment(row['lease_until'])}")


def end(  # noqa: PLR0913
    context: typer.Context,
    handle: Handle = None,
    *,
    ok: Annotated[
        bool, typer.Option("--ok", help="The run is done: publish the files in its directories.")
    ] = False,
    failed: Annotated[
        str | None, typer.Option("--failed", metavar="REASON", help="The run failed, for this reason.")
    ] = None,
    give_back: Annotated[
        bool, typer.Option("--give-back", help="Nothing was made: the run waits again, and no try is spent.")
    ] = False,
    rows: Annotated[
        list[str] | None,
        typer.Option("--rows", metavar="[DATASET=]N", help="Rows of an output; may be repeated."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Rows, files, checks and bad records, as a script writes them to DATAFLOW_REPORT."),
    ] = None,
    code: Annotated[str, typer.Option("--code", help="With --failed: the code of the failure.")] = "FAILED",
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """End a run that `begin` claimed.

    With --ok the files and the declared checks are examined as those of a script, and all outputs are published at once, or none.
    Exit status: 0 published or recorded, 1 the outputs cannot be published and the run has failed, 8 the claim is lost: throw away what was made.

    Examples:
    dataflowctl end --ok --rows 1200
    dataflowctl end "$HANDLE" --failed 'the licence server does not answer'
    """
    if sum((ok, failed is not None, give_back)) != 1:
        raise typer.BadParameter("say how the run ended: --ok, --failed REASON or --give-back")
    if not ok and (rows or report):
        raise typer.BadParameter("--rows and --report need --ok: they describe what is published")
    found = _handle(handle, explained=explained)
    if explained:
        outcome = "DONE" if ok else "RETURNED" if give_back else "FAILED"
        explain(call("end", handle=found, outcome=outcome, reason=failed, result={}))
    with connected(context) as connection:
        if ok:
            ended = _published(connection, settings_of(context), found, rows or [], report)
        else:
            ended = _end(
                connection,
                found,
                "RETURNED" if give_back else "FAILED",
                failed,
                {} if give_back else {"code": code},
            )
    if json:
        as_json(ended)
    else:
        why = f" {ended['code']}: {cell(first_line(ended['error']))}" if ended["outcome"] == "FAILED" else ""
        say(f"{ended['outcome']}{why}")
    if ok and ended["outcome"] == "FAILED":
        raise typer.Exit(EXIT.get(ended["code"], EXIT["FAILED"]))


def _require_asked(context: typer.Context, jobid: str) -> None:
    """Raises if checks of the job would be left out. `end` itself demands the results of the datasets' checks."""
    from dataflowd.cli.foreground import declared_here
    from dataflowd.flow.loaded import Declared
    from dataflowd.flow.model import TOLD_BY_SCRIPTS

    found = declared_here(context, Declared(settings_of(context)), jobid)
    if found is None:
        return
    flow, job = found
    made = [flow.datasets[name] for name in job.outputs if name in flow.datasets]
    custom = ["custom"] if job.custom_checks or any(dataset.custom_checks for dataset in made) else []
    if unasked := sorted({*job.checks, *custom} - TOLD_BY_SCRIPTS):
        raise NotAllowedError(
            f"an output that is made instead of job {jobid} would be published without the job's checks: {', '.join(unasked)}",
            f"let the job make it: `dataflowctl run {jobid}`, or a daemon",
        )


def _claimed(context: typer.Context, asked: Any, *, explained: bool) -> Row | None:
    for _ in range(CLAIMS):
        if found := ask(context, asked, explained=explained):
            return found[0]
    return None


def _prepared(context: typer.Context, row: Row, lease: Any, *, passwords: bool) -> tuple[dict[str, str], Any]:
    """Returns the environment and the end of the lease. A run that this host cannot prepare ends at once as FAILED, with the reason."""
    from dataflowd.flow import script_variables
    from dataflowd.host.keyfile import KeySource
    from dataflowd.runner import script
    from dataflowd.storage import evidence

    settings = settings_of(context)
    seen: dict[str, Any] = {}
    [code] = ask(context, call("code_of", jobid=row["jobid"]), explained=False)
    try:
        order = _order(row, code["base"], settings)
        looked = evidence.Evidence(order)
        seen = looked.document()
        script.prepare(order, looked)
        found = script_variables.variables(order)
        if passwords:
            found |= script.opened(
                script_variables.password_variables(order), KeySource.of(settings).document()
            )
    except DataflowError as error:
        with connected(context) as connection:
            _end(
                connection,
                row["handle"],
                "FAILED",
                str(error),
                {**_fault(error), "found": evidence.bounded(seen)},
            )
        raise
    [renewed] = ask(context, call("renew", handle=row["handle"], lease=lease), explained=False)
    if renewed["lease_until"] is None:
        raise _lost()
    return found, renewed["lease_until"]


def _order(row: Row, base: str, settings: Settings) -> Order:
    """Composes the order as for a script. If no flow file of this host declares the job, the database's half is used, within the
    host's allowed roots and hosts.

    `base`: the job whose code the job runs; mostly the job itself.
    """
    from dataflowd.flow import agreement
    from dataflowd.flow.compose import composed, vetted
    from dataflowd.flow.loaded import Declared

    identity = {name: row[name] for name in ("attempt", "number", "jobid", "dataid", "tag", "params")}
    found = {name: value for name, value in row["work_order"].items() if name not in OF_DAEMONS}
    declared = Declared(settings)
    if not declared.is_known(row["jobid"]):
        declared.add_like(row["jobid"], base)
    try:
        flow, job = declared.job(row["jobid"])
    except NotFoundError:
        return vetted(found, identity | {"kind": "outside", "code": "", "directory": ""}, settings)
    order = composed(found, identity, flow, job, settings)
    agreement.require(order, job, declared)
    return order


def _published(
    connection: psycopg.Connection, settings: Settings, handle: str, rows: list[str], path: Path | None
) -> dict[str, Any]:
    from dataflowd.engine.publish import publish
    from dataflowd.flow.compose import told_by_own_names

    found = call("run_order", handle=handle).send(connection)
    if not found:
        # Tells the database that nothing of the attempt runs any more, so that a cancelled run may be begun again.
        _end(connection, handle, "RETURNED", None, {})
        raise _lost()
    [code] = call("code_of", jobid=found[0]["jobid"]).send(connection)
    order = _order(found[0], code["base"], settings)
    report = _report(order, rows, path)
    try:
        made = publish(order, report)
    except AttemptError as error:
        return _end(
            connection,
            handle,
            "FAILED",
            str(error),
            told_by_own_names(_fault(error), order),
        )
    ended = _end(connection, handle, "DONE", None, told_by_own_names(made, order))
    for output in order.outputs.values():
        if output.dataset.publish == "rename":
            _turn(connection, settings, output.dataset.datasetid, order.dataid)
    return ended


def _fault(error: DataflowError) -> dict[str, Any]:
    """Returns the fields of the error that dataflow.end_run accepts. Reason and outcome are separate parameters."""
    return {name: value for name, value in told_error(error).items() if name in told_by("outside")}


def _report(order: Order, rows: list[str], path: Path | None) -> Report:
    """Reads --rows and --report. Raises what is wrong with them to the person, who corrects it and ends the run again."""
    from dataflowd.engine.report import Reader, Report

    try:
        is_there = path is None or path.is_file()
    except OSError:
        is_there = False
    if not is_there:
        raise NotFoundError(f"there is no file {path}", "name the report that was written, or leave it out")
    report = Report(order.outputs) if path is None else Reader(path, order.outputs).look(is_last=True)
    for given in rows:
        name, has_name, number = given.rpartition("=")
        if not has_name and len(order.outputs) == 1:
            name = next(iter(order.outputs))
        if not number.isdecimal() or len(number) > ROWS_DIGITS or name not in order.outputs:
            raise typer.BadParameter(
                f"--rows {given}: write a number, or OUTPUT=NUMBER; the outputs are {', '.join(order.outputs)}"
            )
        report.rows[name] = int(number)
    return report


def _end(
    connection: psycopg.Connection, handle: str, outcome: str, reason: str | None, result: dict[str, Any]
) -> dict[str, Any]:
    """Ends the attempt in the database. Tries again for some seconds while another transaction locks its rows."""
    known = {name: value for name, value in result.items() if value is not None}
    asked = call("end", handle=handle, outcome=outcome, reason=reason, result=known)
    for _ in range(BUSY_TRIES):
        [row] = asked.send(connection)
        if row["verdict"] == "accepted":
            failure = {"code": known.get("code"), "error": reason, "remedy": known.get("remedy")}
            return {"outcome": outcome, **failure}
        if row["verdict"] == "fenced":
            raise _lost()
        time.sleep(BUSY_SECONDS)
    raise LockedError(
        "another open transaction locks the chunks of this run",
        "end the run again when that transaction is over",
    )


def _turn(connection: psycopg.Connection, settings: Settings, dataset: str, dataid: str) -> None:
    """Turns the fixed path of a chunk to the version that was just published. If this host cannot do it now, a daemon does it."""
    import psycopg

    from dataflowd.storage import fixed_path

    with suppress(OSError, ValueError, psycopg.Error):
        found = _current(connection, settings, dataset, dataid)
        held = fixed_path.lock(found[0], dataid) if found is not None else None
        if held is None:
            return
        try:
            # Read again under the lock, because another version may have become current.
            if (found := _current(connection, settings, dataset, dataid)) is not None:
                fixed_path.turn(found[0], dataid, found[1])
        finally:
            os.close(held)


def _current(
    connection: psycopg.Connection, settings: Settings, dataset: str, dataid: str
) -> tuple[str, str] | None:
    """Returns the dataset's location and the target of the chunk's fixed path; None: it has none, or none on this host."""
    from dataflowd.database import db
    from dataflowd.storage import fixed_path

    asked = {"datasetid": dataset, "dataid": dataid}
    for _, _, location, current in connection.execute(db.query("fixed_path"), asked).fetchall():
        if fixed_path.is_here(location, dataid, current, settings.effective_allowed_roots):
            return location, current
    return None


def _handle(given: str | None, *, explained: bool) -> str:

    found = given or os.environ.get(VARIABLE)
    if not found:
        raise InvalidValueError(
            "no handle is given", f"give the handle that `dataflowctl begin` printed, or set {VARIABLE}"
        )
    return HIDDEN if explained else found


def _lost() -> Exception:

    return NotAllowedError(
        "this attempt has lost its claim: its run was cancelled, or its lease was over and it was taken back",
        "stop, and throw away what was made; `dataflowctl attempts JOB DATAID` says what happened",
    )
