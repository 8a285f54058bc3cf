"""The weekend: all 700 jobs of a daily cycle fail for one cause; three commands show, explain and recover them, in order."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from tests import readme
from tests.e2e.ctl_flow import asked, declare, limit, ok, ready, running_daemon

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from tests.e2e.ctl_flow import Daemon
    from tests.fix_postgres import RunCtl

JOBS = 700
CHAIN = 7
DAY = "2026-01-31"
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
PLACE = re.compile(r"(/srv)?/data/\S+")
ERROR = "cannot reach db7:5432: No route to host"


def chain(number: int) -> tuple[list[str], str]:
    """Inputs and output of a job: every seventh job reads from outside, each of the next six reads the output of the job before."""
    return ([f"d{number - 1:03}" if number % CHAIN else "raw"], f"d{number:03}")


def test_700_failures_of_one_cause_are_seen_explained_and_recovered_in_order(
    dsn: str, connection: psycopg.Connection, run_ctl: RunCtl
) -> None:
    declare(connection, {f"load_{number:03}": chain(number) for number in range(JOBS)})
    limit(connection, JOBS)
    ready(connection, "raw", DAY)
    with running_daemon(dsn) as daemon:
        # All runs are done once; then each is resubmitted and fails for the network.
        assert len(daemon.run_all()) == JOBS
        fail_everything(connection, daemon)

        picture = asked(run_ctl, "status")
        assert [(cause["code"], cause["runs"], cause["jobs"]) for cause in picture["causes"]] == [
            ("NETWORK", JOBS, JOBS)
        ]
        shown = ok(run_ctl("status"))
        assert f"NETWORK ({JOBS}): 700 runs of 700 jobs FAILED: {ERROR}" in shown
        assert shown.index("needs a hand") < shown.index("load_000")

        why = ok(run_ctl("why", "load_000", DAY))
        assert "is FAILED" in why
        assert f"NETWORK: {ERROR}" in why

        preview = json.loads(ok(run_ctl("resubmit", "--error", "NETWORK", "--dry-run", "--json")))
        assert preview["count"] == JOBS
        depths = {run["jobid"]: run["depth"] for run in preview["runs"]}
        assert depths == {f"load_{number:03}": number % CHAIN for number in range(JOBS)}
        assert [run["depth"] for run in preview["runs"]] == sorted(depths.values())
        assert asked(run_ctl, "status")["causes"][0]["runs"] == JOBS

        look, explain, preview_command, recover, look_again = readme.session(
            "After an outage", readme.DOCS / "operate.md"
        )
        for command in (look, explain, preview_command, recover):
            type_in(run_ctl, *command)
        ran = daemon.run_all()
        type_in(run_ctl, *look_again)
    assert sorted(job for job, _ in ran) == sorted(depths)
    assert [depths[job] for job, _ in ran] == sorted(depths.values())
    after = asked(run_ctl, "status")
    assert (after["causes"], after["needs_hand"]) == ([], [])
    assert sum(job["done"] for job in after["jobs"]) == JOBS


def type_in(run_ctl: RunCtl, command: str, shown: Sequence[str]) -> None:
    """Runs a command of the page, and checks that it prints what the page shows, except for times and places."""
    printed = _plain(ok(run_ctl(*shlex.split(command)[1:]))).splitlines()
    for line in shown:
        assert line == "..." or _plain(line) in printed, (command, line, printed[:20])


def _plain(text: str) -> str:
    return PLACE.sub("P", MOMENT.sub("T", text))


def fail_everything(connection: psycopg.Connection, daemon: Daemon) -> None:
    """Resubmits and fails every run, the last jobs of the chains first: their inputs must still be READY then."""
    for depth in reversed(range(CHAIN)):
        connection.execute(
            "UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE jobid = ANY (%s)",
            [[f"load_{number:03}" for number in range(depth, JOBS, CHAIN)]],
        )
        daemon.finish(daemon.claim(), "FAILED", code="NETWORK", error=ERROR)
