"""Words that a person adds to a command, and other commands that run in the environment of a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dataflowd import flow
from dataflowd.host.settings import Settings  # noqa: TC001 - pytest reads it
from tests import processes
from tests.e2e.ctl_flow import ok
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    import psycopg

    from tests.fix_postgres import RunCtl

FLOW = """
[flow]
name = "words"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
[dataset.clean]
format = "csv"
location = "{root}/clean"
[job.load]
command = ["./load.sh", "of {dataid}"]
inputs = ["raw"]
outputs = ["clean"]
params = { colour = "red" }
"""
SCRIPT = """#!/bin/sh
for word in "$@"; do echo "<$word>"; done
cp "$raw_location" "$clean_location/"
"""


class Scripts:
    def __init__(self, connection: psycopg.Connection, ctl: RunCtl, root: Path) -> None:
        self.connection, self.ctl, self.root = connection, ctl, root

    def ready(self, *dataids: str) -> None:
        (self.root / "raw").mkdir(parents=True, exist_ok=True)
        for dataid in dataids:
            (self.root / "raw" / f"{dataid}.csv").write_text("1\n", encoding="ascii")
        self.connection.execute("SELECT dataflow.ready('raw', %s::text[])", [list(dataids)])

    def rows(self, query: str) -> list[Any]:
        return self.connection.execute(query.encode()).fetchall()


@pytest.fixture
def scripts(
    connection: psycopg.Connection,
    run_ctl: RunCtl,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Scripts:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "load.sh").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "load.sh").chmod(0o755)
    (tmp_path / "flow.toml").write_text(FLOW, encoding="utf-8")
    flow.apply(connection, flow.load(tmp_path / "flow.toml", settings))
    return Scripts(connection, run_ctl, settings.data_dir / "data")


def test_words_are_passed_unchanged_stored_with_the_attempt_and_change_no_code_hash(scripts: Scripts) -> None:
    scripts.ready("1", "2")
    assert "<of 1>" in ok(scripts.ctl("run", "./load.sh"))
    [[before]] = scripts.rows("SELECT code_hash FROM dataflow.job")
    awkward = ["--fast", "{dataid}", "it's $HOME", "--", ""]
    said = ok(scripts.ctl("run", "./load.sh", "--", *awkward))
    assert said.startswith("<of 2>\n<--fast>\n<{dataid}>\n<it's $HOME>\n<-->\n<>\n")
    assert scripts.rows("SELECT words FROM dataflow.attempt ORDER BY attempt") == [(None,), (awkward,)]
    assert scripts.rows("SELECT code_hash FROM dataflow.job") == [(before,)]
    assert scripts.rows("SELECT * FROM dataflow.stale") == []
    assert "-- --fast '{dataid}'" in ok(scripts.ctl("attempts", "load", "2"))
    assert json.loads(ok(scripts.ctl("attempts", "load", "2", "--json")))[0]["words"] == awkward
    for asked in (("why", "load", "2"), ("why", "load", "2", "--attempt", "1")):
        assert "words --fast '{dataid}' 'it'\"'\"'s $HOME' -- ''" in " ".join(ok(scripts.ctl(*asked)).split())
    assert "with the words" not in ok(scripts.ctl("why", "load", "1"))


def test_a_word_without_the_dashes_is_not_passed_to_the_script(scripts: Scripts) -> None:
    scripts.ready("1")
    refused = scripts.ctl("run", "./load.sh", "1")
    assert refused.returncode == 2
    assert scripts.rows("SELECT * FROM dataflow.attempt") == []


def test_a_command_is_executed_aside_with_the_job_s_environment(scripts: Scripts) -> None:
    scripts.ready("1")
    before = scripts.rows("SELECT * FROM dataflow.datastatus")
    shown = 'echo "$dataid $param_colour"; cat "$raw_location"; echo x > "$clean_location/x"; ls "$clean_location"; pwd; exit 7'
    executed = scripts.ctl("exec", "load", "1", "--", "sh", "-c", shown)
    assert executed.stdout == f"1 red\n1\nx\n{Path.cwd()}\n"
    assert executed.returncode == 7
    assert scripts.rows("SELECT * FROM dataflow.datastatus") == before
    assert scripts.rows("SELECT * FROM dataflow.attempt") == []
    assert not (scripts.root / "clean").exists()


def test_a_terminated_exec_ends_its_command_before_it_removes_the_directories(
    scripts: Scripts, dsn: str, settings: Settings, tmp_path: Path
) -> None:
    scripts.ready("1")
    command = "echo $$ > pid.new; mv pid.new pid; until [ -e go ]; do sleep 0.05; done"
    variables = {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir), "HOME": str(tmp_path)}
    words = ["exec", "load", "1", "--", "sh", "-c", command]
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "dataflowctl"), *words],
        env={"PATH": os.environ["PATH"], "TMPDIR": os.environ["TMPDIR"]} | variables,
    ) as started:
        eventually((tmp_path / "pid").exists)
        started.send_signal(signal.SIGTERM)
        assert started.wait() == 128 + signal.SIGTERM
    pid = int((tmp_path / "pid").read_text(encoding="ascii"))
    assert processes.state(pid) == "X"  # gone


def test_a_command_that_cannot_start_is_reported(scripts: Scripts) -> None:
    scripts.ready("1")
    nowhere = scripts.ctl("exec", "load", "1", "--", "./nothing.sh")
    assert nowhere.returncode == 1
    assert "./nothing.sh cannot be executed" in nowhere.stderr
    (scripts.root / "raw" / "1.csv").unlink()
    assert scripts.ctl("exec", "load", "1", "--", "true").returncode == 12
    assert scripts.ctl("exec", "load", "1").returncode == 2
    assert scripts.ctl("exec", "nobody", "1", "--", "true").returncode == 9
    assert scripts.ctl("exec", "load", "1", "--json", "--", "true").returncode == 2
    scripts.connection.execute("UPDATE dataflow.dataset SET environment = 'prod' WHERE datasetid = 'raw'")
    elsewhere = scripts.ctl("exec", "load", "1", "--", "true")
    assert (elsewhere.returncode, "belongs to environment prod" in elsewhere.stderr) == (12, True)


def test_a_published_command_is_a_forced_attempt_that_stores_the_command(scripts: Scripts) -> None:
    scripts.ready("1", "2")
    ok(scripts.ctl("run", "./load.sh"))
    command = ["sh", "-c", 'echo 7 > "$clean_location/repaired.csv"']
    ended = json.loads(ok(scripts.ctl("exec", "load", "1", "--publish", "--yes", "--json", "--", *command)))
    assert [one["outcome"] for one in ended] == ["DONE"]
    found = scripts.rows(
        "SELECT forced, words, code_hash FROM dataflow.attempt ORDER BY attempt DESC LIMIT 1"
    )
    assert found == [(True, command, None)]
    [[files]] = scripts.rows("SELECT files FROM dataflow.manifest WHERE version = 2")
    assert [file["path"] for file in files] == ["repaired.csv"]
    assert scripts.rows("SELECT datasetid, dataid FROM dataflow.forced") == [("clean", "1")]
    failed = scripts.ctl("exec", "load", "2", "--publish", "--yes", "--", "sh", "-c", "exit 3")
    assert (failed.returncode, "load 2: FAILED EXIT_3" in failed.stdout) == (1, True)
    forbidden = scripts.ctl(
        "exec", "load", "2", "--publish", "--yes", "--", "true", env={"DATAFLOW_PRODUCTION": "1"}
    )
    assert forbidden.returncode == 8


def test_a_command_is_refused_in_place_of_a_job_whose_checks_it_would_skip(
    scripts: Scripts, settings: Settings, tmp_path: Path
) -> None:
    scripts.ready("1")
    here = {"DATAFLOW_FLOWS": str(tmp_path / "flow.toml")}
    given = ("exec", "load", "1", "--publish", "--yes", "--", "true")

    def declare(of_dataset: str, of_job: str) -> None:
        dataset = f'[dataset.clean]\nschema = "id bigint"\nchecks = {{ {of_dataset} }}'
        text = FLOW.replace("[dataset.clean]", dataset) + f"checks = {{ {of_job} }}\n"
        (tmp_path / "flow.toml").write_text(text, encoding="utf-8")
        flow.apply(scripts.connection, flow.load(tmp_path / "flow.toml", settings))

    for of_dataset, of_job, names in (
        ('not_null = ["id"]', "", "not_null"),
        ("min_rows = 1", 'unique = ["id"]', "unique"),
        ("", "min_rows = 1", "min_rows"),
    ):
        declare(of_dataset, of_job)
        refused = scripts.ctl(*given, env=here)
        assert (refused.returncode, f"without its checks: {names}\n" in refused.stderr) == (8, True)
    declare('not_null = ["id"]', 'unique = ["id"]')
    instead = scripts.ctl("begin", "load", "1", "--instead", env=here)
    assert (instead.returncode, "without the job's checks: unique\n" in instead.stderr) == (8, True)
    assert scripts.rows("SELECT * FROM dataflow.attempt") == []
    # `end` asks for the checks that datasets declare, whoever has made the chunk.
    declare('not_null = ["id"]', "min_rows = 1")
    begun = json.loads(ok(scripts.ctl("begin", "load", "1", "--instead", "--json", env=here)))
    Path(begun["environment"]["clean_location"], "a.csv").write_text("1\n", encoding="ascii")
    env = here | {"DATAFLOW_HANDLE": begun["handle"]}
    untold = scripts.ctl("end", "--ok", "--rows", "1", env=env)
    assert (untold.returncode, "no result is told of the check not_null" in untold.stderr) == (2, True)
    (tmp_path / "report").write_text('{"check": "not_null(id)", "passed": true}\n', encoding="ascii")
    assert ok(scripts.ctl("end", "--ok", "--rows", "1", "--report", str(tmp_path / "report"), env=env))
    told = scripts.rows("SELECT name FROM dataflow.check_result ORDER BY 1")
    assert told == [("min_rows",), ("not_null(id)",)]


def test_a_job_without_inputs_gets_a_new_dataid_at_each_run(
    scripts: Scripts, settings: Settings, tmp_path: Path
) -> None:
    text = FLOW.replace('inputs = ["raw"]', "inputs = []").replace('name = "words"', 'name = "fetch"')
    text = (
        text.replace("clean", "rates")
        .replace("[job.load]", "[job.fetch]")
        .replace("dataset.raw", "dataset.unused")
    )
    (tmp_path / "load.sh").write_text('#!/bin/sh\necho 1 > "$rates_location/x"\n', encoding="utf-8")
    path = tmp_path / "fetch.toml"
    path.write_text(text, encoding="utf-8")
    flow.apply(scripts.connection, flow.load(path, settings))
    here = {"DATAFLOW_FLOWS": str(path)}
    nothing = scripts.ctl("run", "fetch", env=here)
    assert (nothing.returncode, "--new" in nothing.stderr) == (10, True)
    made = [json.loads(ok(scripts.ctl("run", "fetch", "--new", "--json", env=here)))[0] for _ in range(2)]
    assert [one["outcome"] for one in made] == ["DONE", "DONE"]
    assert made[0]["dataid"] < made[1]["dataid"]
    assert scripts.ctl("run", "fetch", "--new", "--all", env=here).returncode == 2
    refused = scripts.ctl("run", "load", "--new", env={"DATAFLOW_FLOWS": str(tmp_path / "flow.toml")})
    assert (refused.returncode, "job load has inputs" in refused.stderr) == (8, True)
