"""The doctor's report: a tick or a cross for each check, and a remedy where one is needed."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dataflowd.cli.output import mark, say, say_json
from dataflowd.model.errors import EXIT
from dataflowd.model.masking import mask, printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataflowd.cli.doctor.finding import Finding


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Start a Spark to see that it works.")
    ] = True,
    unit: Annotated[
        str | None,
        typer.Option(
            "--unit",
            metavar="NAME",
            help="Check this systemd unit instead, such as dataflowd or dataflowd@blue: may it write where its settings say?",
        ),
    ] = None,
) -> None:
    """Check this host and its database. Exit status 1 when something would stop a run.

    Examples:
    dataflowctl doctor --no-spark
    dataflowctl doctor --unit dataflowd
    """
    from dataflowd.cli.doctor.checks import examine
    from dataflowd.host.settings import load

    findings = []
    found = _of_unit(unit, context.obj) if unit else examine(load(context.obj), spark=spark)
    for finding in found:
        findings.append(finding)
        if not as_json:
            _print(finding)
    failed = [finding.check for finding in findings if finding.state == "failed"]
    if as_json:
        say_json({"ok": not failed, "checks": [asdict(finding) for finding in findings]})
    else:
        say(_verdict(findings, failed))
    raise typer.Exit(EXIT["FAILED"] if failed else EXIT["OK"])


def _of_unit(name: str, config: Path | None) -> Iterator[Finding]:
    from dataflowd.cli.doctor import unit as doctor_unit

    return doctor_unit.examine(name, config)


def _verdict(findings: list[Finding], failed: list[str]) -> str:
    from dataflowd.cli.doctor.database_checks import ROLES

    if failed:
        return f"would stop a run: {', '.join(dict.fromkeys(failed))}"
    if any(finding.check == ROLES and finding.state == "warning" for finding in findings):
        return "nothing would stop a person who looks or steers; a run needs another role"
    return "nothing would stop a run"


def _print(finding: Finding) -> None:
    """Prints a finding at once, because the next check may take seconds."""
    say(f"{mark(finding.state)} {finding.check:<9} {printable(mask(finding.detail))}")
    if finding.remedy:
        say(f"  remedy: {printable(finding.remedy)}")
    sys.stdout.flush()
