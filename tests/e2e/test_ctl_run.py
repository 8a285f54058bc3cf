"""A job in the foreground: it is claimed and finished as by a daemon, and the exit status says how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dataflowd import flow
from dataflowd.host.settings import Settings  # noqa: TC001 - pytest reads it
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    import psycopg

    from tests.fix_postgres import RunCtl

FLOW = """
[flow]
name = "own"
[dataset.raw]
format = "none"
[dataset.clean]
format = "none"
[job.load]
command = ["./load.sh"]
inputs = ["raw"]
outputs = ["clean"]
params = { colour = "red" }
"""
SCRIPT = """#!/bin/sh
echo "loading $dataid in $(pwd), $param_colour"
[ ! -e fail-$dataid ] || exit 4
[ ! -e wait ] || sleep 600
"""


@dataclass
class Own:
    directory: Path
    connection: psycopg.Connection
    ctl: RunCtl
    environment: dict[str, str]

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self.ctl(*arguments, env=self.environment | (env or {}))

    def ready(self, *dataids: str) -> None:
        self.connection.execute("SELECT dataflow.ready('raw', %s::text[])", [list(dataids)])

    def value(self, query: str) -> Any:
        row = self.connection.execute(query.encode()).fetchone()
        return row[0] if row else None

    def statuses(self) -> dict[str, str]:
        found = self.connection.execute(
            "SELECT dataid, status FROM dataflow.datastatus WHERE datasetid = 'clean'"
        )
        return dict(found.fetchall())


@pytest.fixture
def own(
    connection: psycopg.Connection,
    run_ctl: RunCtl,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Own:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "load.sh"
    script.write_text(SCRIPT, encoding="utf-8")
    script.chmod(0o755)
    (tmp_path / "flow.toml").write_text(FLOW, encoding="utf-8")
    flow.apply(connection, flow.load(tmp_path / "flow.toml", settings), prune=False)
    return Own(tmp_path, connection, run_ctl, {})


def test_a_script_is_run_on_the_next_chunk_and_then_on_all_that_are_left(own: Own) -> None:
    nothing = own.run("run", "./load.sh")
    assert nothing.returncode == 10
    assert "load has nothing to do" in nothing.stderr
    own.ready("2", "10", "1")
    first = own.run("run", "./load.sh")
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"loading 1 in {own.directory}, red\nload 1: DONE\n"
    assert own.statuses() == {"1": "READY"}
    (own.directory / "fail-2").touch()
    rest = own.run("run", "./load.sh", "--all", "--json")
    assert rest.returncode == 1
    ended = {one["dataid"]: (one["outcome"], one["code"]) for one in json.loads(rest.stdout)}
    assert ended == {"2": ("FAILED", "EXIT_4"), "10": ("DONE", None)}
    assert "loading 10" in rest.stderr
    assert own.run("run", "./load.sh", "--all").returncode == 0
    locked = own.run("run", "./load.sh")
    assert locked.returncode == 14
    assert "waits for RESUBMIT" in locked.stderr
    own.ready("12")
    own.connection.execute("SELECT dataflow.hold('raw', '12', 'a bad feed')")
    held = own.run("run", "./load.sh", "--dataid", "12")
    assert (held.returncode, "raw/12 is HOLD: a bad feed" in held.stderr) == (14, True)
    own.connection.execute("SELECT dataflow.unregister('raw', '{12}')")
    # If this host has a flow file, it decides how the script is run. The chunk is not stale.
    own.environment["DATAFLOW_FLOWS"] = str(own.directory / "flow.toml")
    own.ready("11")
    assert own.run("run", "load", "--dataid", "11").returncode == 0
    assert own.value("SELECT count(*) FROM dataflow.stale") == 0
    assert own.value("SELECT count(*) FROM dataflow.daemon WHERE stopped IS NULL") == 0


def test_a_flow_file_beside_a_script_decides_the_words_of_its_command(own: Own) -> None:
    script, file = own.directory / "load.sh", own.directory / "flow.toml"
    script.write_text('#!/bin/sh\necho "called with $*"\n', encoding="utf-8")
    declared = FLOW.replace('["./load.sh"]', '["env", "./load.sh", "{dataid}", "x"]')
    file.write_text(declared, encoding="utf-8")
    own.ready("1", "2", "3")
    assert own.run("run", "./load.sh").stdout == "called with 1 x\nload 1: DONE\n"
    # A flow file that runs another command for the job does not count.
    file.write_text(FLOW.replace("./load.sh", "true"), encoding="utf-8")
    assert own.run("run", "./load.sh").stdout == "called with \nload 2: DONE\n"
    # The script belongs to the job that names it, whatever the job's name.
    other = own.directory / "other.sh"
    script.rename(other)
    file.write_text(FLOW.replace("load.sh", "other.sh"), encoding="utf-8")
    assert own.run("run", "./other.sh").stdout == "called with \nload 3: DONE\n"
    second = '[dataset.sums]\nformat = "none"\n[job.sum]\ncommand = ["./other.sh"]\ninputs = ["raw"]\noutputs = ["sums"]\n'
    file.write_text(FLOW.replace("load.sh", "other.sh") + second, encoding="utf-8")
    several = own.run("run", "./other.sh")
    assert (several.returncode, "is the script of load, sum" in several.stderr) == (2, True)
    other.rename(script)
    file.write_text(declared.replace("{dataid}", "{dataidd}"), encoding="utf-8")
    wrong = own.run("run", "./load.sh")
    assert (wrong.returncode, "did you mean 'dataid'" in wrong.stderr) == (4, True)


def test_a_job_that_is_named_is_found_in_the_flow_file_of_this_directory(own: Own) -> None:
    own.ready("1", "2")
    assert own.run("run", "load").stdout == f"loading 1 in {own.directory}, red\nload 1: DONE\n"
    # The flows of this host come first.
    script = FLOW.replace('["./load.sh"]', '["echo", "of", "this", "host"]')
    (own.directory / "host.toml").write_text(script, encoding="utf-8")
    own.environment["DATAFLOW_FLOWS"] = str(own.directory / "host.toml")
    assert own.run("run", "load").stdout == "of this host\nload 2: DONE\n"


def test_the_exit_status_names_the_question_that_is_answered_no(own: Own) -> None:
    assert own.run("run", "./load.sh", "--dataid", "1").returncode == 10
    own.connection.execute("SELECT dataflow.ready('raw', '1', validated => false)")
    assert own.run("run", "./load.sh", "--dataid", "1").returncode == 13
    own.ready("1", "2")
    own.connection.execute("SELECT dataflow.pause('job:load')")
    assert own.run("run", "./load.sh", "--dataid", "1").returncode == 14
    own.connection.execute("SELECT dataflow.pause('job:load', false)")
    (own.directory / "fail-1").touch()
    failed = own.run("run", "./load.sh", "--dataid", "1")
    assert failed.returncode == 1
    assert "load 1: FAILED EXIT_4: exit status 4" in failed.stdout
    missing = own.run("run", "./lod.sh")
    assert (missing.returncode, "there is no script ./lod.sh" in missing.stderr) == (9, True)
    (own.directory / "flow.toml").rename(own.directory / "away.toml")
    nowhere = own.run("run", "load")  # no flow file of this host declares the job
    assert nowhere.returncode == 9
    assert "DATAFLOW_FLOWS=flow.toml dataflowctl run load" in nowhere.stderr
    assert own.run("run", "./load.sh", "--all", "--dataid", "1").returncode == 2
    assert (
        "dataflow.five_questions('load', '1')" in own.run("run", "load", "--dataid", "1", "--explain").stdout
    )


def test_an_interrupted_run_is_given_back(own: Own, settings: Settings) -> None:
    (own.directory / "wait").touch()
    own.ready("1")
    assert settings.dsn is not None
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(own.directory),
        "DATAFLOW_DSN": settings.dsn.get_secret_value(),
        "DATAFLOW_DATA_DIR": str(settings.data_dir),
    }
    program = [str(Path(sys.executable).parent / "dataflowctl"), "run", "./load.sh"]
    with subprocess.Popen(program, env=variables, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: own.statuses() == {"1": "RUNNING"})
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert own.value("SELECT outcome FROM dataflow.attempt") == "RETURNED"
    assert own.statuses() == {"1": "RESUBMIT"}


def test_force_runs_what_the_questions_forbid_and_the_history_records_it(own: Own) -> None:
    assert own.run("force", "./load.sh", "7").returncode == 8  # without a terminal nobody can confirm
    production = {"DATAFLOW_PRODUCTION": "true"}
    refused = own.run("force", "./load.sh", "7", "--yes", env=production)
    assert refused.returncode == 8
    assert "--i-know" in refused.stderr
    done = own.run("force", "./load.sh", "7", "--yes", "--i-know", env=production)
    assert done.returncode == 0, done.stderr
    assert "1. Is the data ready? DATA_NOT_READY" in done.stdout
    assert own.statuses() == {"7": "READY"}
    assert own.value(
        "SELECT to_jsonb(a.answers) || jsonb_build_object('forced', a.forced) FROM dataflow.attempt a"
    ) == {
        "ready": False,
        "right_data": True,
        "right_place": True,
        "validated": True,
        "safe": True,
        "forced": True,
    }
    # Force also makes a published or held chunk again.
    own.ready("7")
    own.connection.execute("SELECT dataflow.hold('clean', '7', 'look at it')")
    assert own.run("force", "./load.sh", "7", "--yes", "--reason", "Anna has looked").returncode == 0
    assert own.statuses() == {"7": "READY"}
    assert own.value("SELECT version FROM dataflow.datastatus WHERE datasetid = 'clean'") == 2
    reasons = own.connection.execute("SELECT reason FROM dataflow.event WHERE code = 'FORCED' ORDER BY event")
    first, second = (str(reason) for [reason] in reasons)
    assert first.startswith("DATA_NOT_READY: raw/7")
    assert second.startswith("Anna has looked; LOCKED: clean/7 is HOLD: look at it")
    assert "FORCED" in (told := own.run("history", "load", "7").stdout)
    assert "Anna has looked" in told
    assert (
        own.value("SELECT version FROM dataflow.datastatus WHERE datasetid = 'clean' AND status = 'READY'")
        == 2
    )


@pytest.mark.parametrize("bound", ["raw", "clean"])
def test_what_belongs_to_another_environment_is_not_run_here_and_run_and_why_say_so(
    own: Own, bound: str
) -> None:
    own.ready("1")
    own.connection.execute("UPDATE dataflow.dataset SET environment = 'prod' WHERE datasetid = %s", [bound])
    reason = f"dataset {bound} belongs to environment prod, and this host works for dev"
    for command in (
        ["run", "./load.sh"],
        ["run", "./load.sh", "--all"],
        ["run", "./load.sh", "--dataid", "1"],
    ):
        refused = own.run(*command)
        assert (refused.returncode, reason in refused.stderr) == (12, True), refused.stderr
    forced = own.run("force", "./load.sh", "1", "--yes")
    assert (forced.returncode, reason in forced.stderr) == (12, True)
    assert own.statuses() == {}
    why = own.run("why", "load", "1").stdout
    assert "NO_DAEMON" in why
    own.connection.execute("SELECT dataflow.register_daemon('other', 'host', 1)")
    why = " ".join(own.run("why", "load", "1").stdout.split())
    assert (
        f"WRONG_ENVIRONMENT: no daemon of environment prod is alive, and dataset {bound} belongs to it" in why
    )
    assert own.run("run", "./load.sh", env={"DATAFLOW_ENVIRONMENT": "prod"}).returncode == 0


def test_env_shows_what_a_script_would_find_and_no_secret(own: Own) -> None:
    own.connection.execute(
        "UPDATE dataflow.dataset SET username = 'etl', encryptedpass = 'dataflowd-sealed-v1.x.y.canary' WHERE datasetid = 'raw'"
    )
    shown = own.run("env", "load", "1")
    assert shown.returncode == 0, shown.stderr
    lines = dict(line.split("=", 1) for line in shown.stdout.splitlines())
    assert lines["dataid"] == "1"
    assert lines["raw_itemtype"] == "IN"
    assert lines["raw_username"] == "etl"
    assert lines["raw_password"] == lines["raw_encryptedpass"] == "***"  # noqa: S105
    assert lines["param_colour"] == "red"
    listed = own.run("env", "load", "1", "--json")
    assert {one["name"] for one in json.loads(listed.stdout)} == lines.keys()
    assert "canary" not in shown.stdout + listed.stdout
    assert own.run("env", "lod", "1").returncode == 9
