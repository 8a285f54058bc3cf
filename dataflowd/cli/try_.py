"""The command try: runs a job on a sample of its input, in the foreground. See dataflowd.engine.trial."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataflowd.cli import options
from dataflowd.cli.ask import ask, call, explain
from dataflowd.cli.foreground import require_here
from dataflowd.cli.output import JobOutput, mark, say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import as_json, duration, preview, sign_of_life, size, table
from dataflowd.model.errors import EXIT
from dataflowd.model.plural import counted
from dataflowd.model.vetting import LONG, MOST_ROWS, MOST_SHOWN

if TYPE_CHECKING:
    from dataflowd.cli.output import State
    from dataflowd.engine.trial import Tried


def register(app: typer.Typer) -> None:
    options.add(app, attempt, name="try")


def attempt(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    job: options.Job,
    dataid: options.Dataid,
    *,
    sample: Annotated[
        float | None, typer.Option(metavar="SHARE", help="This share of every input, such as 0.01.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, max=MOST_ROWS, help="At most so many rows of every input.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=-LONG, max=LONG - 1, help="Another seed chooses other rows."),
    ] = 0,
    shown: Annotated[
        int, typer.Option("--show", min=0, max=MOST_SHOWN, help="How many rows of each output to show.")
    ] = 10,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Run a job on a sample of its input, for real, and publish nothing: no status changes, no file stays.

    The code is that of this host's flow file. The input is what is READY now; a batch may be on hold. The command shows some of the
    resulting rows, the checks, the records that would go to quarantine, and the time. Exit status 1 if the job or a check fails; min_rows only warns.

    Examples:
    dataflowctl try clean_orders 2026-01-31 --sample 0.01
    dataflowctl try clean_orders 2026-01-31 --rows 1000 --json
    """
    if (sample is None) == (rows is None):
        raise typer.BadParameter("say how much of the input: --sample 0.01, or --rows 1000")
    if sample is not None and not 0 < sample <= 1:
        raise typer.BadParameter("--sample is a share: more than 0, at most 1")
    asked = call("trial_order", jobid=job, dataid=dataid)
    if explained:
        explain(asked)
    import anyio

    from dataflowd.engine import trial
    from dataflowd.flow.loaded import Declared
    from dataflowd.model.work_order import Trial

    settings = settings_of(context)
    flows = Declared(settings)
    if not flows.is_known(job):
        flows.add_like(job, ask(context, call("code_of", jobid=job), explained=False)[0]["base"])
    flow, declared = flows.job(job)
    trial.refuse(declared)
    require_here(context, job)
    found = ask(context, asked, explained=False)[0]["found"]
    wanted = Trial(share=sample, rows=rows, seed=seed, shown=shown)
    lines: list[str] = []
    shown_log = JobOutput(sys.stderr)

    def tell(line: str) -> None:
        shown_log.write(f"{line}\n".encode(errors="backslashreplace"))
        shown_log.flush()

    async def run() -> Tried:
        return await trial.run(
            settings,
            flow,
            declared,
            lambda directory: trial.order(found, flows, job, dataid, wanted, settings, directory),
            lines.append if json else tell,
        )

    _only_errors()
    with sign_of_life("running"):
        tried = anyio.run(run)
    document = _document(job, dataid, tried) | {"log": lines}
    if json:
        as_json(document)
    else:
        _show(document)
    if document["outcome"] != "DONE":
        raise typer.Exit(EXIT.get(document["code"], EXIT["FAILED"]))


def _exact(value: Any) -> Any:
    """Returns a float of the data with all its digits; `cell` would round it."""
    return repr(value) if isinstance(value, float) else value


def _only_errors() -> None:
    """Silences the log that a daemon would write about its runners, except errors."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def _document(job: str, dataid: str, tried: Tried) -> dict[str, Any]:
    result = tried.result
    manifests, previews = result.get("outputs", {}), result.get("preview", {})
    outputs = [
        {
            "dataset": name,
            "rows": manifests.get(name, {}).get("rows"),
            "bytes": manifests.get(name, {}).get("bytes"),
            "columns": manifests.get(name, {}).get("columns"),
            "preview": rows,
        }
        for name, rows in previews.items()
    ]
    return {
        "jobid": job,
        "dataid": dataid,
        "outcome": result["outcome"],
        "code": result.get("code"),
        "error": result.get("error"),
        "outputs": outputs,
        "checks": result.get("checks", []),
        "nodes": result.get("nodes", []),
        "quarantine": result.get("quarantine", []),
        "seconds": tried.seconds,
    }


def _show(document: dict[str, Any]) -> None:
    for output in document["outputs"]:
        about = (
            f": {counted(output['rows'], 'row')}, {size(output['bytes'])}"
            if output["rows"] is not None
            else ""
        )
        say(f"{output['dataset']}{about}")
        if output["preview"]:
            headers = list(dict.fromkeys(key for row in output["preview"] for key in row))
            table(headers, [[_exact(row.get(key)) for key in headers] for row in output["preview"]])
        say()
    for check in document["checks"]:
        state: State = "ok" if check["passed"] else "failed" if check["severity"] == "error" else "warning"
        say(
            f"{mark(state)} {check['dataset']}: {check['name']}: {check['observed']}, expected {check['expected']}"
        )
    if document["quarantine"]:
        say(f"{counted(len(document['quarantine']), 'record')} would go to quarantine:")
        headers = ["item", "code", "record", "reason"]
        rows = [
            [bad["item"], bad["code"], bad["details"]["record"], bad["reason"]]
            for bad in document["quarantine"]
        ]
        preview(headers, rows)
    took = ", ".join(f"{step} {duration(seconds)}" for step, seconds in document["seconds"].items())
    say(f"took: {took}")
    if document["outcome"] == "DONE":
        say(f"{mark('ok')} {document['jobid']} {document['dataid']} would succeed; nothing was published")
    else:
        say(
            f"{mark('failed')} {document['jobid']} {document['dataid']} would fail, {document['code']}: {document['error']}"
        )
