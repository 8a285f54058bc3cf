"""Runs that something else executes: begin, renew, end.

The claim and the end are those of the daemon's runs (sql/functions/outside.sql), and what the host has to look at is looked
at here, by the same code as for scripts: before the work the inputs and the attempt's directories, after it the files and
the checks. The handle is a secret, because whoever has it can publish: it need not stand in a command line.
"""

from __future__ import annotations

import os
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call, connected, explain
from dataflowd.cli.output import say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import as_json, cell, first_line, moment

if TYPE_CHECKING:
    import psycopg

    from dataflowd.cli.ask import Row
    from dataflowd.engine.report import Report
    from dataflowd.host.settings import Settings
    from dataflowd.model.errors import DataflowError
    from dataflowd.model.work_order import Order

VARIABLE = "DATAFLOW_HANDLE"
HIDDEN = "..."  # what --explain prints in the place of a handle
CLAIMS = 3  # a claim that meets a run which may no longer start takes it from the queue, and returns nothing
BUSY_TRIES = 20
ROWS_DIGITS = 18
OF_DAEMONS = frozenset({"config_hash", "replay"})  # how they run it: what works outside makes the whole chunk
BUSY_SECONDS = 0.5
Handle = Annotated[
    str | None,
    typer.Argument(metavar="HANDLE", help=f"As `begin` printed it; default: the variable {VARIABLE}."),
]
Lease = Annotated[
    str,
    typer.Option("--lease", metavar="TIME", help="How long it is left alone without a word: 90m, 2h, 1d."),
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
        str, typer.Option("--as", metavar="NAME", help="What executes it; `runs` and `why` show the name.")
    ] = "outside",
    instead: Annotated[
        bool,
        typer.Option(
            "--instead", help="Also of a job that daemons execute: this run is made in their place."
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

    For jobs with executor = "outside": a notebook, an appliance, a person. The five questions are asked, the limits hold, and the
    output directories are the attempt's own, as for a script. Whoever has the handle can publish: keep it secret. Unless it is
    renewed or ended before its lease is over, the run is taken back and begun anew. Exit status: 0 begun, 10 to 14 the question that is answered no.

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
        bool, typer.Option("--ok", help="It is done: publish what lies in its directories.")
    ] = False,
    failed: Annotated[
        str | None, typer.Option("--failed", metavar="REASON", help="It failed; others will read why.")
    ] = None,
    give_back: Annotated[
        bool, typer.Option("--give-back", help="It was not made: the run waits again, and no try is spent.")
    ] = False,
    rows: Annotated[
        list[str] | None,
        typer.Option("--rows", metavar="[DATASET=]N", help="Rows of an output; may be repeated."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Rows, files, checks and bad records, as a script writes them to DATAFLOW_REPORT."),
    ] = None,
    code: Annotated[
        str, typer.Option("--code", help="With --failed: what sort of failure it is.")
    ] = "FAILED",
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """End a run that `begin` claimed.

    With --ok the files and the declared checks are looked at as those of a script are, and all is published in one moment, or nothing.
    Exit status: 0 published or taken note of, 1 what was made cannot be published and the run has failed, 8 the claim is lost: throw away what was made.

    Examples:
    dataflowctl end --ok --rows 1200
    dataflowctl end "$HANDLE" --failed 'the licence server does not answer'
    """
    if sum((ok, failed is not None, give_back)) != 1:
        raise typer.BadParameter("say how it ended: --ok, --failed REASON or --give-back")
    if not ok and (rows or report):
        raise typer.BadParameter("--rows and --report go with --ok: only what is published is told about")
    found = _handle(handle, explained=explained)
    if explained:
        outcome = "DONE" if ok else "RETURNED" if give_back else "FAILED"
        explain(call("end", handle=found, outcome=outcome, reason=failed, result={}))
    with connected(context) as connection:
        if ok:
            ended = _published(connection, settings_of(context), found, rows or [], report)
        else:
            ended = _told(
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
        from dataflowd.model.errors import EXIT

        raise typer.Exit(EXIT.get(ended["code"], EXIT["FAILED"]))


def _require_asked(context: typer.Context, jobid: str) -> None:
    """Raises where checks would be left out. Those of datasets are not: `end` takes nothing without their results."""
    from dataflowd.cli.foreground import declared_here
    from dataflowd.flow.loaded import Declared
    from dataflowd.flow.model import TOLD_BY_SCRIPTS
    from dataflowd.model.errors import NotAllowedError

    found = declared_here(context, Declared(settings_of(context)), jobid)
    if found is None:
        return
    flow, job = found
    made = [flow.datasets[name] for name in job.outputs if name in flow.datasets]
    custom = ["custom"] if job.custom_checks or any(dataset.custom_checks for dataset in made) else []
    if unasked := sorted({*job.checks, *custom} - TOLD_BY_SCRIPTS):
        raise NotAllowedError(
            f"what is made in the place of job {jobid} would be published without its checks: {', '.join(unasked)}",
            f"let the job make it: `dataflowctl run {jobid}`, or a daemon",
        )


def _claimed(context: typer.Context, asked: Any, *, explained: bool) -> Row | None:
    for _ in range(CLAIMS):
        if found := ask(context, asked, explained=explained):
            return found[0]
    return None


def _prepared(context: typer.Context, row: Row, lease: Any, *, passwords: bool) -> tuple[dict[str, str], Any]:
    """The environment, and until when it stands. A run that this host cannot prepare ends at once, and says why."""
    from dataflowd.flow import script_variables
    from dataflowd.host.keyfile import KeySource
    from dataflowd.model.errors import DataflowError
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
            _told(
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
    """As a script would be given it. A host whose flow files do not declare the job goes by the database, within its roots and hosts.

    `base`: the job whose code it runs, itself as a rule.
    """
    from dataflowd.flow import agreement
    from dataflowd.flow.compose import composed, vetted
    from dataflowd.flow.loaded import Declared
    from dataflowd.model.errors import NotFoundError

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
    from dataflowd.model.faults import AttemptError

    found = call("run_order", handle=handle).send(connection)
    if not found:
        # It says that nothing of it runs any more: a cancelled run may be begun again.
        _told(connection, handle, "RETURNED", None, {})
        raise _lost()
    [code] = call("code_of", jobid=found[0]["jobid"]).send(connection)
    order = _order(found[0], code["base"], settings)
    report = _report(order, rows, path)
    try:
        made = publish(order, report)
    except AttemptError as error:
        return _told(
            connection,
            handle,
            "FAILED",
            str(error),
            told_by_own_names(_fault(error), order),
        )
    ended = _told(connection, handle, "DONE", None, told_by_own_names(made, order))
    for output in order.outputs.values():
        if output.dataset.publish == "rename":
            _turn(connection, settings, output.dataset.datasetid, order.dataid)
    return ended


def _fault(error: DataflowError) -> dict[str, Any]:
    """What dataflow.end_run takes of it: the reason and the outcome are parameters of their own."""
    from dataflowd.model.attempt import told_by
    from dataflowd.model.endings import told_error

    return {name: value for name, value in told_error(error).items() if name in told_by("outside")}


def _report(order: Order, rows: list[str], path: Path | None) -> Report:
    """What is wrong with it is said to the person, who corrects it and ends the run again."""
    from dataflowd.engine.report import Reader, Report
    from dataflowd.model.errors import NotFoundError

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


def _told(
    connection: psycopg.Connection, handle: str, outcome: str, reason: str | None, result: dict[str, Any]
) -> dict[str, Any]:
    """Ends it. Somebody's open transaction may hold its rows: it is offered again for some seconds."""
    from dataflowd.model.errors import LockedError

    known = {name: value for name, value in result.items() if value is not None}
    asked = call("end", handle=handle, outcome=outcome, reason=reason, result=known)
    for _ in range(BUSY_TRIES):
        [row] = asked.send(connection)
        if row["verdict"] == "accepted":
            told = {"code": known.get("code"), "error": reason, "remedy": known.get("remedy")}
            return {"outcome": outcome, **told}
        if row["verdict"] == "fenced":
            raise _lost()
        time.sleep(BUSY_SECONDS)
    raise LockedError("somebody's open transaction holds its chunks", "end it again when that is over")


def _turn(connection: psycopg.Connection, settings: Settings, dataset: str, dataid: str) -> None:
    """A fixed path follows what is published, which it is already: where this cannot be done here and now, a daemon does it."""
    import psycopg

    from dataflowd.storage import fixed_path

    with suppress(OSError, ValueError, psycopg.Error):
        found = _current(connection, settings, dataset, dataid)
        held = fixed_path.lock(found[0], dataid) if found is not None else None
        if held is None:
            return
        try:
            # What was current before the lock may be so no longer.
            if (found := _current(connection, settings, dataset, dataid)) is not None:
                fixed_path.turn(found[0], dataid, found[1])
        finally:
            os.close(held)


def _current(
    connection: psycopg.Connection, settings: Settings, dataset: str, dataid: str
) -> tuple[str, str] | None:
    """The dataset's location, and where the chunk's path has to lead; None: it has none, or not on this host."""
    from dataflowd.database import db
    from dataflowd.storage import fixed_path

    asked = {"datasetid": dataset, "dataid": dataid}
    for _, _, location, current in connection.execute(db.query("fixed_path"), asked).fetchall():
        if fixed_path.is_here(location, dataid, current, settings.effective_allowed_roots):
            return location, current
    return None


def _handle(given: str | None, *, explained: bool) -> str:
    from dataflowd.model.errors import InvalidValueError

    found = given or os.environ.get(VARIABLE)
    if not found:
        raise InvalidValueError(
            "no handle is given", f"give the one that `dataflowctl begin` printed, or set {VARIABLE}"
        )
    return HIDDEN if explained else found


def _lost() -> Exception:
    from dataflowd.model.errors import NotAllowedError

    return NotAllowedError(
        "this attempt has lost its claim: its run was cancelled, or its lease was over and it was taken back",
        "stop, and throw away what it made; `dataflowctl attempts JOB DATAID` tells what happened",
    )
