"""`dataflowctl job create`: several jobs with the code of one, without a change of the flow file or a reload of the daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.types.json import Jsonb

from dataflowd import flow
from dataflowd.model.errors import EXIT
from tests.e2e.ctl_flow import asked, ok
from tests.fix_daemon import StartDaemon, daemons, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

FLOW = """
[flow]
name = "crm"
[dataset.customers]
format = "csv"
location = "{root}/customers.csv"
[dataset.customers_eu]
format = "csv"
location = "{root}/customers_eu.csv"
[dataset.loaded]
format = "csv"
location = "{root}/loaded"
checks = { min_rows = 1 }
[job.load]
command = ["./load.sh"]
inputs = { customers = { kind = "partitioning", name = "size_5000" } }
outputs = ["loaded"]
params = { currency = "USD", least = 1 }
[job.count]
python = "crm:count"
inputs = { customers = { kind = "partitioning", name = "size_5000" } }
outputs = ["counted"]
params = { least = 1 }
[dataset.counted]
format = "csv"
location = "{root}/counted"
"""
SCRIPT = """#!/bin/sh
set -eu
echo "$jobid $customers_datasetid $customers_location $param_currency $param_least" > "$loaded_location/part.csv"
echo '{"rows": 1}' >> "$DATAFLOW_REPORT"
"""
CODE = """
from dataflowd import job

@job
def count(ctx):
    ctx.write("counted", ctx.read("customers").where(f"_c0 >= {ctx.params.least}"))
