"""A replay of repaired records alone: when it is possible, what its work order has, and that all other records stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import Attempt, Daemon, World

DAY = "2026-01-01"
FILES = [{"path": "part-1.parquet", "bytes": 9}]
MADE = {"code_hash": "k1", "config_hash": "c1"}


def bad(item: str) -> dict[str, Any]:
    return {"item": item, "reason": "no amount", "details": {"record": {"id": item}, "mark": f"M{item}"}}


def finished(daemon: Daemon, attempt: Attempt, rows: int, **details: Any) -> None:
    outputs = {"orders": {"rows": rows, "files": FILES, "columns": "id string"}}
    nodes = [{"node": "no amount", "items": 10, "successes": 7, "failures": 3}]
    assert daemon.finish(attempt, outputs=outputs, nodes=nodes, **(MADE | details)) == "accepted"


@pytest.fixture
def shop(world: World) -> World:
    world.dataset("raw", "rates")
    inputs = {"raw": {"kind": "identity"}, "rates": {"kind": "fixed", "dataid": "v1"}}
    world.job("clean", inputs, "orders", rowwise=True, code_hash="k1", config_hash="c1")
    world.ready("raw", DAY)
    world.ready("rates", "v1")
    daemon = world.daemon()
    finished(daemon, daemon.claim_one(), 7, quarantine=[bad(item) for item in "abc"])
    return world


def resolve(shop: World, **resolutions: dict[str, Any]) -> None:
    records = [{"dataid": DAY, "itemid": item, "resolution": each} for item, each in resolutions.items()]
    shop.do("SELECT dataflow.resolve_records('clean', %s)", Jsonb(records))


def replay(shop: World, *, dry_run: bool = False) -> list[Any]:
    return shop.rows("SELECT way, because FROM dataflow.replay_rows('clean', dry_run => %s)", dry_run)


def told(shop: World, attempt: Attempt) -> Any:
    document = shop.value("SELECT dataflow.work_order(%s, %s)", attempt.attempt, attempt.token)
    assert isinstance(document, dict)
    return document.get("replay")


def records(shop: World) -> list[Any]:
    return shop.rows(
        "SELECT itemid, is_resolved, applied IS NOT NULL FROM dataflow.quarantine ORDER BY itemid"
    )


def test_an_attempt_is_told_the_records_and_what_they_are_added_to(shop: World) -> None:
    resolve(shop, a={"repaired": {"id": "7"}}, b={"reason": "a test"})
    before = shop.everything()
    assert replay(shop, dry_run=True) == [("rows", None)]
    assert shop.everything() == before
    assert replay(shop) == [("rows", None)]
    daemon = shop.daemon("beta")
    attempt = daemon.claim_one()
    found = told(shop, attempt)
    assert (found["rows"], found["files"], found["columns"], found["inputs"]) == (
        7,
        FILES,
        "id string",
        ["raw"],
    )
    assert (found["dropped"], found["aside"], found["nodes"][0]["items"]) == (1, 1, 10)
    assert found["records"][0] == {
        "code": "BAD_RECORD",
        "reason": "no amount",
        "mark": "Ma",
        "is_dropped": False,
        "repaired": {"id": "7"},
        "columns": {"id": "a"},
    }
    assert [record["is_dropped"] for record in found["records"]] == [False, True]
    # The replayed records are applied, and the unresolved one stays open.
    finished(daemon, attempt, 8, applied=True, replayed=True)
    assert records(shop) == [("a", True, True), ("b", True, True), ("c", False, False)]
    assert shop.rows("SELECT * FROM dataflow.row_replay") == []
    assert replay(shop) == []
    assert shop.rows("SELECT because FROM dataflow.stale") == []
    resolve(shop, c={"repaired": {"id": "9"}})
    assert replay(shop) == [("rows", None)]
    last = told(shop, daemon.claim_one())
    assert (last["attempt"], last["rows"], len(last["records"]), last["dropped"]) == (
        attempt.attempt,
        8,
        1,
        1,
    )


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ("UPDATE dataflow.job SET rowwise = false", "the job does not say rowwise = true"),
        ("UPDATE dataflow.job SET kind = 'sql'", "a job of the kind sql is always run whole"),
        (
            "UPDATE dataflow.dataset SET format = 'csv'",
            "orders is csv: rows can be added to Parquet, ORC and JSON",
        ),
        ("UPDATE dataflow.job SET code_hash = 'k2'", "other code or configuration made what is published"),
        ('UPDATE dataflow.job_input SET mapping = \'{"kind": "identity"}\'', "the job reads several inputs"),
        ('UPDATE dataflow.quarantine SET details = \'{"record": "cut o"}\'', "a record is not stored whole"),
        ("SELECT dataflow.ready('raw', '2026-01-01', true, 'again')", "its input has a newer version"),
        (
            "UPDATE dataflow.datastatus SET status = 'FAILED' WHERE datasetid = 'orders'",
            "the chunk is FAILED",
        ),
    ],
)
def test_a_chunk_that_cannot_be_replayed_by_rows_is_made_as_a_whole_with_the_reason(
    shop: World, change: Any, because: str
) -> None:
    resolve(shop, a={"repaired": {"id": "7"}})
    shop.ready("rates", DAY)
    shop.do(change)
    [[way, said]] = replay(shop)
    assert (way, because in said) == ("whole", True), said
    assert told(shop, shop.daemon("beta").claim_one()) is None


def test_a_record_that_was_published_in_another_form_takes_the_whole_chunk(shop: World) -> None:
    resolve(shop, a={"repaired": {"id": "7"}})
    replay(shop)
    daemon = shop.daemon("beta")
    finished(daemon, daemon.claim_one(), 8, applied=True, replayed=True)
    resolve(shop, a={"repaired": {"id": "8"}})
    assert replay(shop, dry_run=True) == [
        ("whole", "what is published holds an earlier resolution of a record")
    ]
    shop.do("SELECT dataflow.unresolve('clean', %s, '{a}')", DAY)
    [[way, because]] = replay(shop, dry_run=True)
    assert (way, "was opened again" in because) == ("whole", True)
    shop.do("SELECT dataflow.resolve('clean', %s, '{a}')", DAY)
    assert replay(shop) == [("whole", "what is published holds an earlier resolution of a record")]
    finished(daemon, daemon.claim_one(), 7, applied=True, quarantine=[bad("b"), bad("c")])
    resolve(shop, b={"repaired": {"id": "8"}})
    assert replay(shop) == [("rows", None)]


def test_a_change_between_replay_and_claim_makes_the_whole_chunk_again(shop: World) -> None:
    resolve(shop, a={"repaired": {"id": "7"}})
    assert replay(shop) == [("rows", None)]
    shop.do("SELECT dataflow.code_version('clean', 'k2', 'c1')")
    daemon = shop.daemon("beta")
    attempt = daemon.claim_one()
    assert told(shop, attempt) is None
    finished(daemon, attempt, 8, applied=True, code_hash="k2", quarantine=[bad("b"), bad("c")])
    resolve(shop, b={"repaired": {"id": "7"}})
    assert replay(shop) == [("rows", None)]
    attempt = daemon.claim_one()
    assert told(shop, attempt) is not None
    # After a failed replay, the resubmit makes the whole chunk.
    daemon.fail(attempt, retry=False)
    shop.resubmit(job="clean", status=["FAILED"])
    assert told(shop, daemon.claim_one()) is None


def test_a_record_that_is_bad_again_is_open_again_and_the_others_stay_resolved(shop: World) -> None:
    resolve(shop, a={"repaired": {"id": "7"}})
    replay(shop)
    daemon = shop.daemon("beta")
    finished(daemon, daemon.claim_one(), 7, applied=True, replayed=True, quarantine=[bad("a")])
    assert records(shop) == [("a", False, False), ("b", False, False), ("c", False, False)]
