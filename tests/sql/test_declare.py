"""Datasets and jobs that are declared by SQL: they obey the rules of flow files, and a flow file may take them over later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dataflowd import flow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dataflowd.host.settings import Settings
    from tests.fix_world import World

RAW: LiteralString = "SELECT dataflow.declare_dataset('raw', 'csv', '/data/raw/{dataid}.csv')"
MODEL: LiteralString = (
    "SELECT dataflow.declare_dataset('model', 'csv', '/data/model', checks => '{\"min_rows\": 2}')"
)
TRAIN: LiteralString = (
    "SELECT dataflow.declare_job('train', '[\"raw\"]', '{model}', params => '{\"depth\": 3}')"
)
KINDS: LiteralString = """
    SELECT 'dataset', datasetid::text, flow, retired IS NULL FROM dataflow.dataset WHERE datasetid <> 'today'
    UNION ALL SELECT 'job', jobid, flow, retired IS NULL FROM dataflow.job ORDER BY 1, 2
"""


@pytest.fixture
def declared(world: World) -> World:
    for statement in (RAW, MODEL, TRAIN):
        assert world.value(statement) == "created"
    return world


def test_what_is_declared_by_sql_runs(declared: World) -> None:
    assert declared.value(TRAIN) == declared.value(RAW) == "unchanged"
    declared.ready("raw", "1")
    [(handle, params)] = declared.rows("SELECT handle, params FROM dataflow.begin_run('train')")
    assert params == {"depth": 3}
    told = {
        "outputs": {"model": {"files": [{"path": "a.csv", "bytes": 9}], "rows": 2}},
        "checks": [{"dataset": "model", "name": "min_rows", "passed": True}],
    }
    end: LiteralString = "SELECT dataflow.end_run(%s, 'DONE', result => %s)"
    assert declared.value(end, handle, Jsonb(told)) == "accepted"
    assert declared.status("model", "1") == "READY"


def test_a_second_declaration_resets_what_it_leaves_out_to_the_default(declared: World) -> None:
    declared.ready("raw", "1")
    again: LiteralString = 'SELECT dataflow.declare_job(\'train\', \'{"raw": {"kind": "offset", "by": -1, "unit": "number"}}\', \'{model}\')'
    assert declared.value(again) == "changed"
    assert declared.rows("SELECT params FROM dataflow.job") == [({},)]
    # The queue follows the new declaration.
    assert declared.queue() == declared.rebuilt_queue() == {("train", "2")}


def test_checks_and_mappings_are_stored_as_those_of_a_flow_file(
    declared: World, tmp_path: Path, settings: Settings
) -> None:
    checks = {
        "min_rows": 1, "max_rows": {"value": 9, "severity": "warn"}, "not_null": ["id"], "unique": {"columns": ["id"]},
        "accepted_values": {"currency": ["EUR"]}, "range": {"amount": {"min": 0}}, "regex": {"id": "[0-9]+"},
        "schema": "id bigint, currency string, amount double", "row_count": "raw",
    }  # fmt: skip
    mappings: dict[str, Any] = {
        "a": "identity", "b": {"kind": "offset", "by": -1, "unit": "day"}, "c": {"kind": "window", "from": "hour", "to": "day"},
        "d": {"kind": "window", "last": 7, "unit": "day"}, "e": {"kind": "fixed", "dataid": "v1"},
    }  # fmt: skip
    names = [*mappings, "out", "raw2"]
    lines = ["[flow]", 'name = "file"', *(f"[dataset.{name}]\nformat = 'none'" for name in names)]
    lines += [
        "[dataset.out.checks]",
        *(f"{name} = {_toml(value)}" for name, value in checks.items() if name != "row_count"),
    ]
    lines += [
        "row_count = 'raw2'",
        "[job.j]",
        'sql = "j.sql"',
        "outputs = ['out']",
        "[job.j.inputs]",
        "raw2 = 'identity'",
    ]
    lines += [f"{name} = {_toml(value)}" for name, value in mappings.items()]
    (tmp_path / "j.sql").write_text("SELECT 1", encoding="ascii")
    (tmp_path / "flow.toml").write_text("\n".join(lines), encoding="ascii")
    document = flow.load(tmp_path / "flow.toml", settings).document()
    [out] = [one for one in document["datasets"] if one["datasetid"] == "out"]
    normal = declared.value("SELECT dataflow._normal_checks(%s)", Jsonb(checks | {"row_count": "raw2"}))
    assert normal == out["checks"]
    for name, given in mappings.items():
        found = declared.value("SELECT dataflow._normal_mapping(%s, %s)", name, Jsonb(given))
        assert found == document["jobs"][0]["inputs"][name]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return str(list(value)) if isinstance(value, list) else repr(value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'1st', 'none'", "'1st' cannot name a dataset"),
        ("'x', 'excel', '/x'", "format is 'excel'"),
        ("'x', 'csv'", "location is missing for format csv"),
        ("'x', 'csv', 'data/x'", "location is a relative path"),
        ("'x', 'csv', '{root}/x'", "location has an unknown placeholder"),
        ("'x', 'csv', '/data/../etc'", "location has '..' in it"),
        ("'x', 'csv', '/data/*'", "location has a character"),
        ("'x', 'csv', '/data/%2e%2e/x'", "location has a character"),
        ("'x', 'csv', 'http://host/x'", "location has the scheme 'http'"),
        ("'x', 'csv', 's3a:///x'", "location names no bucket or container"),
        ("'x', 'csv', 'file://host/x'", "location (is a relative path|names a host)"),
        ("'x', 'postgres'", "tablename is missing for format postgres"),
        ("'x', 'csv', '/x', port => 0", "port is 0"),
        ("'x', 'csv', '/x', ordering => 'random'", "ordering is 'random'"),
        ("'x', 'csv', '/x/{dataid}', publish => 'rename'", "publish is rename"),
        ("'x', 'csv', '/x', options => '{\"a\": []}'", "options are no object"),
        ("'x', 'csv', '/x', checks => '{\"min_rows\": -1}'", "the check min_rows is not of its form"),
        ("'x', 'csv', '/x', checks => '{\"custom\": [\"m:f\"]}'", "a check is 'custom'"),
        (
            "'x', 'csv', '/x', checks => '{\"range\": {\"a\": {\"min\": 2, \"max\": 1}}}'",
            "the check range is not of its form",
        ),
        ("'x', 'csv', '/x', checks => '{\"not_null\": []}'", "the check not_null is not of its form"),
        ("'x', calendar => 'daily'", "start of a calendar is missing"),
        (
            "'x', calendar => 'daily', start => '2026-01-01 05:00'",
            "start of a calendar is 2026-01-01 05:00:00",
        ),
        (
            "'x', calendar => 'daily', start => '2026-01-01', zone => 'Mars'",
            "zone is 'Mars', which is no time zone",
        ),
        ("'x', 'none', start => '2026-01-01'", "start is given without a calendar"),
        ("'model', calendar => 'daily', start => '2026-01-01'", "dataset model is made by a job"),
        ("'today', 'none'", "dataset today is built in"),
    ],
)
def test_a_wrong_dataset_is_refused_and_changes_nothing(
    declared: World, arguments: str, message: str
) -> None:
    _refused(declared, f"SELECT dataflow.declare_dataset({arguments})", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'a b', '[\"raw\"]', '{sums}'", "'a b' cannot name a job"),
        ("'j', '[\"raw\"]', '{}'", "outputs are missing"),
        ("'j', '\"raw\"', '{sums}'", "inputs are neither a list"),
        ("'j', '[7]', '{sums}'", "NULL cannot name a dataset"),
        ("'j', '[\"nothing\"]', '{sums}'", "job j names dataset nothing, which does not exist"),
        ("'j', '[\"raw\"]', '{nothing}'", "job j names dataset nothing, which does not exist"),
        ("'j', '[\"raw\"]', '{model}'", "dataset model is produced by job train of flow .sql."),
        ("'j', '[\"raw\"]', '{sums}', kind => 'shell'", "kind is 'shell'"),
        ("'j', '[\"raw\"]', '{sums}', params => '[]'", "params are no object"),
        ("'j', '[\"raw\"]', '{sums}', max_attempts => 0", "out of its bounds"),
        ("'j', '[\"raw\"]', '{today}'", "job j writes today, which is a calendar"),
        ("'j', '[\"sums\"]', '{sums}'", "job j reads its own output sums of the same dataid"),
        ("'j', '{\"raw\": {\"kind\": \"fixed\", \"dataid\": \"v1\"}}', '{sums}'", "job j has only fixed inputs"),
        ("'j', '{\"raw\": {\"kind\": \"offset\", \"by\": 0, \"unit\": \"day\"}}', '{sums}'", "the mapping of raw is not of its form"),
        ("'j', '{\"raw\": {\"kind\": \"window\", \"from\": \"week\", \"to\": \"month\"}}', '{sums}'", "the mapping of raw is not of its form"),
        ("'j', '{\"raw\": \"sideways\"}', '{sums}'", "the kind of the mapping of raw is 'sideways'"),
        ("'j', '{\"raw\": {\"kind\": \"all\"}}', '{sums}'", "the mapping of raw is not of its form"),
        ("'j', '[\"prod\", \"raw\"]', '{dev}'", "job j mixes environments: dev, prod"),
        ("'j', '[\"raw\"]', '{keyed}'", "the check unique of dataset keyed cannot be made of what a job of kind outside writes"),
        ("'train', '[\"sums\"]', '{model}'", "jobs wait for each other in a cycle: train <- add"),
    ],
)  # fmt: skip
def test_a_wrong_job_is_refused_and_changes_nothing(declared: World, arguments: str, message: str) -> None:
    for statement in (
        "'sums', 'none'", "'prod', 'none', environment => 'prod'", "'dev', 'none', environment => 'dev'",
        "'keyed', 'csv', '/keyed', checks => '{\"unique\": [\"id\"]}'", "'totals', 'none'",
    ):  # fmt: skip
        declared.connection.execute(f"SELECT dataflow.declare_dataset({statement})".encode())
    if "cycle" in message:
        declared.do("SELECT dataflow.declare_job('add', '[\"model\"]', '{sums}')")
    _refused(declared, f"SELECT dataflow.declare_job({arguments})", message)


def _refused(world: World, statement: str, message: str) -> None:
    before = world.everything()
    with pytest.raises(psycopg.Error, match=message) as refused:
        world.connection.execute(statement.encode())
    assert str(refused.value.sqlstate).startswith("DF4")
    assert refused.value.diag.message_hint
    assert world.everything() == before


@pytest.fixture
def apply(world: World, tmp_path: Path, settings: Settings) -> Callable[[str], dict[str, str]]:
    def run(text: str) -> dict[str, str]:
        (tmp_path / "train.sh").write_text("#!/bin/sh\n", encoding="ascii")
        (tmp_path / "train.sh").chmod(0o755)
        path = tmp_path / "flow.toml"
        path.write_text(text, encoding="utf-8")
        found = flow.load(path, settings.model_copy(update={"allowed_roots": ["/data"]}))
        return {change.name: change.action for change in flow.apply(world.connection, found, prune=True)}

    return run


FILE = """
[flow]
name = "file"
[dataset.raw]
format = "csv"
location = "/data/raw/{dataid}.csv"
[dataset.model]
format = "csv"
location = "/data/elsewhere"
[job.train]
command = ["./train.sh"]
inputs = ["raw"]
outputs = ["model"]
"""


def test_a_flow_file_takes_over_what_it_declares_and_leaves_the_rest(
    declared: World, apply: Callable[[str], dict[str, str]]
) -> None:
    declared.do("SELECT dataflow.declare_dataset('other', 'none')")
    declared.ready("raw", "1")
    assert apply(FILE) == {"raw": "changed", "model": "changed", "train": "changed"}
    assert declared.rows(KINDS) == [
        ("dataset", "model", "file", True),
        ("dataset", "other", "(sql)", True),
        ("dataset", "raw", "file", True),
        ("job", "train", "file", True),
    ]
    # The job keeps its queue: a daemon with the file's code claims the run.
    assert declared.daemon().runs() == {("train", "1")}
    assert apply(FILE) == {"raw": "unchanged", "model": "unchanged", "train": "unchanged"}
    _refused(declared, TRAIN, "job train belongs to flow file")
    _refused(declared, RAW, "dataset raw belongs to flow file")


def test_what_was_declared_by_sql_is_retired_by_sql(declared: World) -> None:
    _refused(declared, "SELECT dataflow.retire_dataset('raw')", "dataset raw is used by job train")
    declared.do("SELECT dataflow.retire_job('train')")
    declared.do("SELECT dataflow.retire_dataset('model')")
    assert declared.rows(KINDS) == [
        ("dataset", "model", "(sql)", False),
        ("dataset", "raw", "(sql)", True),
        ("job", "train", "(sql)", False),
    ]
    _refused(declared, "SELECT dataflow.retire_job('train')", "there is no job train")
    assert declared.value(MODEL) == declared.value(TRAIN) == "changed"
    declared.job("by_hand", "raw", "copies")
    _refused(declared, "SELECT dataflow.retire_job('by_hand')", "was not declared by SQL")


def test_only_the_role_that_applies_flows_declares(declared: World) -> None:
    for role in ("dataflow_operator", "dataflow_daemon", "dataflow_reader"):
        with declared.connection.transaction(force_rollback=True):
            declared.connection.execute(f"SET LOCAL ROLE {role}".encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                declared.do(RAW)
