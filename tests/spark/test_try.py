"""`dataflowctl try`: runs the real code on a part of the real input, and changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dataflowd.flow
from dataflowd.host.scratch import TRIAL
from dataflowd.host.supervise import started_at
from dataflowd.model.errors import EXIT
from dataflowd.model.work_order import Trial
from dataflowd.sdk._sample import sampled
from tests.e2e.ctl_flow import asked, ok
from tests.fix_daemon import eventually
from tests.fix_tables import PASSWORD
from tests.processes import command, working_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from pyspark.sql import SparkSession

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl
    from tests.fix_tables import Warehouse
    from tests.fix_world import World

PATIENCE_SECONDS = 300.0  # until Spark has started on a busy machine

FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
schema = "id bigint, name string"
[dataset.out]
format = "csv"
location = "{root}/out"
schema = "id bigint, name string"
[dataset.out.checks]
min_rows = 1000
unique = ["id"]
row_count = { input = "raw" }
custom = ["shop:has_two_columns"]
[dataset.counts]
format = "json"
location = "{root}/counts"
[dataset.said]
format = "none"
[job.work]
python = "shop:work"
inputs = ["raw"]
outputs = ["out"]
params = { greeting = "hello" }
[job.count]
sql = "count.sql"
inputs = ["out"]
outputs = ["counts"]
[job.shout]
command = ["echo", "hello"]
inputs = ["raw"]
outputs = ["said"]
"""
SHOP = """
import os, time
from dataflowd import job

def has_two_columns(frame):
    return True if len(frame.columns) == 2 else f"columns are {frame.columns}"

@job
def work(ctx):
    print(ctx.params.greeting, "password=hunter2", "DSN" if "DATAFLOW_DSN" in os.environ else "")
    if ctx.dataid == "slow":
        open(os.path.join(os.path.dirname(__file__), "begun"), "w").close()
        time.sleep(600)
    rows = ctx.quarantine(ctx.read("raw"), unless="id % 10 <> 0", item="id", reason="no round numbers")
    ctx.write("out", rows)
"""


@pytest.fixture
def shop(world: World, settings: Settings, tmp_path: Path) -> dict[str, str]:
    """The environment variables of a person who tries the jobs of the flow."""
    flow = tmp_path / "flow" / "flow.toml"
    flow.parent.mkdir()
    flow.write_text(FLOW)
    (flow.parent / "shop.py").write_text(SHOP)
    (flow.parent / "count.sql").write_text(
        "SELECT :dataid AS day, count(*) AS n, max(id) AS most FROM out;\n"
    )
    dataflowd.flow.apply(world.connection, dataflowd.flow.load(flow, settings))
    raw = Path(settings.effective_root) / "raw"
    raw.mkdir(parents=True)
    for dataid in ("d1", "slow"):
        (raw / f"{dataid}.csv").write_text("".join(f"{n},name{n}\n" for n in range(1, 501)) + "x,broken\n")
    world.ready("raw", "d1", "slow")
    return {"DATAFLOW_FLOWS": str(flow)}


def leftovers(temporary_directory: Path) -> list[Path]:
    return list(temporary_directory.glob(f"{TRIAL}-*"))


def test_a_trial_shows_what_would_happen_and_changes_nothing(
    world: World, shop: dict[str, str], run_ctl: RunCtl, settings: Settings, temporary_directory: Path
) -> None:
    before = world.everything()

    def run(*words: str, env: Mapping[str, str | None] | None = None, stdin: str = "") -> Any:
        return run_ctl(*words, env=shop | dict(env or {}), stdin=stdin)

    tried = asked(run, "try", "work", "d1", "--sample", "0.5", "--seed", "7")
    assert (tried["outcome"], tried["code"]) == ("DONE", None)
    [out] = tried["outputs"]
    records = [bad for bad in tried["quarantine"] if bad["code"] == "BAD_RECORD"]
    assert 150 < out["rows"] < 350
    assert 0 < len(records) < 50
    assert all(int(bad["item"]) % 10 == 0 for bad in records)
    assert [sorted(row) for row in out["preview"]] == [["id", "name"]] * 10
    checks = {check["name"]: (check["passed"], check["severity"]) for check in tried["checks"]}
    assert checks == {
        "min_rows": (False, "warn"),
        "schema": (True, "error"),
        "unique(id)": (True, "error"),
        "row_count": (True, "error"),
        "shop:has_two_columns": (True, "error"),
    }
    assert list(tried["seconds"]) == ["start", "prepare", "run", "validate"]
    assert [line.split() for line in tried["log"]] == [["hello", "password=***"]]
    assert world.everything() == before
    assert not (Path(settings.effective_root) / "out").exists()
    assert leftovers(temporary_directory) == []


