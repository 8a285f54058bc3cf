"""`why --at` alone finds that a run failed last week because of a wrong location; and other questions about the past."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, LiteralString

import pytest

from dataflowd.model.errors import EXIT

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

DAY = "2026-11-09"
FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{{root}}/{place}/{{dataid}}.csv"
[dataset.clean]
format = "csv"
location = "{{root}}/clean"
[job.load]
command = ["./load.sh"]
inputs = ["raw"]
outputs = ["clean"]
params = {{ api_token = "hunter-2-canary" }}
"""
SCRIPT = """#!/bin/sh
cat "$raw_location" > "$clean_location/part.csv"
"""


@dataclass
class Shop:
    directory: Path
    root: Path
    connection: psycopg.Connection
    ctl: RunCtl

    def declare(self, place: str) -> None:
        (self.directory / "shop.toml").write_text(FLOW.format(place=place), encoding="utf-8")
        assert self.ctl("apply", str(self.directory / "shop.toml")).returncode == 0

    def why(self, *arguments: str) -> Any:
        asked = self.ctl("why", "load", DAY, *arguments, "--json")
        assert asked.returncode == 0, asked.stderr
        return json.loads(asked.stdout)

    def week_passes(self) -> None:
        """Moves all timestamps so far back by a week."""
        week = timedelta(days=7)
        moved: list[LiteralString] = [
            "UPDATE dataflow.event SET at = at - %(week)s",
            "UPDATE dataflow.attempt SET claimed = claimed - %(week)s, started = started - %(week)s, ended = ended - %(week)s",
            "UPDATE dataflow.manifest SET published = published - %(week)s",
            "UPDATE dataflow.datastatus SET modified = modified - %(week)s",
            "UPDATE dataflow.dataset SET modified = modified - %(week)s",
        ]
        with self.connection.transaction():
            self.connection.execute("SET LOCAL ROLE dataflow_admin")
            for statement in moved:
                self.connection.execute(statement, {"week": week})

    def do(self, *arguments: str) -> int:
        """The exit status of a command that runs a job."""
        return self.ctl(*arguments, env={"DATAFLOW_FLOWS": str(self.directory / "shop.toml")}).returncode

    def first_ended(self) -> datetime:
        row = self.connection.execute("SELECT ended FROM dataflow.attempt WHERE number = 1").fetchone()
        assert row is not None
        found: datetime = row[0]
        return found


@pytest.fixture
def shop(connection: psycopg.Connection, run_ctl: RunCtl, settings: Settings, tmp_path: Path) -> Shop:
    script = tmp_path / "load.sh"
    script.write_text(SCRIPT, encoding="utf-8")
    script.chmod(0o755)
    root = settings.data_dir / "data"
    (root / "raw").mkdir(parents=True)
    (root / "raw" / f"{DAY}.csv").write_text("1\n2\n", encoding="ascii")
    return Shop(tmp_path, root, connection, run_ctl)


def refused(answer: Any) -> dict[str, Any]:
    [no] = [one for one in answer["questions"] if one["answer"] is False and one["number"] in {2, 3, 4}]
    assert isinstance(no, dict)
    return no


