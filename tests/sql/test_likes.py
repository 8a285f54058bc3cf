"""Jobs that run the code of another job: SQL creates them, each with its own source, partitioning and parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import World

CREATE: LiteralString = "SELECT kind, name, action FROM dataflow.create_job_like(%s, %s, %s, %s, %s, %s, %s)"


def partitioned(world: World, dataset: str, name: str, count: int = 2) -> None:
    batches = [{"dataid": f"{name}.{number}", "bounds": {}, "items": 5} for number in range(1, count + 1)]
    world.do(
        "SELECT dataflow.create_partitioning(%s, %s, ARRAY['id'], 'size', 5, %s)",
        dataset,
        name,
        Jsonb(batches),
    )


def flow(**changes: Any) -> dict[str, Any]:
    """The document that applying a flow file sends."""
    load = {
        "jobid": "load",
        "description": "All customers",
        "kind": "python",
        "params": {"currency": "USD", "least": 1},
        "max_attempts": 2,
        "max_lost": 5,
        "retry_delay": "0 seconds",
        "priority": 0,
        "strict_order": False,
        "inputs": {"customers": {"kind": "identity"}, "rates": {"kind": "fixed", "dataid": "v1"}},
        "outputs": ["loaded"],
        "config_hash": "c1",
    }
    names = {
        "customers": "/data/customers",
        "customers_eu": "/data/eu",
        "rates": "/data/rates",
        "loaded": "/data/loaded",
    }
    datasets = [
        {
            "datasetid": name,
            "format": "parquet",
            "location": location,
            "description": "",
            "options": {},
            "checks": {"min_rows": {"value": 1, "severity": "error"}} if name == "loaded" else {},
            "ordering": "natural",
            "publish": "pointer",
            "calendar_zone": "UTC",
            "calendar_ready": "end",
        }
        for name, location in names.items()
    ]
    return {"name": "shop", "datasets": datasets, "jobs": [load | changes]}


def apply(world: World, document: dict[str, Any], *, prune: bool = False) -> list[Any]:
    return world.rows("SELECT * FROM dataflow.apply_flow(%s, %s)", Jsonb(document), prune)


@pytest.fixture
def shop(world: World) -> World:
    apply(world, flow())
    world.ready("rates", "v1")
    partitioned(world, "customers", "size_5")
    partitioned(world, "customers_eu", "size_5")
    partitioned(world, "customers_eu", "every_2")
    return world


def create(  # noqa: PLR0913, PLR0917
    world: World,
    name: str = "load_eu",
    base: str = "load",
    sources: Any = None,
    partitioning: str | None = "size_5",
    params: Any = None,
    outputs: Any = None,
) -> list[Any]:
    given = {"": "customers_eu"} if sources is None else sources
    return world.rows(
        CREATE, name, base, Jsonb(given), partitioning, "Europe", Jsonb(params or {}), Jsonb(outputs or {})
    )


def order(world: World, attempt: Any) -> dict[str, Any]:
    found = world.value("SELECT dataflow.work_order(%s, %s)", attempt.attempt, attempt.token)
    assert isinstance(found, dict)
    return found


def test_a_job_that_is_bound_to_a_partitioning_runs_on_its_batches_alone(world: World) -> None:
    world.dataset("source")
    world.job("bound", {"source": {"kind": "partitioning", "name": "size_5"}}, "made")
    world.ready("source", "2026-01-01")
    partitioned(world, "source", "every_2")
    partitioned(world, "source", "size_5")
    assert world.queue() == world.rebuilt_queue() == {("bound", "size_5.1"), ("bound", "size_5.2")}
    assert world.rows("SELECT * FROM dataflow.required_inputs('bound', 'size_5.1')") == [
        ("source", "size_5.1")
    ]
    assert world.rows("SELECT * FROM dataflow.affected_runs('source', 'every_2.1')") == []
    assert "WRONG_DATA" in world.no("bound", "every_2.1")
    world.do("SELECT dataflow.delete_partitioning('source', 'size_5')")
    assert world.queue() == world.rebuilt_queue() == set()
    for job, wrong in {
        "a": {"kind": "partitioning"},
        "b": {"kind": "partitioning", "name": "x", "dataid": "y"},
    }.items():
        with pytest.raises(psycopg.Error, match="mapping of input source of job") as refused:
            world.job(job, {"source": wrong}, f"{job}s")
        assert refused.value.sqlstate == "DF400"


def test_a_job_is_created_like_another_and_told_of_its_datasets_by_the_names_in_the_code(shop: World) -> None:
    made = create(shop, params={"currency": "EUR", "least": "7"})
    assert made == [("dataset", "load_eu.loaded", "created"), ("job", "load_eu", "created")]
    [row] = shop.rows(
        """SELECT flow, description, inputs, outputs, params, like_job, max_attempts FROM dataflow.jobs WHERE jobid = 'load_eu'"""
    )
    assert row == (
        "job:load_eu",
        "Europe",
        ["customers_eu (size_5)", "rates (fixed)"],
        ["load_eu.loaded"],
        {"currency": "EUR", "least": 7},
        "load",
        2,
    )
    [place] = shop.rows("SELECT location, checks FROM dataflow.dataset WHERE datasetid = 'load_eu.loaded'")
    assert place == ("/data/loaded.load_eu", {"min_rows": {"value": 1, "severity": "error"}})
    assert shop.queue() == shop.rebuilt_queue()
    assert {run for run in shop.queue() if run[0] == "load_eu"} == {
        ("load_eu", "size_5.1"),
        ("load_eu", "size_5.2"),
    }
    daemon = shop.daemon()
    # A daemon that serves `load` also claims runs of `load_eu`, which has the same code.
    shop.do("SELECT dataflow.serve_jobs('alpha', incarnation, '{load}') FROM dataflow.daemon")
    attempt = next(each for each in daemon.claim() if each.job == "load_eu")
    told = order(shop, attempt)
    assert set(told["inputs"]) == {"customers", "rates"}
    customers, loaded = told["inputs"]["customers"]["dataset"], told["outputs"]["loaded"]["dataset"]
    assert (customers["name"], customers["stored_as"], customers["location"]) == (
        "customers",
        "customers_eu",
        "/data/eu",
    )
    assert (loaded["name"], loaded["stored_as"]) == ("loaded", "load_eu.loaded")
    assert "stored_as" not in told["inputs"]["rates"]["dataset"]
    assert told["config_hash"] == shop.value("SELECT config_hash FROM dataflow.job WHERE jobid = 'load_eu'")
    assert daemon.finish(attempt, outputs={"load_eu.loaded": {"rows": 1}}) == "accepted"
    assert shop.status("load_eu.loaded", attempt.dataid) == "READY"


def test_a_created_job_follows_the_flow_file_and_survives_its_pruning(shop: World) -> None:
    create(shop, params={"currency": "EUR"})
    before = shop.value("SELECT config_hash FROM dataflow.job WHERE jobid = 'load_eu'")
    wider = flow(max_attempts=5, params={"currency": "USD", "least": 3}, config_hash="c2")
    wider["datasets"][3] |= {"location": "/new/loaded", "checks": {}}
    apply(shop, wider, prune=True)
    [row] = shop.rows(
        "SELECT max_attempts, params, retired, config_hash <> %s FROM dataflow.job WHERE jobid = 'load_eu'",
        before,
    )
    assert row == (5, {"currency": "EUR", "least": 3}, None, True)
    [place] = shop.rows(
        "SELECT location, checks, retired FROM dataflow.dataset WHERE datasetid = 'load_eu.loaded'"
    )
    assert place == ("/new/loaded.load_eu", {}, None)
    # Applying the flow again with prune changes nothing: a created job does not belong to the file.
    assert {change[2] for change in apply(shop, wider, prune=True)} == {"unchanged"}
    assert shop.queue() == shop.rebuilt_queue()


def test_a_code_version_of_the_original_job_counts_for_the_created_one(shop: World) -> None:
    create(shop)
    daemon = shop.daemon()
    attempt = next(each for each in daemon.claim() if each.job == "load_eu")
    shop.do("SELECT dataflow.code_version('load', 'k1', 'c1', '{\"jobs.py\": \"1\"}', 'k1')")
    config = order(shop, attempt)["config_hash"]
    daemon.finish(attempt, outputs={"load_eu.loaded": {"rows": 1}}, code_hash="k1", config_hash=config)
    assert shop.rows("SELECT because FROM dataflow.stale WHERE jobid = 'load_eu'") == []
    shop.do("SELECT dataflow.code_version('load', 'k2', 'c1', '{\"jobs.py\": \"2\"}', 'k2')")
    assert shop.rows("SELECT because, changed FROM dataflow.stale WHERE jobid = 'load_eu'") == [
        (["CODE"], ["jobs.py"])
    ]


def test_a_created_job_may_have_the_same_source_and_another_partitioning(shop: World) -> None:
    partitioned(shop, "customers", "every_2")
    create(shop, "load_test", sources={}, partitioning="every_2")
    assert shop.rows("SELECT inputs FROM dataflow.jobs WHERE jobid = 'load_test'") == [
        (["customers (every_2)", "rates (fixed)"],)
    ]
    assert {run for run in shop.queue() if run[0] == "load_test"} == {
        ("load_test", "every_2.1"),
        ("load_test", "every_2.2"),
    }


def test_an_output_may_be_a_dataset_that_somebody_has_declared(shop: World) -> None:
    shop.dataset("mine", location="/elsewhere")
    assert create(shop, outputs={"loaded": "mine"}) == [("job", "load_eu", "created")]
    attempt = next(each for each in shop.daemon().claim() if each.job == "load_eu")
    told = order(shop, attempt)["outputs"]["loaded"]
    assert (told["dataset"]["stored_as"], told["location"]) == ("mine", "/elsewhere")


@pytest.mark.parametrize(
    ("given", "state", "said"),
    [
        ({"name": "1x"}, "DF400", "not a name: '1x'"),
        ({"name": "load"}, "DF409", "there is a job load already"),
        ({"base": "lod"}, "DF404", "there is no job lod"),
        ({"sources": {"": "nowhere"}}, "DF404", "there is no dataset nowhere"),
        ({"sources": {"orders": "customers_eu"}}, "DF404", "job load has no input 'orders'"),
        ({"sources": {"": "rates"}, "partitioning": None}, "DF409", "job load_eu would read rates twice"),
        ({"sources": {"": 1}}, "DF400", "the datasets of an input have to be an object of names"),
        ({"partitioning": "size_7"}, "DF404", "dataset customers_eu has no partitioning size_7"),
        ({"params": {"curency": "EUR"}}, "DF400", "job load has no parameter 'curency'"),
        ({"params": {"least": "many"}}, "DF400", "parameter least of job load is a whole number"),
        ({"outputs": {"": "loaded"}}, "DF409", "dataset loaded is made by job load"),
        ({"outputs": {"": "customers_eu"}}, "DF409", "job load_eu would write customers_eu, which it reads"),
        ({"name": "l" * 60}, "DF409", "would have a name of more than 63 characters"),
    ],
)
def test_a_wrong_creation_is_refused_and_changes_nothing(
    shop: World, given: dict[str, Any], state: str, said: str
) -> None:
    before = shop.everything()
    with pytest.raises(psycopg.Error) as refused:
        create(shop, **given)
    assert (refused.value.sqlstate, said in str(refused.value)) == (state, True), refused.value
    assert refused.value.diag.message_hint
    assert shop.everything() == before


def test_rows_of_two_jobs_do_not_go_into_one_table(world: World) -> None:
    world.dataset("customers")
    world.dataset("loaded", format="postgres", location=None, hostname="db", tablename="loaded")
    world.job("load", "customers", "loaded")
    with pytest.raises(psycopg.Error, match="needs an output of its own for loaded") as refused:
        create(world, sources={}, partitioning=None)
    assert "--output loaded=DATASET" in str(refused.value.diag.message_hint)


def test_a_flow_cannot_take_a_created_jobs_name_nor_retire_its_original(shop: World) -> None:
    create(shop)
    taken = flow()
    taken["jobs"].append(taken["jobs"][0] | {"jobid": "load_eu", "outputs": ["other"]})
    taken["datasets"].append(taken["datasets"][3] | {"datasetid": "other"})
    with pytest.raises(psycopg.Error, match="job load_eu belongs to flow job:load_eu") as refused:
        apply(shop, taken)
    assert "dataflowctl job drop load_eu" in str(refused.value.diag.message_hint)
    empty = flow() | {"jobs": []}
    with pytest.raises(psycopg.Error, match="job load would be retired, but job load_eu was created like it"):
        apply(shop, empty, prune=True)
    with pytest.raises(psycopg.Error, match="job load_eu was itself created like load"):
        create(shop, "third", base="load_eu")
    inputs = {"customers": {"kind": "identity"}}
    with pytest.raises(psycopg.Error, match="gives load an input customers, which that does not read"):
        apply(shop, flow(inputs={"rates": {"kind": "identity"}}))
    apply(shop, flow(inputs=inputs))
    assert shop.rows("SELECT inputs FROM dataflow.jobs WHERE jobid = 'load_eu'") == [
        (["customers_eu (size_5)"],)
    ]


def test_a_created_job_is_dropped_with_its_datasets_and_may_come_back(shop: World) -> None:
    create(shop)
    daemon = shop.daemon()
    attempts = [each for each in daemon.claim() if each.job == "load_eu"]
    with pytest.raises(psycopg.Error, match="job load_eu is running"):
        shop.rows("SELECT * FROM dataflow.drop_job('load_eu')")
    for attempt in attempts:
        daemon.finish(attempt, outputs={"load_eu.loaded": {"rows": 1}})
    before = shop.everything()
    shown = shop.rows("SELECT kind, name, action FROM dataflow.drop_job('load_eu', true)")
    assert shop.everything() == before
    assert shop.rows("SELECT kind, name, action FROM dataflow.drop_job('load_eu')") == shown
    assert shown == [("dataset", "load_eu.loaded", "retired"), ("job", "load_eu", "retired")]
    assert shop.queue() == shop.rebuilt_queue()
    with pytest.raises(psycopg.Error, match="job load was not created like another"):
        shop.rows("SELECT * FROM dataflow.drop_job('load')")
    assert create(shop)[1] == ("job", "load_eu", "created")
    assert shop.status("load_eu.loaded", "size_5.1") == "READY"


def test_a_daemon_without_the_original_job_does_not_claim_the_created_one(shop: World) -> None:
    create(shop)
    daemon = shop.daemon()
    shop.do("SELECT dataflow.serve_jobs('alpha', incarnation, '{other}') FROM dataflow.daemon")
    assert daemon.claim() == []
    [[code, remedy]] = shop.rows(
        "SELECT code, remedy FROM dataflow.why('load_eu', 'size_5.1') WHERE code = 'NOT_SERVED'"
    )
    assert (code, "(shop)" in remedy) == ("NOT_SERVED", True)
    assert shop.value("SELECT dataflow.code_of('load_eu')") == "load"