"""
CREATE = (
    "job",
    "create",
    "load_eu",
    "--like",
    "load",
    "--source",
    "customers_eu",
    "--partitioning",
    "size_5000",
)


@pytest.fixture
def start(
    dsn: str, settings: Settings, connection: psycopg.Connection, tmp_path: Path
) -> Iterator[StartDaemon]:
    (tmp_path / "load.sh").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "load.sh").chmod(0o755)
    (tmp_path / "crm.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "flow.toml").write_text(FLOW, encoding="utf-8")
    flow.apply(connection, flow.load(tmp_path / "flow.toml", settings), prune=False)
    root = settings.data_dir / "data"
    root.mkdir(parents=True)
    for name in ("customers", "customers_eu"):
        (root / f"{name}.csv").write_text("1\n2\n3\n", encoding="ascii")
        for partitioning in ("size_5000", "every_2"):
            bounds = {"low": None, "high": None}
            batches = [{"dataid": f"{partitioning}.1", "bounds": bounds, "items": 3}]
            connection.execute(
                "SELECT dataflow.create_partitioning(%s, %s, ARRAY['_c0'], 'size', 5000, %s)",
                [name, partitioning, Jsonb(batches)],
            )
    with daemons(dsn, tmp_path / "flow.toml", tmp_path) as starting:
        yield starting


def published(connection: psycopg.Connection, dataset: str) -> list[Any]:
    query = "SELECT dataid, location FROM dataflow.published WHERE datasetid = %s"
    return connection.execute(query, [dataset]).fetchall()


def test_a_job_that_is_created_runs_at_once_with_its_own_source_and_parameters(
    start: StartDaemon, connection: psycopg.Connection, run_ctl: RunCtl, settings: Settings
) -> None:
    daemon = start()
    eventually(lambda: published(connection, "loaded"))
    given = (*CREATE, "--description", "Europe", "--param", "currency=EUR")
    assert asked(run_ctl, *given, "--dry-run")["dry_run"] is True
    said = ok(run_ctl(*given))
    assert said.splitlines() == ["created dataset load_eu.loaded", "created job load_eu"]
    [(dataid, location)] = eventually(lambda: published(connection, "load_eu.loaded"))
    assert (dataid, location.startswith(f"{settings.data_dir}/data/.attempts/loaded.load_eu/")) == (
        "size_5000.1",
        True,
    )
    source = f"{settings.data_dir}/data/customers_eu.csv"
    made = Path(location, "part.csv").read_text(encoding="utf-8")
    assert made == f"load_eu customers_eu {source} EUR 1\n"
    assert daemon.stop() == 0
    [row] = [job for job in asked(run_ctl, "jobs") if job["jobid"] == "load_eu"]
    assert (row["like_job"], row["description"], row["inputs"]) == (
        "load",
        "Europe",
        ["customers_eu (size_5000)"],
    )
    assert "like load" in next(
        line for line in ok(run_ctl("jobs")).splitlines() if line.startswith("load_eu")
    )
    assert "load_eu" in ok(run_ctl("status"))
    assert ok(run_ctl("why", "load_eu", "size_5000.1")).startswith("load_eu size_5000.1 is READY")
    assert asked(run_ctl, "chunks", "load_eu.loaded", "--stale") == []
    flow_file = {"DATAFLOW_FLOWS": str(settings.data_dir.parent / "flow.toml")}
    again = ok(run_ctl("apply", flow_file["DATAFLOW_FLOWS"], "--prune", "--yes"))
    assert "retired" not in again
    connection.execute("SELECT dataflow.resubmit(%s)", [Jsonb({"job": "load_eu", "status": "READY"})])
    ok(run_ctl("run", "load_eu", "--dataid", "size_5000.1", env=flow_file))
    assert run_ctl("job", "drop", "load_eu").returncode == EXIT["NOT_ALLOWED"]
    assert ok(run_ctl("job", "drop", "load_eu", "--yes")).splitlines() == [
        "retired dataset load_eu.loaded",
        "retired job load_eu",
    ]
    assert run_ctl("job", "drop", "load", "--yes").returncode == EXIT["NOT_ALLOWED"]


def test_spark_code_of_a_created_job_uses_the_names_of_the_original(
    start: StartDaemon, connection: psycopg.Connection, run_ctl: RunCtl, settings: Settings
) -> None:
    assert start
    ok(
        run_ctl(
            "job", "create", "count_all", "--like", "count", "--partitioning", "every_2", "--param", "least=3"
        )
    )
    variables = {"DATAFLOW_FLOWS": str(settings.data_dir.parent / "flow.toml")}
    tried = asked_with(run_ctl, variables, "try", "count_all", "every_2.1", "--rows", "10")
    assert [(each["dataset"], each["rows"]) for each in tried["outputs"]] == [("counted", 1)]
    ok(run_ctl("run", "count_all", "--dataid", "every_2.1", env=variables))
    query = "SELECT rows, location FROM dataflow.manifest WHERE datasetid = 'count_all.counted'"
    [(rows, location)] = connection.execute(query).fetchall()
    assert (rows, "/counted.count_all/" in location) == (1, True)


def test_a_run_of_a_created_job_is_made_outside_or_by_another_command(
    start: StartDaemon,
    connection: psycopg.Connection,
    run_ctl: RunCtl,
    settings: Settings,
    tmp_path: Path,
) -> None:
    assert start
    path, root = tmp_path / "flow.toml", settings.data_dir / "data"
    with_path = FLOW.replace('location = "{root}/loaded"', 'location = "{root}/loaded"\npublish = "rename"')
    path.write_text(with_path, encoding="utf-8")
    flow.apply(connection, flow.load(path, settings), prune=False)
    ok(run_ctl(*CREATE))
    # A host with the flow file, and a host without one.
    for env, text in (({"DATAFLOW_FLOWS": str(path)}, "1\n"), ({}, "22\n")):
        begun = asked_with(run_ctl, env, "begin", "load_eu", "size_5000.1", "--instead")
        Path(begun["environment"]["loaded_location"], "part.csv").write_text(text, encoding="ascii")
        ok(run_ctl("end", "--ok", "--rows", "1", env=env | {"DATAFLOW_HANDLE": begun["handle"]}))
        link = root / "loaded.load_eu" / "dataid=size_5000.1"
        assert (link / "part.csv").read_text(encoding="ascii") == text
        told = connection.execute(
            "SELECT DISTINCT datasetid::text, name FROM dataflow.check_result"
        ).fetchall()
        assert told == [("load_eu.loaded", "min_rows")]
        connection.execute("SELECT dataflow.resubmit(%s)", [Jsonb({"job": "load_eu", "status": "READY"})])
    command = 'echo 7 > "$loaded_location/part.csv"; echo \'{"rows": 1}\' > "$DATAFLOW_REPORT"'
    given = ("exec", "load_eu", "size_5000.1", "--publish", "--yes", "--", "sh", "-c", command)
    ok(run_ctl(*given, env={"DATAFLOW_FLOWS": str(path)}))
    assert (link / "part.csv").read_text(encoding="ascii") == "7\n"


def test_mistakes_in_job_create_are_one_clear_error(start: StartDaemon, run_ctl: RunCtl) -> None:
    assert start
    wrong = run_ctl(*CREATE[:-1], "size_7")
    assert (wrong.returncode, "dataset customers_eu has no partitioning size_7" in wrong.stderr) == (
        EXIT["NOT_FOUND"],
        True,
    )
    assert "it has every_2, size_5000" in wrong.stderr
    assert run_ctl(*CREATE, "--param", "currency").returncode == EXIT["USAGE"]
    assert run_ctl(*CREATE, "--param", "curency=EUR").returncode == EXIT["USAGE"]


def asked_with(run_ctl: RunCtl, env: dict[str, str], *arguments: str) -> Any:
    return json.loads(ok(run_ctl(*arguments, "--json", env=env)))
