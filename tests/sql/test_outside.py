"""Runs that another program executes: they are claimed, fenced and ended as every other run, and have their own lease."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from dataflowd.model.work_order import attempt_location

if TYPE_CHECKING:
    from tests.fix_world import World

DAY = "2026-01-01"
NOBODY = "00000000-0000-0000-0000-000000000000"


def begin(world: World, job: str = "train", dataid: str | None = None, **arguments: Any) -> dict[str, Any]:
    [row] = begun(world, job, dataid, **arguments)
    return row


def begun(world: World, job: str = "train", dataid: str | None = None, **given: Any) -> list[dict[str, Any]]:
    """Begins a run in a session that ends at once, as a command does."""
    arguments = {"lease": "1 hour", "environment": "dev", "executor": "notebook", "prepared": True} | given
    function = "begin_instead" if arguments.pop("instead", False) else "begin_run"
    statement = sql.SQL(
        "SELECT * FROM dataflow.{}(%(job)s, %(dataid)s, lease => %(lease)s, environment => %(environment)s,"
        " executor => %(executor)s, prepared => %(prepared)s)"
    ).format(sql.Identifier(function))
    with psycopg.connect(world.dsn, autocommit=True, row_factory=dict_row) as connection:
        return connection.execute(statement, arguments | {"job": job, "dataid": dataid}).fetchall()


def end(world: World, handle: str, outcome: str = "DONE", **given: Any) -> str:
    verdict: str = world.value(
        "SELECT dataflow.end_run(%s, %s, %s, %s, %s)",
        *(handle, outcome, given.get("reason"), given.get("rows"), Jsonb(given.get("result", {}))),
    )
    return verdict


def renew(world: World, handle: str) -> Any:
    return world.value("SELECT dataflow.renew_run(%s)", handle)


def lease_ends(world: World) -> None:
    world.as_framework(
        "UPDATE dataflow.attempt SET lease_until = clock_timestamp() - interval '1 second' WHERE ended IS NULL"
    )


@pytest.fixture
def outside(world: World) -> World:
    """Raw -> train (executed outside) -> model -> report (executed by a daemon) -> sums. The model has no files to list."""
    world.dataset("model", format="none", location=None)
    world.job("train", "raw", "model", kind="outside")
    world.job("report", "model", "sums")
    return world


def test_a_run_is_begun_in_order_and_published_by_its_end(outside: World) -> None:
    outside.ready("raw", "10", "2")
    attempt = begin(outside)
    assert (attempt["jobid"], attempt["dataid"], attempt["number"]) == ("train", "2", 1)
    assert attempt["work_order"]["inputs"]["raw"]["chunks"][0]["location"] == "/data/raw/2"
    assert (outside.status("model", "2"), outside.consumed("raw", "2", "train")) == ("RUNNING", "RUNNING")
    assert end(outside, attempt["handle"], rows=7) == "accepted"
    assert (outside.status("model", "2"), outside.consumed("raw", "2", "train")) == ("READY", "DONE")
    assert outside.rows("SELECT rows, version FROM dataflow.manifest") == [(7, 1)]
    assert outside.daemon().runs() == {("report", "2")}
    assert begin(outside)["dataid"] == "10"


def test_no_daemon_claims_what_is_executed_outside(outside: World) -> None:
    outside.ready("raw", DAY)
    daemon = outside.daemon()
    assert daemon.runs() == set()
    daemon.connection.execute(
        "SELECT dataflow.serve_jobs('alpha', %s, '{train,report}')", [daemon.incarnation]
    )
    assert daemon.runs() == set()
    with pytest.raises(psycopg.Error, match="job train is executed outside") as refused:
        daemon.connection.execute(
            "SELECT dataflow.claim_run('alpha', %s, 'train', %s)", [daemon.incarnation, DAY]
        )
    assert refused.value.diag.message_hint == "dataflowctl begin train"
    assert outside.queue() == {("train", DAY)}
    found = outside.rows("SELECT code, remedy FROM dataflow.why('train', %s) WHERE number = 8", DAY)
    assert found == [("OUTSIDE", "dataflowctl begin train")]
    assert outside.rows("SELECT code FROM dataflow.needs_hand()") == []


def test_what_daemons_execute_is_begun_only_instead_of_them(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    before = pipeline.everything()
    with pytest.raises(psycopg.Error, match="job clean_orders is executed by daemons"):
        begin(pipeline, "clean_orders")
    assert pipeline.everything() == before
    attempt = begin(pipeline, "clean_orders", instead=True)
    assert pipeline.daemon().runs() == set()
    files = {"outputs": {"clean": {"files": [{"path": "a.parquet", "bytes": 9}], "rows": 3}}}
    assert end(pipeline, attempt["handle"], result=files) == "accepted"
    assert pipeline.daemons[0].runs() == {("sum_orders", DAY)}


def test_the_daemon_row_that_begin_registers_is_removed_again(outside: World) -> None:
    outside.ready("raw", DAY)
    begin(outside)
    assert outside.rows("SELECT * FROM dataflow.daemon") == []
    assert outside.rows("SELECT daemon FROM dataflow.attempt") == [("notebook",)]
    assert outside.rows("SELECT * FROM pg_locks WHERE locktype = 'advisory'") == []


def test_limits_pauses_and_questions_hold_outside_too(outside: World) -> None:
    assert begun(outside) == []
    outside.ready("raw", "1", "2")
    outside.do("SELECT dataflow.set_concurrency('job:train', 1)")
    first = begin(outside)
    assert begun(outside) == []
    with pytest.raises(psycopg.Error, match="the limit of job:train, 1 attempt, is reached"):
        begin(outside, dataid="2")
    assert end(outside, first["handle"], "FAILED", reason="no licence") == "accepted"
    outside.do("SELECT dataflow.pause('job:train')")
    assert begun(outside) == []
    outside.do("SELECT dataflow.pause('job:train', false)")
    outside.do("SELECT dataflow.hold('raw', '2')")
    assert begun(outside, dataid="2") == begun(outside) == []
    outside.do("SELECT dataflow.release('raw', '2')")
    assert begin(outside, dataid="2")["dataid"] == "2"


def test_the_limit_of_an_executor_counts_only_its_own_runs(pipeline: World) -> None:
    pipeline.job("train", "raw", "model", kind="outside")
    pipeline.ready("raw", "1", "2", "3")
    pipeline.do("SELECT dataflow.set_concurrency('daemon:notebook', 1)")
    first = begin(pipeline)
    assert begun(pipeline) == []
    assert begun(pipeline, "clean_orders", instead=True) == []
    with pytest.raises(psycopg.Error, match="the limit of daemon:notebook, 1 attempt, is reached"):
        begin(pipeline, dataid="2")
    assert begin(pipeline, executor="appliance")["dataid"] == "2"
    assert pipeline.value("SELECT running FROM dataflow.limits WHERE scope = 'daemon:notebook'") == 1
    assert end(pipeline, first["handle"], result={"outputs": {"model": {"files": []}}}) == "accepted"
    pipeline.do("SELECT dataflow.pause('daemon:notebook')")
    assert begun(pipeline) == []
    pipeline.do("SELECT dataflow.pause('daemon:notebook', false)")
    assert begin(pipeline)["dataid"] == "3"
    assert len(pipeline.daemon().claim()) == 3


def test_what_an_executor_left_behind_of_another_job_does_not_count_when_its_lease_has_ended(
    outside: World,
) -> None:
    """The next begin frees the place by itself: no daemon runs that would call rescue()."""
    outside.dataset("scores", format="none", location=None)
    outside.job("score", "raw", "scores", kind="outside")
    outside.do("SELECT dataflow.set_concurrency('daemon:notebook', 1)")
    outside.ready("raw", "1")
    begin(outside, "train", "1")
    assert begun(outside, "score") == []
    lease_ends(outside)
    assert begin(outside, "score")["dataid"] == "1"


def test_two_concurrent_begins_under_one_name_keep_to_its_limit(outside: World) -> None:
    outside.ready("raw", "1", "2")
    outside.do("SELECT dataflow.set_concurrency('daemon:notebook', 1)")
    with ThreadPoolExecutor(2) as both:
        found = list(both.map(lambda _: begun(outside), range(2)))
    assert sorted(map(len, found)) == [0, 1]


def test_datasets_of_another_environment_are_not_written(outside: World) -> None:
    outside.as_framework("UPDATE dataflow.dataset SET environment = 'prod' WHERE datasetid = 'model'")
    outside.ready("raw", DAY)
    assert begun(outside) == []
    assert begin(outside, environment="prod")["dataid"] == DAY


def test_an_expired_lease_is_enough_for_a_rescue_and_a_living_one_is_not(outside: World) -> None:
    outside.ready("raw", DAY)
    zombie = begin(outside)
    rescue: LiteralString = "SELECT jobid, dataid, daemon FROM dataflow.rescue()"
    assert outside.rows(rescue) == []
    lease_ends(outside)
    assert outside.rows(rescue) == [("train", DAY, "notebook")]
    assert outside.rows("SELECT outcome, error FROM dataflow.attempt") == [
        ("LOST", "notebook has neither ended it nor renewed its lease")
    ]
    heir = begin(outside)
    assert (heir["dataid"], heir["number"]) == (DAY, 2)
    assert renew(outside, zombie["handle"]) is None
    assert end(outside, zombie["handle"]) == "fenced"
    assert outside.rows("SELECT * FROM dataflow.run_order(%s)", zombie["handle"]) == []
    assert end(outside, heir["handle"]) == "accepted"


def test_without_a_daemon_the_next_begin_rescues(outside: World) -> None:
    outside.ready("raw", DAY)
    begin(outside)
    lease_ends(outside)
    assert begin(outside)["number"] == 2
    assert outside.outcomes("train", DAY) == ["LOST", None]


def test_renewal_prolongs_the_lease_up_to_the_timeout(outside: World) -> None:
    outside.ready("raw", DAY)
    attempt = begin(outside, lease="2 minutes")
    until = renew(outside, attempt["handle"])
    assert until > attempt["lease_until"]
    outside.as_framework("UPDATE dataflow.job SET timeout = '5 minutes' WHERE jobid = 'train'")
    at_most = outside.value("SELECT claimed + interval '5 minutes' FROM dataflow.attempt")
    assert renew(outside, attempt["handle"]) == at_most
    # The lease has expired, but no rescue has come between: the attempt may still renew it.
    lease_ends(outside)
    assert renew(outside, attempt["handle"]) is not None
    assert outside.rows("SELECT * FROM dataflow.rescue()") == []


def test_a_cancelled_run_waits_until_its_executor_lets_go_or_the_lease_ends(
    outside: World,
) -> None:
    outside.ready("raw", DAY)
    attempt = begin(outside)
    outside.do("SELECT dataflow.cancel('train', %s)", DAY)
    assert renew(outside, attempt["handle"]) is None
    outside.resubmit(job="train")
    assert begun(outside) == []
    assert end(outside, attempt["handle"], "RETURNED") == "fenced"
    outside.later()
    again = begin(outside)
    outside.do("SELECT dataflow.cancel('train', %s)", DAY)
    outside.resubmit(job="train")
    outside.as_framework("UPDATE dataflow.attempt SET lease_until = clock_timestamp() - interval '1 second'")
    outside.later()
    assert begin(outside)["number"] == again["number"] + 1


def test_failures_are_retried_and_what_is_given_back_spends_no_try(outside: World) -> None:
    outside.as_framework("UPDATE dataflow.job SET max_attempts = 2 WHERE jobid = 'train'")
    outside.ready("raw", DAY)
    assert end(outside, begin(outside)["handle"], "RETURNED") == "accepted"
    assert (
        end(outside, begin(outside)["handle"], "FAILED", reason="out of memory", result={"code": "OOM"})
        == "accepted"
    )
    outside.later()
    assert end(outside, begin(outside)["handle"], "FAILED", reason="out of memory") == "accepted"
    outside.later()
    assert begun(outside) == []
    found = outside.rows("SELECT outcome, code, error, tries FROM dataflow.attempt ORDER BY attempt")
    assert found == [
        ("RETURNED", "RETURNED", None, 1),
        ("FAILED", "OOM", "out of memory", 1),
        ("FAILED", "FAILED", "out of memory", 2),
    ]


def test_a_handle_cannot_be_made_of_what_readers_see(outside: World) -> None:
    outside.ready("raw", DAY)
    attempt = begin(outside)
    token = attempt["handle"].partition(".")[2]
    with outside.connection.transaction(force_rollback=True):
        outside.do("SET LOCAL ROLE dataflow_reader")
        for table in ("event", "datastatus", "work", "manifest"):
            seen = sql.SQL("SELECT * FROM dataflow.{}").format(sql.Identifier(table))
            assert token not in str(outside.connection.execute(seen).fetchall())
    with pytest.raises(psycopg.Error, match="there is no attempt with this handle") as refused:
        renew(outside, f"{attempt['attempt']}.{NOBODY}")
    assert NOBODY not in str(refused.value)
    with pytest.raises(psycopg.Error, match="this is no handle") as refused:
        end(outside, f"{token}")
    assert token not in str(refused.value)


def test_the_token_of_a_daemons_attempt_is_no_handle(outside: World) -> None:
    outside.ready("model", DAY)
    attempt = outside.daemon().claim_one()
    with pytest.raises(psycopg.Error, match="there is no attempt with this handle"):
        end(outside, f"{attempt.attempt}.{attempt.token}")


PLACES = {
    # location, how it is published, and the root below which a host would write to the same directory
    "plain": ("/data/plain", "pointer", "/data/plain"),
    "named": ("/data/{dataid}/named/", "pointer", "/data"),
    "fixed": ("/data/fixed", "rename", "/data/fixed"),
}


@pytest.fixture
def several(world: World) -> World:
    for name, (location, publish, _) in PLACES.items():
        world.dataset(name, location=location, publish=publish)
    world.job("train", "raw", list(PLACES), kind="outside")
    world.ready("raw", DAY)
    return world


def test_what_is_published_lies_in_the_directories_of_the_attempt(several: World) -> None:
    attempt = begin(several)
    number = attempt["attempt"]
    written = {
        name: attempt_location(location, DAY, number, [root]) for name, (location, _, root) in PLACES.items()
    }
    assert attempt["outputs"] == written
    files = [{"path": "a.parquet", "bytes": 9}]
    for forged in (
        "/etc",
        written["plain"].replace(f"={number}", "=1000"),
        written["plain"].replace(DAY, "x"),
    ):
        told = {name: {"files": files} for name in PLACES} | {"plain": {"location": forged, "files": files}}
        with pytest.raises(
            psycopg.Error, match="the location of output plain is not the directory of this attempt"
        ):
            end(several, attempt["handle"], result={"outputs": told})
    # A host may name the attempt's directory below its own root.
    elsewhere = attempt_location("/data/plain", DAY, number, ["/data"])
    told = {name: {"files": files} for name in PLACES} | {"plain": {"location": elsewhere, "files": files}}
    assert end(several, attempt["handle"], result={"outputs": told}) == "accepted"
    found: dict[str, str] = dict(several.rows("SELECT datasetid, location FROM dataflow.manifest"))
    assert found == written | {"plain": elsewhere}


def test_an_end_reports_every_declared_check_and_a_failed_one_fails_the_run(outside: World) -> None:
    check = Jsonb({"min_rows": {"value": 5, "severity": "error"}})
    outside.connection.execute("UPDATE dataflow.dataset SET checks = %s WHERE datasetid = 'model'", [check])
    outside.ready("raw", DAY)
    attempt = begin(outside)
    with pytest.raises(psycopg.Error, match="no result is told of the check min_rows of output model"):
        end(outside, attempt["handle"], rows=3)
    told = {
        "dataset": "model",
        "name": "min_rows",
        "passed": False,
        "observed": "3",
        "expected": "at least 5",
    }
    assert end(outside, attempt["handle"], rows=3, result={"checks": [told]}) == "accepted"
    assert outside.status("model", DAY) == "FAILED"
    assert outside.rows("SELECT code, error FROM dataflow.attempt") == [
        ("CHECK_FAILED", "model: min_rows: observed 3, expected at least 5")
    ]
    assert outside.rows("SELECT name, passed FROM dataflow.check_result") == [("min_rows", False)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outcome": "READY"}, "a run cannot end as 'READY'"),
        ({"outcome": "FAILED"}, "a run that has failed needs a reason"),
        ({"rows": -1}, "not a number of rows: -1"),
        ({"result": {"colour": 1}}, "a result has no colour"),
        ({"result": {"outputs": {"raw": {}}}}, "job train has no output raw"),
        ({"result": {"outputs": {"model": {"colour": 1}}}}, "an output has no model.colour"),
        ({"result": {"outputs": {"model": []}}}, "the result cannot be read"),
        (
            {"result": {"outputs": {"model": {"rows": "many"}}}},
            "the result holds a value that cannot be stored",
        ),
        ({"outcome": "FAILED", "reason": "x", "result": {"code": "bad feed"}}, "not a code: bad feed"),
    ],
)
def test_an_end_that_is_wrong_changes_nothing(
    outside: World, arguments: dict[str, Any], message: str
) -> None:
    outside.ready("raw", DAY)
    attempt = begin(outside)
    before = outside.everything()
    with pytest.raises(psycopg.Error, match=message) as refused:
        end(outside, attempt["handle"], **arguments)
    assert refused.value.sqlstate == "DF400"
    assert refused.value.diag.message_hint
    assert outside.everything() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lease": "0"}, "a lease cannot be as long as 00:00:00"),
        ({"lease": "31 days"}, "a lease cannot be as long as 31 days"),
        ({"executor": "a b"}, "not a name for what executes a run: 'a b'"),
        ({"environment": None}, "environment and prepared cannot be NULL"),
        ({"dataid": "../x"}, "not a dataid"),
        ({"job": "nobody"}, "there is no job nobody"),
    ],
)
def test_a_begin_that_is_wrong_changes_nothing(
    outside: World, arguments: dict[str, Any], message: str
) -> None:
    outside.ready("raw", DAY)
    before = outside.everything()
    with pytest.raises(psycopg.Error, match=message):
        begin(outside, **arguments)
    assert outside.everything() == before


def test_an_end_without_the_files_of_an_output_is_refused(outside: World) -> None:
    outside.as_framework(
        "UPDATE dataflow.dataset SET format = 'csv', location = '/data/model' WHERE datasetid = 'model'"
    )
    outside.ready("raw", DAY)
    attempt = begin(outside)
    with pytest.raises(psycopg.Error, match="the files of output model are not told"):
        end(outside, attempt["handle"], rows=3)


def test_a_begin_that_is_taken_back_leaves_the_run_to_others(outside: World) -> None:
    outside.ready("raw", DAY)
    with outside.session() as person:
        person.execute("SELECT handle FROM dataflow.begin_run('train')")
        person.rollback()
        assert begin(outside)["dataid"] == DAY


def test_what_executes_a_run_has_no_name_of_a_daemon_and_its_transaction_does_not_stay_open(
    outside: World,
) -> None:
    outside.daemon()
    with pytest.raises(psycopg.Error, match="alpha is the name of a daemon") as refused:
        outside.rows("SELECT * FROM dataflow.begin_run('train', executor => 'alpha')")
    assert refused.value.sqlstate == "DF409"
    with outside.connection.transaction():
        outside.rows("SELECT * FROM dataflow.begin_run('train')")
        assert outside.value("SHOW idle_in_transaction_session_timeout") == "5s"
    assert outside.value("SHOW idle_in_transaction_session_timeout") != "5s"


def test_words_that_are_named_like_secrets_are_not_kept(outside: World) -> None:
    outside.ready("raw", DAY)
    [attempt] = outside.rows("SELECT attempt, handle FROM dataflow.begin_run('train')")
    token = attempt[1].partition(".")[2]
    words = ["--password", "hunter2", "--api-key=abc", "postgres://u:pw@h/db", "key", "plain"]
    assert outside.value("SELECT dataflow.add_words(%s, %s, %s)", attempt[0], token, words)
    assert outside.value("SELECT words FROM dataflow.attempt WHERE attempt = %s", attempt[0]) == [
        "--password",
        "***",
        "--api-key=***",
        "postgres://u:***@h/db",
        "key",
        "plain",
    ]