def test_a_trial_opens_sealed_passwords_with_the_key_of_the_data_directory(
    world: World, settings: Settings, run_ctl: RunCtl, locked_warehouse: Warehouse, tmp_path: Path
) -> None:
    locked_warehouse.do("CREATE TABLE orders AS SELECT n FROM generate_series(1, 5) AS n")
    locked_warehouse.do("GRANT SELECT ON orders TO loader")
    there = locked_warehouse.there
    flow = tmp_path / "sealed.toml"
    flow.write_text(
        f"""
[flow]
name = "sealed"
[dataset.orders]
format = "postgres"
hostname = "{there["hostname"]}"
port = {there["port"]}
database = "{there["database"]}"
tablename = "orders"
username = "loader"
[dataset.copied]
format = "json"
location = "{{root}}/copied"
[job.copy]
python = "dataflowd.jobs:copy"
inputs = ["orders"]
outputs = ["copied"]
"""
    )
    here = settings.model_copy(update={"allowed_hosts": [locked_warehouse.host]})
    dataflowd.flow.apply(world.connection, dataflowd.flow.load(flow, here))
    world.ready("orders", "d1")
    env = {"DATAFLOW_FLOWS": str(flow), "DATAFLOW_ALLOWED_HOSTS": locked_warehouse.host}
    assert run_ctl("key", "generate").returncode == 0
    assert run_ctl("seal", "orders", stdin=PASSWORD).returncode == 0
    tried = run_ctl("try", "copy", "d1", "--rows", "3", "--json", env=env)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert json.loads(tried.stdout)["outputs"][0]["rows"] == 3


def test_run_shows_what_a_spark_job_prints(shop: dict[str, str], run_ctl: RunCtl) -> None:
    """This test is here because a trial and a run in the foreground share the code that prints."""
    done = run_ctl("run", "work", "--dataid", "d1", env=shop)
    # The check min_rows fails after the job has printed.
    assert done.returncode == EXIT["FAILED"], done.stderr
    assert [line.split() for line in done.stdout.splitlines()[:1]] == [["hello", "password=***"]]


