"""Flows in the database: what applying creates, changes, retires and refuses, through Python, SQL and the command."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dataflowd.database import db
from dataflowd.flow import Change, FlowMistakesError, apply, conflicts, load, plan
from dataflowd.model.errors import EXIT, NotAllowedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataflowd.flow import Flow
    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

FLOWS = Path(__file__).parent.parent / "unit" / "flows"
RETAIL = """
[flow]
name = "retail"
[dataset.raw]
location = "{root}/raw/{dataid}"
[dataset.clean]
location = "{root}/clean"
[job.make_clean]
command = ["true"]
inputs = ["raw"]
outputs = ["clean"]
"""


@pytest.fixture
def flow_of(settings: Settings, tmp_path: Path) -> Callable[[str], Flow]:
    def make(text: str) -> Flow:
        path = tmp_path / "flow.toml"
        path.write_text(text, encoding="utf-8")
        return load(path, settings)

    return make


def actions(changes: list[Change]) -> dict[str, str]:
    return {change.name: change.action for change in changes}


def rows(connection: psycopg.Connection, statement: Any, *parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(statement, parameters).fetchall()


def test_a_plan_says_what_apply_does_and_writes_nothing(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    flow = flow_of(RETAIL)
    planned = plan(connection, flow)
    assert actions(planned) == {"raw": "created", "clean": "created", "make_clean": "created"}
    assert rows(connection, "SELECT FROM dataflow.job") == []
    assert apply(connection, flow) == planned
    assert rows(connection, "SELECT jobid, flow, kind FROM dataflow.job") == [
        ("make_clean", "retail", "command")
    ]
    assert rows(connection, "SELECT jobid, datasetid, mapping FROM dataflow.job_input") == [
        ("make_clean", "raw", {"kind": "identity"})
    ]
    assert rows(connection, "SELECT jobid, datasetid FROM dataflow.job_output") == [("make_clean", "clean")]


def test_applying_again_changes_nothing(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    flow = flow_of(RETAIL)
    apply(connection, flow)
    everything = "SELECT xmin, ctid, d::text FROM dataflow.dataset d UNION ALL SELECT xmin, ctid, j::text FROM dataflow.job j"
    before = rows(connection, everything)
    assert set(actions(apply(connection, flow)).values()) == {"unchanged"}
    assert rows(connection, everything) == before


def test_a_change_names_its_columns_and_leaves_the_rest(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    apply(connection, flow_of(RETAIL))
    connection.execute("UPDATE dataflow.dataset SET encryptedpass = 'sealed'")
    connection.execute("UPDATE dataflow.job SET code_hash = 'abc'")
    created = rows(connection, "SELECT created FROM dataflow.job")
    changes = apply(
        connection,
        flow_of(
            RETAIL.replace(
                'inputs = ["raw"]', 'inputs.raw = {kind = "offset", by = -1, unit = "day"}'
            ).replace("[dataset.clean]", 'username = "etl"\n[dataset.clean]')
            + 'retry_delay = "2m"\ntimeout = 90\n'
        ),
    )
    assert [(change.name, change.action, change.columns) for change in changes] == [
        ("clean", "unchanged", ()),
        ("raw", "changed", ("username",)),
        ("make_clean", "changed", ("config_hash", "inputs", "retry_delay", "timeout")),
    ]
    assert rows(connection, "SELECT DISTINCT encryptedpass FROM dataflow.dataset WHERE flow = 'retail'") == [
        ("sealed",)
    ]
    assert rows(connection, "SELECT code_hash, created FROM dataflow.job") == [("abc", *created[0])]
    assert rows(connection, "SELECT mapping ->> 'by' FROM dataflow.job_input") == [("-1",)]


def test_prune_retires_what_is_no_longer_declared_and_apply_revives_it(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    apply(connection, flow_of(RETAIL))
    less = flow_of(RETAIL.partition("[dataset.clean]")[0])
    assert actions(apply(connection, less)) == {"raw": "unchanged"}
    assert rows(connection, "SELECT retired FROM dataflow.job") == [(None,)]
    assert actions(apply(connection, less, prune=True)) == {
        "raw": "unchanged",
        "clean": "retired",
        "make_clean": "retired",
    }
    assert rows(connection, "SELECT retired IS NOT NULL FROM dataflow.job") == [(True,)]
    assert rows(connection, "SELECT FROM dataflow.job_output") == []
    assert actions(apply(connection, less, prune=True)) == {"raw": "unchanged"}
    revived = {change.name: change for change in apply(connection, flow_of(RETAIL))}
    assert revived["clean"].columns == ("retired",)
    assert revived["make_clean"].columns == ("inputs", "outputs", "retired")
    assert rows(connection, "SELECT jobid, datasetid FROM dataflow.job_output") == [("make_clean", "clean")]
    assert rows(connection, "SELECT retired FROM dataflow.job") == [(None,)]


def test_a_renamed_job_needs_prune_to_take_over_its_output(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    apply(connection, flow_of(RETAIL))
    renamed = flow_of(RETAIL.replace("job.make_clean", "job.tidy"))
    with pytest.raises(
        FlowMistakesError, match=r"flow.toml:11: dataset clean is produced by job make_clean.*--prune"
    ):
        conflicts(connection, renamed)
    with pytest.raises(NotAllowedError, match="produced by job make_clean"):
        apply(connection, renamed)
    conflicts(connection, renamed, prune=True)
    assert actions(apply(connection, renamed, prune=True))["make_clean"] == "retired"
    assert rows(connection, "SELECT jobid FROM dataflow.job_output") == [("tidy",)]


def test_two_jobs_may_exchange_their_outputs(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    text = RETAIL + '[dataset.other]\nlocation = "{root}/other"\n'
    text += '[job.second]\ncommand = ["true"]\ninputs = ["raw"]\noutputs = ["other"]\n'
    apply(connection, flow_of(text))
    swapped = text.replace('outputs = ["clean"]', 'outputs = ["x"]').replace(
        'outputs = ["other"]', 'outputs = ["clean"]'
    )
    apply(connection, flow_of(swapped.replace('["x"]', '["other"]')))
    assert rows(connection, "SELECT jobid, datasetid FROM dataflow.job_output ORDER BY 1") == [
        ("make_clean", "other"),
        ("second", "clean"),
    ]


def test_what_belongs_to_another_flow_is_refused_all_at_once_with_lines(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    apply(connection, flow_of(RETAIL))
    text = RETAIL.replace('"retail"', '"wholesale"') + '[job.tidy]\ncommand = ["true"]\ninputs = ["raw"]\n'
    other = flow_of(
        text.replace('["clean"]', '["own"]') + 'outputs = ["clean"]\n[dataset.own]\nlocation = "{root}/own"\n'
    )
    with pytest.raises(FlowMistakesError) as caught:
        conflicts(connection, other)
    assert [(mistake.line, mistake.what) for mistake in caught.value.mistakes] == [
        (4, "dataset raw belongs to flow retail"),
        (6, "dataset clean belongs to flow retail"),
        (8, "job make_clean belongs to flow retail"),
        (15, "dataset clean is produced by job make_clean of flow retail"),
    ]
    with pytest.raises(NotAllowedError, match="belongs to flow retail"):
        apply(connection, other)


def test_a_flow_may_take_over_what_another_has_retired(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    apply(connection, flow_of(RETAIL))
    apply(connection, flow_of('[flow]\nname = "retail"\n'), prune=True)
    other = flow_of(RETAIL.replace('"retail"', '"wholesale"'))
    conflicts(connection, other)
    assert set(actions(apply(connection, other)).values()) == {"changed"}
    assert rows(connection, "SELECT flow FROM dataflow.job") == [("wholesale",)]


def test_a_dataset_that_another_flow_reads_is_not_retired(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    apply(connection, flow_of(RETAIL))
    connection.execute("INSERT INTO dataflow.job (jobid, flow) VALUES ('reader', 'elsewhere')")
    connection.execute("INSERT INTO dataflow.job_input (jobid, datasetid) VALUES ('reader', 'clean')")
    empty = flow_of('[flow]\nname = "retail"\n')
    with pytest.raises(
        NotAllowedError, match="dataset clean would be retired, but job reader of flow elsewhere uses it"
    ):
        apply(connection, empty, prune=True)


def test_another_ordering_puts_the_queue_into_that_order(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    queue = "SELECT dataid, enqueued FROM dataflow.work ORDER BY sortkey"
    apply(connection, flow_of(RETAIL))
    connection.execute("SELECT dataflow.ready('raw', ARRAY['9', '10'])")
    [nine, ten] = rows(connection, queue)
    assert (nine[0], ten[0]) == ("9", "10")
    by_text = RETAIL.replace('"{root}/clean"', '"{root}/clean"\nordering = "text"')
    assert actions(apply(connection, flow_of(by_text)))["clean"] == "changed"
    assert rows(connection, queue) == [ten, nine]


def test_only_the_runs_of_jobs_that_changed_are_judged_again(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    apply(connection, flow_of(RETAIL))
    connection.execute("SELECT dataflow.ready('raw', '1')")
    # Removes the run from the queue behind the functions' back: judging this job's runs again would put it back.
    connection.execute("DELETE FROM dataflow.work")
    other = RETAIL.replace("retail", "other").replace("raw", "raw2").replace("clean", "clean2")
    described = RETAIL.replace(
        "[job.make_clean]", '[job.make_clean]\ndescription = "cleans"\nmax_running = 7'
    )
    for flow in (other, described):
        assert "changed" in (done := actions(apply(connection, flow_of(flow))).values()) or "created" in done
        assert rows(connection, "SELECT FROM dataflow.work") == []
    apply(connection, flow_of(described.replace('"{root}/clean"', '"{root}/tidy"')))
    assert rows(connection, "SELECT jobid, dataid FROM dataflow.work") == [("make_clean", "1")]


def test_a_calendar_goes_on_where_it_was_until_its_zone_changes(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    clock = '[flow]\nname = "c"\n[dataset.clock]\ncalendar = "daily"\nstart = 2026-01-01\nzone = "Europe/Berlin"\n'
    state = "SELECT calendar_next = calendar_start, calendar_next::date FROM dataflow.dataset WHERE datasetid = 'clock'"
    apply(connection, flow_of(clock))
    assert rows(connection, state)[0][0] is True
    connection.execute("UPDATE dataflow.dataset SET calendar_next = '2026-03-01' WHERE datasetid = 'clock'")
    apply(connection, flow_of(clock + 'description = "tick"\n'))
    assert rows(connection, state)[0][0] is False
    apply(connection, flow_of(clock.replace("Berlin", "Paris")))
    assert rows(connection, state)[0][0] is True


def test_a_document_that_is_not_a_flow_is_refused_with_a_hint(connection: psycopg.Connection) -> None:
    call = "SELECT * FROM dataflow.apply_flow(%s)"
    unstorable = {"name": "f", "datasets": [{"datasetid": "a", "format": "cvs"}], "jobs": []}
    documents: list[Any] = [{}, [], "x", {"name": "f", "datasets": {}, "jobs": []}, unstorable]
    for document in documents:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(call, [Jsonb(document)])
        assert caught.value.sqlstate == db.SQLSTATE_INVALID
        assert caught.value.diag.message_hint


def test_concurrent_applies_of_the_same_flow_all_succeed(
    connection: psycopg.Connection, dsn: str, flow_of: Callable[[str], Flow]
) -> None:
    flow = flow_of(RETAIL)

    def once(_: int) -> str:
        with psycopg.connect(dsn, autocommit=True) as own:
            return actions(apply(own, flow))["raw"]

    with ThreadPoolExecutor(8) as pool:
        done = sorted(pool.map(once, range(8)))
    assert done == ["created"] + ["unchanged"] * 7
    assert len(rows(connection, "SELECT FROM dataflow.job_output")) == 1


def test_nobody_applies_without_a_grant(
    connection: psycopg.Connection, flow_of: Callable[[str], Flow]
) -> None:
    flow = flow_of(RETAIL)
    with connection.transaction(force_rollback=True):
        connection.execute("GRANT USAGE ON SCHEMA dataflow TO dataflow_reader")
        connection.execute("SET LOCAL ROLE dataflow_reader")
        with pytest.raises(NotAllowedError, match="permission denied"):
            apply(connection, flow)


def test_the_command_reports_ten_mistakes_and_exits_with_4(run_ctl: RunCtl) -> None:
    path = FLOWS / "ten_mistakes.toml"
    done = run_ctl("apply", str(path), env={"DATAFLOW_DSN": "postgresql://nobody@127.0.0.1:1/none"})
    assert done.returncode == EXIT["INVALID_FLOW"] == 4
    lines = [int(line.split(":")[1]) for line in done.stderr.splitlines() if line.startswith(f"{path}:")]
    assert lines == sorted(lines)
    assert len(lines) >= 10
    as_json = json.loads(run_ctl("apply", "--json", "--check", str(path)).stdout)
    assert [mistake["line"] for mistake in as_json["mistakes"]] == lines


def test_the_command_checks_plans_and_applies(
    run_ctl: RunCtl, connection: psycopg.Connection, tmp_path: Path
) -> None:
    path = tmp_path / "retail.toml"
    path.write_text(RETAIL)
    checked = run_ctl("apply", str(path), "--check")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "flow retail is right: 2 datasets, 1 job\n" in checked.stdout
    assert "would apply flow retail: 3 created" in run_ctl("apply", str(path), "--dry-run").stdout
    assert rows(connection, "SELECT FROM dataflow.job") == []
    assert run_ctl("apply", str(path)).stdout.splitlines() == [
        "+ dataset clean: created",
        "+ dataset raw: created",
        "+ job make_clean: created",
        "applied flow retail: 3 created",
    ]
    path.write_text(RETAIL + "priority = 3\n")
    changed = json.loads(run_ctl("apply", str(path), "--json").stdout)
    assert changed["applied"] is True
    assert changed["warnings"] == []
    assert {"kind": "job", "name": "make_clean", "action": "changed", "columns": ["priority"]} in changed[
        "changes"
    ]


def test_the_command_retires_only_when_told_so(
    run_ctl: RunCtl, connection: psycopg.Connection, tmp_path: Path
) -> None:
    path = tmp_path / "retail.toml"
    path.write_text(RETAIL)
    run_ctl("apply", str(path))
    path.write_text(RETAIL.partition("[dataset.clean]")[0])
    kept = run_ctl("apply", str(path), "--dry-run").stdout
    assert "no longer declared, and kept as it was: " in kept
    assert "; --prune retires it" in kept
    refused = run_ctl("apply", str(path), "--prune")
    assert refused.returncode == EXIT["NOT_ALLOWED"]
    assert "this would retire dataset clean, job make_clean" in refused.stderr
    assert rows(connection, "SELECT retired FROM dataflow.job") == [(None,)]
    assert "2 retired" in run_ctl("apply", str(path), "--prune", "--yes").stdout
    assert rows(connection, "SELECT retired IS NULL FROM dataflow.job") == [(False,)]


def test_the_command_needs_no_database_to_check(run_ctl: RunCtl, tmp_path: Path) -> None:
    path = tmp_path / "retail.toml"
    path.write_text(RETAIL)
    assert run_ctl("apply", str(path), "--check", env={"DATAFLOW_DSN": None}).returncode == 0
    assert not (tmp_path / "dataflowd").exists()
