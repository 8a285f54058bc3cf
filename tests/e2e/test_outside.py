"""A run that another program executes, from the command line: begun, renewed and ended, with its files checked as those of a script."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dataflowd import flow
from dataflowd.cli.json_keys import KEYS
from dataflowd.host import keyfile, seal
from dataflowd.host.settings import Settings  # noqa: TC001 - pytest reads it
from tests.e2e.ctl_flow import assert_shape, ok

if TYPE_CHECKING:
    import psycopg

    from tests.fix_postgres import RunCtl

FLOW = """
[flow]
name = "outside"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
[dataset.model]
format = "csv"
location = "{root}/model"
[dataset.model.checks]
min_rows = 2
[job.train]
executor = "outside"
inputs = ["raw"]
outputs = ["model"]
params = { depth = 3 }
"""


TABLE = """format = "postgres"
hostname = "db7"
database = "sales"
schemaname = "public"
tablename = "orders"
username = "etl"
"""
SECRET = "hunter-2-canary"  # noqa: S105


@dataclass
class Notebook:
    root: Path
    connection: psycopg.Connection
    ctl: RunCtl

    def ready(self, *dataids: str) -> None:
        (self.root / "raw").mkdir(parents=True, exist_ok=True)
        for dataid in dataids:
            (self.root / "raw" / f"{dataid}.csv").write_text("1\n", encoding="ascii")
        self.connection.execute("SELECT dataflow.ready('raw', %s::text[])", [list(dataids)])

    def begin(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ok(self.ctl("begin", "train", *arguments, "--json")))
        assert_shape(found, KEYS["begin"].keys)
        return found

    def end(self, begun: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.ctl("end", *arguments, env={"DATAFLOW_HANDLE": begun["handle"]})

    def status(self, dataid: str) -> Any:
        row = self.connection.execute(
            "SELECT status FROM dataflow.datastatus WHERE datasetid = 'model' AND dataid = %s AND locktype = 'OUT'",
            [dataid],
        ).fetchone()
        return row and row[0]


@pytest.fixture
def notebook(connection: psycopg.Connection, run_ctl: RunCtl, settings: Settings, tmp_path: Path) -> Notebook:
    path = tmp_path / "flow.toml"
    path.write_text(FLOW, encoding="utf-8")
    flow.apply(connection, flow.load(path, settings))
    [root] = connection.execute(
        "SELECT location FROM dataflow.dataset WHERE datasetid = 'model'"
    ).fetchone() or ("",)
    return Notebook(Path(root).parent, connection, run_ctl)


def test_a_run_is_begun_worked_on_and_published(notebook: Notebook) -> None:
    notebook.ready("2", "10")
    begun = notebook.begin("--as", "databricks", "--lease", "2h")
    found = begun["environment"]
    assert (begun["dataid"], found["dataid"], found["param_depth"]) == ("2", "2", "3")
    assert found["raw_location"] == str(notebook.root / "raw" / "2.csv")
    Path(found["model_location"], "part-1.csv").write_text("1\n2\n", encoding="ascii")
    assert notebook.status("2") == "RUNNING"
    assert ok(notebook.ctl("why", "train", "2")).count("databricks") == 1
    assert ok(notebook.end(begun, "--ok", "--rows", "2")) == "DONE\n"
    made = notebook.connection.execute("SELECT location, files, rows FROM dataflow.manifest").fetchall()
    assert made == [(found["model_location"], [{"path": "part-1.csv", "bytes": 4}], 2)]
    again = notebook.end(begun, "--ok", "--rows", "2")
    assert (again.returncode, again.stderr.count("lost its claim")) == (8, 1)
    assert notebook.begin()["dataid"] == "10"


def test_a_shell_takes_the_environment_and_the_handle_stays_out_of_command_lines(notebook: Notebook) -> None:
    notebook.ready("1")
    exports = ok(notebook.ctl("begin", "train", "--shell"))
    said = subprocess.run(
        ["sh", "-c", 'eval "$1"; echo "$jobid/$dataid/$model_location/$DATAFLOW_HANDLE"', "sh", exports],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    job, dataid, location = said.strip().split("/", 2)
    assert (job, dataid) == ("train", "1")
    location, _, handle = location.rpartition("/")
    assert Path(f"/{location.lstrip('/')}").is_dir()
    assert f"export DATAFLOW_HANDLE={shlex.quote(handle)}\n" in exports
    renewed = notebook.ctl("renew", "--lease", "3h", env={"DATAFLOW_HANDLE": handle})
    assert ok(renewed).startswith("yours until ")
    explained = notebook.ctl("end", "--ok", "--explain", env={"DATAFLOW_HANDLE": handle})
    assert handle not in ok(explained)
    assert "dataflow.end_run('...', 'DONE'" in explained.stdout


def test_a_failure_is_recorded_and_a_run_that_is_given_back_waits_again(notebook: Notebook) -> None:
    notebook.ready("1")
    assert ok(notebook.end(notebook.begin("1"), "--give-back")) == "RETURNED\n"
    begun = notebook.begin("1")
    failed = json.loads(ok(notebook.end(begun, "--failed", "no licence", "--code", "NO_LICENCE", "--json")))
    assert_shape(failed, KEYS["end"].keys)
    assert notebook.status("1") == "FAILED"
    assert "NO_LICENCE: no licence" in ok(notebook.ctl("why", "train", "1"))
    refused = notebook.ctl("begin", "train", "1")
    assert (refused.returncode, "LOCKED" in refused.stderr) == (14, True)


def test_files_of_an_outside_run_are_checked_as_those_of_a_script(notebook: Notebook) -> None:
    notebook.ready("1", "2", "3")
    empty = notebook.end(notebook.begin("1"), "--ok", "--rows", "2")
    assert (empty.returncode, empty.stdout[:17]) == (1, "FAILED NO_OUTPUT:")
    few = notebook.begin("2")
    Path(few["environment"]["model_location"], "a.csv").write_text("1\n", encoding="ascii")
    checked = notebook.end(few, "--ok", "--rows", "1")
    assert checked.stdout == "FAILED CHECK_FAILED: model: min_rows: observed 1, expected at least 2\n"
    assert notebook.status("2") == "FAILED"
    linked = notebook.begin("3")
    Path(linked["environment"]["model_location"], "a.csv").symlink_to("/etc/passwd")
    assert notebook.end(linked, "--ok", "--rows", "9").returncode == 12
    assert notebook.connection.execute("SELECT * FROM dataflow.manifest").fetchall() == []


def test_a_report_tells_rows_checks_and_bad_records(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ready("1")
    begun = notebook.begin()
    Path(begun["environment"]["model_location"], "a.csv").write_text("1\n2\n", encoding="ascii")
    report = tmp_path / "report"
    lines = [
        '{"rows": 2}',
        '{"check": "totals", "passed": true}',
        '{"quarantine": "4711", "reason": "no date"}',
    ]
    report.write_text("\n".join(lines), encoding="ascii")
    assert ok(notebook.end(begun, "--ok", "--report", str(report))) == "DONE\n"
    told = notebook.connection.execute(
        "SELECT name, passed FROM dataflow.check_result ORDER BY name"
    ).fetchall()
    assert told == [("min_rows", True), ("totals", True)]
    assert notebook.connection.execute("SELECT itemid FROM dataflow.quarantine").fetchall() == [("4711",)]


def test_a_run_that_this_host_cannot_prepare_ends_at_once_with_the_reason(notebook: Notebook) -> None:
    notebook.ready("1")
    (notebook.root / "raw" / "1.csv").unlink()
    refused = notebook.ctl("begin", "train")
    assert refused.returncode == 12
    assert "there is nothing at" in refused.stderr
    assert notebook.status("1") == "FAILED"
    found = notebook.connection.execute("SELECT outcome, code, started FROM dataflow.attempt").fetchall()
    assert found == [("FAILED", "INVALID_PATH", None)]


def test_what_is_wrong_on_the_command_line_changes_nothing(notebook: Notebook) -> None:
    nothing = notebook.ctl("begin", "train")
    assert (nothing.returncode, "train has nothing to do" in nothing.stderr) == (10, True)
    notebook.ready("1")
    assert notebook.ctl("begin", "train", "--lease", "soon").returncode == 2
    assert notebook.ctl("begin", "train", "--shell", "--json").returncode == 2
    begun = notebook.begin()
    for arguments in (
        ["--ok", "--give-back"],
        [],
        ["--failed", "x", "--rows", "1"],
        ["--ok", "--rows", "raw=1"],
    ):
        assert notebook.end(begun, *arguments).returncode == 2, arguments
    assert notebook.end(begun, "--ok", "--report", "/nowhere").returncode == 9
    assert notebook.ctl("end", "--ok").returncode == 2
    assert notebook.ctl("end", "1.x", "--ok").returncode == 2
    assert notebook.status("1") == "RUNNING"


def test_neither_run_nor_a_daemon_executes_an_outside_job(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ready("1")
    refused = notebook.ctl("run", "train", env={"DATAFLOW_FLOWS": str(tmp_path / "flow.toml")})
    assert refused.returncode == 8
    assert "job train is executed outside" in refused.stderr
    assert "dataflowctl begin train" in refused.stderr


def test_passwords_are_printed_only_where_they_are_asked_for(
    notebook: Notebook, settings: Settings, tmp_path: Path
) -> None:
    text = FLOW.replace('format = "csv"\nlocation = "{root}/raw/{dataid}.csv"', TABLE)
    (tmp_path / "flow.toml").write_text(text, encoding="utf-8")
    allowed = settings.model_copy(update={"allowed_hosts": ["db7"]})
    flow.apply(notebook.connection, flow.load(tmp_path / "flow.toml", allowed))
    key = seal.generate(seal.PLAIN)
    keyfile.add(settings.data_dir / "key", [keyfile.line(key)])
    sealed = seal.seal(SECRET, key.public, seal.Binding("raw", "etl", "db7", "sales"))
    notebook.connection.execute(
        "UPDATE dataflow.dataset SET encryptedpass = %s WHERE datasetid = 'raw'", [sealed]
    )
    notebook.connection.execute("SELECT dataflow.ready('raw', ARRAY['1', '2'])")
    here = {"DATAFLOW_ALLOWED_HOSTS": "db7"}
    without = json.loads(ok(notebook.ctl("begin", "train", "--json", env=here)))
    assert "raw_password" not in without["environment"]
    assert SECRET not in json.dumps(without)
    opened = json.loads(ok(notebook.ctl("begin", "train", "--json", "--passwords", env=here)))
    assert (opened["dataid"], opened["environment"]["raw_password"]) == ("2", SECRET)
    # A host that does not allow that server begins nothing.
    ok(notebook.end(opened, "--give-back"))
    refused = notebook.ctl("begin", "train", "2")
    assert refused.returncode == 12
    assert SECRET not in refused.stdout + refused.stderr


def test_a_fixed_path_leads_to_the_published_version(
    notebook: Notebook, settings: Settings, tmp_path: Path
) -> None:
    text = FLOW.replace('location = "{root}/model"', 'location = "{root}/model"\npublish = "rename"')
    (tmp_path / "flow.toml").write_text(text, encoding="utf-8")
    flow.apply(notebook.connection, flow.load(tmp_path / "flow.toml", settings))
    notebook.ready("1")
    begun = notebook.begin()
    Path(begun["environment"]["model_location"], "a.csv").write_text("1\n2\n", encoding="ascii")
    assert ok(notebook.end(begun, "--ok", "--rows", "2")) == "DONE\n"
    assert (notebook.root / "model" / "dataid=1" / "a.csv").read_text(encoding="ascii") == "1\n2\n"
    # A directory stands where the next fixed path belongs: the version is published all the same, and a daemon reports the obstacle.
    notebook.ready("2")
    begun = notebook.begin("2")
    Path(begun["environment"]["model_location"], "a.csv").write_text("1\n2\n", encoding="ascii")
    (notebook.root / "model" / "dataid=2" / "somebody's").mkdir(parents=True)
    assert ok(notebook.end(begun, "--ok", "--rows", "2")) == "DONE\n"
    assert not (notebook.root / "model" / "dataid=2").is_symlink()