def test_a_trial_shows_the_rows_of_a_sql_job_and_a_failed_check(
    world: World, shop: dict[str, str], run_ctl: RunCtl, settings: Settings
) -> None:
    daemon = world.daemon()
    [attempt] = [each for each in daemon.claim() if each.run == ("work", "d1")]
    published = (
        Path(settings.effective_root) / ".attempts" / "out" / "dataid=d1" / f"attempt={attempt.attempt}"
    )
    published.mkdir(parents=True)
    (published / "part-0.csv").write_text("".join(f"{n},name{n}\n" for n in range(100)))
    files = [{"path": "part-0.csv", "bytes": (published / "part-0.csv").stat().st_size}]
    daemon.finish(attempt, outputs={"out": {"location": str(published), "files": files, "rows": 100}})
    world.as_framework(
        """UPDATE dataflow.dataset SET checks = '{"max_rows": {"value": 0, "severity": "error"}}' WHERE datasetid = 'counts'"""
    )
    result = run_ctl("try", "count", "d1", "--rows", "40", env=shop)
    assert result.returncode == EXIT["FAILED"]
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["day", "n", "most"], lines
    assert lines[2].split()[:2] == ["d1", "40"]
    assert "counts: max_rows: 1, expected at most 0" in result.stdout
    assert "count d1 would fail, CHECK_FAILED" in lines[-2]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["work", "d1"], "USAGE", "--sample 0.01, or --rows 1000"),
        (["work", "d1", "--sample", "0"], "USAGE", "more than 0, at most 1"),
        (["work", "d2", "--rows", "5"], "DATA_NOT_READY", "work cannot be tried on d2: raw/d2 is not there"),
        (["work", "d2", "--rows", "5"], "DATA_NOT_READY", "when it has arrived: dataflowctl ready raw d2"),
        (["wrok", "d1", "--rows", "5"], "NOT_FOUND", "no flow file of this host declares the job wrok"),
        (["shout", "d1", "--rows", "5"], "NOT_ALLOWED", "is of kind command"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_spark_starts(
    shop: dict[str, str], run_ctl: RunCtl, arguments: list[str], code: str, says: str
) -> None:
    result = run_ctl("try", *arguments, env=shop)
    assert result.returncode == EXIT[code]
    assert says in result.stderr


@pytest.fixture
def begin_trial(
    shop: dict[str, str], dsn: str, settings: Settings, tmp_path: Path
) -> Callable[[], subprocess.Popen[bytes]]:
    variables = {name: os.environ[name] for name in ("PATH", "TMPDIR")} | shop
    variables |= {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir), "HOME": str(tmp_path)}
    command = [str(Path(sys.executable).parent / "dataflowctl"), "try", "work", "slow", "--rows", "10"]

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "--json"], env=variables, stdout=subprocess.PIPE)

    return begin


def test_an_interrupted_trial_leaves_nothing(
    begin_trial: Callable[[], subprocess.Popen[bytes]], tmp_path: Path, temporary_directory: Path
) -> None:
    with begin_trial() as process:
        eventually((tmp_path / "flow" / "begun").exists, seconds=PATIENCE_SECONDS)
        assert leftovers(temporary_directory)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGINT
    assert leftovers(temporary_directory) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_trial_that_is_told_to_end_leaves_nothing(
    begin_trial: Callable[[], subprocess.Popen[bytes]], temporary_directory: Path, number: signal.Signals
) -> None:
    with begin_trial() as process:
        eventually(lambda: leftovers(temporary_directory))
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 128 + number
    assert leftovers(temporary_directory) == []


def test_what_a_killed_trial_left_is_removed_by_the_next_command(
    begin_trial: Callable[[], subprocess.Popen[bytes]], temporary_directory: Path, run_ctl: RunCtl
) -> None:
    with begin_trial() as process:
        [left] = eventually(lambda: leftovers(temporary_directory))
        assert asked(run_ctl, "gc", "--dry-run")["temporary"] == []
        # A starting JVM does not notice that its directory is gone, so that gc has to kill it.
        jvm = eventually(lambda: [pid for pid in working_in(left) if "java" in command(pid)])
        process.kill()
    assert asked(run_ctl, "gc", "--dry-run")["temporary"] == [str(left)]
    assert left.exists()
    assert "removed 1 directory of programs that were killed" in ok(run_ctl("gc"))
    assert not left.exists()
    assert not any(started_at(pid) for pid in jvm)


def test_the_same_seed_chooses_the_same_rows_however_they_are_split(spark: SparkSession) -> None:
    frame = spark.range(1000).selectExpr("id", "map('k', id) AS m")

    def chosen(parts: int, trial: Trial) -> set[int]:
        return {row.id for row in sampled(frame.repartition(parts), trial).collect()}

    assert chosen(1, Trial(share=0.1)) == chosen(7, Trial(share=0.1))
    assert 50 < len(chosen(2, Trial(share=0.1))) < 150
    assert chosen(1, Trial(share=0.1)) != chosen(1, Trial(share=0.1, seed=1))
    assert chosen(1, Trial(rows=20)) == chosen(5, Trial(rows=20))
    assert len(chosen(1, Trial(rows=20))) == 20
    assert len(chosen(1, Trial(share=1.0))) == 1000