def test_a_location_that_was_wrong_last_week_is_found_by_why_at_alone(shop: Shop) -> None:
    shop.declare("row")
    shop.connection.execute("SELECT dataflow.ready('raw', %s)", [DAY])
    assert shop.do("run", "load") in {EXIT["WRONG_DATA"], EXIT["INVALID_PATH"]}
    shop.week_passes()
    shop.declare("raw")
    assert shop.ctl("resubmit", "load", "--dataid", DAY, "--yes").returncode == 0
    assert shop.do("run", "load") == 0
    shop.root.joinpath("raw", f"{DAY}.csv").unlink()

    now = shop.why()
    assert now["state"] == "READY"
    wrong, right = f"{shop.root}/row/{DAY}.csv", f"{shop.root}/raw/{DAY}.csv"
    place = next(one for one in now["questions"] if one["number"] == 3)
    assert (place["answer"], right in place["detail"]) == (True, True)

    ran = shop.why("--at", shop.first_ended().isoformat())
    assert (ran["state"], wrong in refused(ran)["detail"]) == ("FAILED", True)
    since = ran["questions"][-1]["detail"]
    assert since.startswith(
        f"location of raw from {shop.root}/row/{{dataid}}.csv to {shop.root}/raw/{{dataid}}.csv"
    )
    assert since.endswith(f"(flow shop, {shop.directory}/shop.toml)")
    assert [one["number"] for one in ran["questions"]] == [1, 2, 3, 4, 5, 14, 15]
    waited = shop.why("--at", "6d")
    assert (waited["state"], wrong in refused(waited)["detail"]) == ("FAILED", True)
    shown = shop.ctl("why", "load", DAY, "--at", "6d").stdout
    assert "was FAILED" in shown
    assert wrong in shown
    # `--attempt` gives the same answer; and the history has the later change, with the flow file that it came from.
    assert refused(shop.why("--attempt", "1"))["code"] == refused(ran)["code"]
    done = shop.why("--attempt", "2")
    assert [one["answer"] for one in done["questions"][:5]] == [True] * 5
    assert "1 file, 4 bytes, changed last" in done["questions"][1]["detail"]
    changed = shop.connection.execute(
        "SELECT from_status, to_status, reason FROM dataflow.history('load', %s) WHERE kind = 'dataset'",
        [DAY],
    ).fetchall()
    assert changed == [
        (
            f"{shop.root}/row/{{dataid}}.csv",
            f"{shop.root}/raw/{{dataid}}.csv",
            f"flow shop, {shop.directory}/shop.toml",
        )
    ]
    kept = shop.connection.execute(
        "SELECT e::text FROM dataflow.evidence e UNION ALL SELECT e::text FROM dataflow.event e"
    )
    assert not [row for row in kept if "hunter-2-canary" in row[0]]


def test_history_names_what_was_forced(shop: Shop) -> None:
    shop.declare("raw")
    shop.connection.execute("SELECT dataflow.ready('raw', %s, false)", [DAY])
    assert shop.do("force", "load", DAY, "--yes") == 0
    shown = shop.ctl("history", "load", DAY).stdout
    assert "nothing -> nothing" not in shown
    assert "FORCED" in shown
    no = [one for one in shop.why("--attempt", "1")["questions"] if one["answer"] is False]
    assert [one["code"] for one in no] == ["NOT_VALIDATED"]


def test_chunks_have_the_code_of_a_failure_and_the_hash_of_the_code_as_two_columns(shop: Shop) -> None:
    shop.declare("raw")
    shop.connection.execute("SELECT dataflow.ready('raw', %s::text[])", [[DAY, "2026-11-10"]])
    shop.do("run", "load", "--all")
    heads, *lines = shop.ctl("chunks", "clean").stdout.splitlines()
    assert "made with" in heads
    [made] = [line for line in lines if line.startswith(DAY)]
    [failed] = [line for line in lines if line.startswith("2026-11-10")]
    code = heads.index("code")
    assert made[code] == "-"
    assert failed[code:].split()[0].isupper()
    row = shop.connection.execute("SELECT code_hash FROM dataflow.attempt WHERE outcome = 'DONE'").fetchone()
    assert row is not None
    assert row[0][:8] in made


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--at", "yesterday"), 2, "neither a time"),
        (("--at", "2099-01-01"), 2, "name a time that is over"),
        (("--attempt", "0"), 2, "greater than or equal to 1"),
        (("--attempt", "7"), 9, "it was never tried"),
        (("--at", "1h", "--attempt", "1"), 2, "only one of these options"),
    ],
)
def test_a_bad_question_about_the_past_is_one_clear_error(
    shop: Shop, arguments: tuple[str, ...], status: int, words: str
) -> None:
    shop.declare("raw")
    asked = shop.ctl("why", "load", DAY, *arguments)
    assert (asked.returncode, words in asked.stderr) == (status, True), asked.stderr
