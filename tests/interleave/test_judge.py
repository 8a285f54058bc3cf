"""The second judge finds each row that a test breaks by hand, and its mappings agree with the functions in sql/."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, LiteralString
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from tests.judge import inputs_of, judge, look, natural_key, runs_of

if TYPE_CHECKING:
    from tests.fix_world import World

ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "America/Santiago"]
UNITS = ["hour", "day", "week", "month", "year"]


@pytest.fixture
def shop(world: World) -> World:
    """One run is done, one is running, one is queued, one waits; and there is a strict job with two outputs."""
    world.job("clean", ["raw", "rates"], "cleaned", max_attempts=2)
    world.job("ledger", "raw", ["book", "pages"], strict_order=True)
    world.ready("raw", "1", "2", "3", "4")
    world.ready("rates", "1", "2", "3")
    alpha = world.daemon("alpha")
    alpha.finish(*[each for each in alpha.claim() if each.dataid == "1"])
    world.do("SELECT dataflow.cancel('clean', '3')")
    world.set_status("cleaned", "3", "RESUBMIT")
    world.do("SELECT dataflow.settle()")
    assert judge(world.connection) == []
    return world


BROKEN: list[tuple[str, str, list[LiteralString]]] = [
    ("missing", "clean/3 is ready", ["DELETE FROM dataflow.work"]),
    (
        "queued_not_ready",
        "clean/4 is queued, but rates/4 is not there",
        ["INSERT INTO dataflow.work (jobid, dataid, sortkey) VALUES ('clean', '4', '')"],
    ),
    (
        "queued_not_ready",
        "ledger/3 is queued, but 2 comes first",
        ["INSERT INTO dataflow.work (jobid, dataid, sortkey) VALUES ('ledger', '3', '')"],
    ),
    (
        "counters",
        "book/ledger/OUT/READY",
        ["UPDATE dataflow.counter SET chunks = chunks + 1 WHERE datasetid = 'book'"],
    ),
    (
        "counters",
        "/clean/WORK/QUEUED",
        ["INSERT INTO dataflow.counter VALUES ('', 'clean', 'WORK', 'QUEUED', 1)"],
    ),
    ("open_run", "ledger/1 has a row", ["INSERT INTO dataflow.open_run VALUES ('ledger', '', '1')"]),
    ("open_run", "ledger/4 is open", ["DELETE FROM dataflow.open_run WHERE dataid = '4'"]),
    ("recheck", "clean/1", ["INSERT INTO dataflow.recheck (jobid, dataid) VALUES ('clean', '1')"]),
    ("lock", "is no run's", ["SELECT pg_advisory_lock(1)"]),
    ("lock", "clean/1 is held", ["SELECT pg_advisory_lock(dataflow._run_lock('clean', '1'))"]),
    (
        "lock",
        "clean/2 is held by",
        ["UPDATE dataflow.daemon SET session_pid = pg_backend_pid()"],
    ),
    (
        "lock",
        "clean/2 runs, and its daemon alpha has no lock",
        ["UPDATE dataflow.daemon SET session_pid = pg_backend_pid()"],
    ),
    (
        "attempt",
        "OUT cleaned/2 is RUNNING for clean/2, which is not alive",
        [
            "UPDATE dataflow.attempt SET ended = now(), outcome = 'LOST' WHERE jobid = 'clean' AND dataid = '2'"
        ],
    ),
    (
        "attempt",
        "IN raw/2 is RUNNING for clean/2, which is not alive",
        [
            "UPDATE dataflow.attempt SET ended = now(), outcome = 'LOST' WHERE jobid = 'clean' AND dataid = '2'"
        ],
    ),
    (
        "attempt",
        "clean/2 is alive, and does not hold IN rates/2",
        ["DELETE FROM dataflow.datastatus WHERE locktype = 'IN' AND datasetid = 'rates' AND dataid = '2'"],
    ),
    (
        "attempt",
        "clean/2 is alive, and does not hold OUT cleaned/2",
        ["UPDATE dataflow.datastatus SET status = 'FAILED' WHERE datasetid = 'cleaned' AND dataid = '2'"],
    ),
    (
        "attempt",
        "clean/2 has several live attempts",
        [
            "DROP INDEX dataflow.attempt_live",
            (
                "UPDATE dataflow.attempt SET ended = NULL, outcome = NULL, dataid = '2', number = 9"
                " WHERE jobid = 'clean' AND dataid = '1'"
            ),
        ],
    ),
    (
        "producer",
        "cleaned/2 names 'x'",
        ["UPDATE dataflow.datastatus SET jobid = 'x' WHERE datasetid = 'cleaned' AND locktype = 'OUT'"],
    ),
    ("limit", "global allows 0", ["UPDATE dataflow.control SET concurrency = 0"]),
    ("limit", "job:clean allows 0", ["UPDATE dataflow.job SET max_running = 0"]),
    ("limit", "daemon:alpha allows 0", ["INSERT INTO dataflow.control VALUES ('daemon:alpha', 0)"]),
]


@pytest.mark.parametrize(
    ("kind", "what", "statements"), BROKEN, ids=[f"{kind}: {what}" for kind, what, _ in BROKEN]
)
def test_the_judge_names_each_row_that_was_broken(
    shop: World, kind: str, what: str, statements: list[LiteralString]
) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as hand:
        hand.execute("SET session_replication_role = replica")
        for statement in statements:
            hand.execute(statement)
        found = judge(shop.connection)
    assert [each for each in found if each.kind == kind and what in each.text], found


def test_the_judge_finds_ready_runs_from_the_tables_alone(shop: World) -> None:
    ready = {("clean", "3"), ("ledger", "2")}
    assert look(shop.connection).ready == ready
    shop.ready("rates", "4", validated=False)
    assert look(shop.connection).ready == ready
    shop.do("SELECT dataflow.validated('rates', '4')")
    assert look(shop.connection).ready == ready | {("clean", "4")}
    shop.do("SELECT dataflow.hold('raw', '3')")
    assert look(shop.connection).ready == {("clean", "4"), ("ledger", "2")}


# --- mappings ---

numbers = st.integers(0, 10**18 - 1) | st.integers(0, 40)
moments = st.integers(0, 400 * 366 * 24).map(
    lambda hours: datetime(1900, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
)
periods = st.tuples(st.sampled_from(["%Y-%m-%dT%H", "%Y-%m-%d", "%G-W%V", "%Y-%m", "%Y"]), moments).map(
    lambda made: made[1].strftime(made[0])
)
odd = st.sampled_from(
    [
        *("all", "base", "007", "2026-02-29", "2024-02-29", "2026-W53", "2020-W53", "2021-W53", "9999-12-31"),
        *(
            "0001-01-01",
            "0000-01-01",
            "2026-13",
            "2026-1-1",
            "9999-12-31T23",
            "2026-01-01T24",
            "a.9",
            "0",
            "9999",
        ),
    ]
)
dataids = numbers.map(str) | periods | odd
mappings = st.one_of(
    st.just({"kind": "identity"}),
    st.builds(
        lambda by, unit: {"kind": "offset", "by": by, "unit": unit},
        st.integers(-400, 400),
        st.sampled_from([*UNITS, "number"]),
    ),
    st.builds(lambda size: {"kind": "window", "size": size}, st.integers(1, 50)),
    st.builds(
        lambda last, unit: {"kind": "window", "last": last, "unit": unit},
        st.integers(1, 40),
        st.sampled_from([*UNITS, "number"]),
    ),
    st.builds(
        lambda units, zone: {"kind": "window", "from": units[0], "to": units[1], "zone": zone},
        st.sampled_from(
            [
                ("hour", "day"),
                ("hour", "week"),
                ("hour", "month"),
                ("day", "week"),
                ("day", "month"),
                ("day", "year"),
                ("month", "year"),
            ]
        ),
        st.sampled_from(ZONES),
    ),
    st.just({"kind": "all", "dataids": ["base", "1", "2"]}),
    st.just({"kind": "all", "dataid": "base", "partitioning": "p"}),
    st.just({"kind": "fixed", "dataid": "base"}),
    st.just({"kind": "partitioning", "name": "p"}),
)
BATCHES = {"p": ["1", "2", "2026-01-01"]}


def test_the_judge_and_the_database_agree_on_mappings(world: World) -> None:
    world.job("make", "raw", "made")
    world.do(
        "INSERT INTO dataflow.partitioning (partitioning, datasetid, key_columns, kind) VALUES ('p', 'raw', '{k}', 'ids')"
    )
    for each in BATCHES["p"]:
        world.do("INSERT INTO dataflow.batch VALUES ('raw', %s, 'p', '{}')", each)

    @settings(max_examples=250)
    @given(mapping=mappings, dataid=dataids)
    @example({"kind": "window", "from": "hour", "to": "day", "zone": "Europe/Berlin"}, "2026-03-29")
    @example({"kind": "window", "from": "hour", "to": "day", "zone": "Europe/Berlin"}, "2026-10-25")
    @example({"kind": "window", "from": "hour", "to": "day", "zone": "Asia/Kolkata"}, "2026-01-31")
    def agree(mapping: dict[str, Any], dataid: str) -> None:
        world.do("UPDATE dataflow.job_input SET mapping = %s", Jsonb(mapping))
        needed = world.rows("SELECT dataid FROM dataflow.required_inputs('make', %s)", dataid)
        assert sorted(inputs_of(mapping, dataid, BATCHES.__getitem__)) == sorted(each for [each] in needed)
        led_to = world.rows("SELECT dataid FROM dataflow.affected_runs('raw', %s)", dataid)
        assert sorted(runs_of(mapping, dataid, BATCHES.__getitem__)) == sorted(each for [each] in led_to)

    agree()


@pytest.mark.parametrize(
    ("zone", "day"), [("America/Havana", "2026-10-31"), ("Atlantic/Azores", "2026-10-24")]
)
def test_the_hours_of_a_day_that_ends_at_the_first_of_two_midnights_lead_back_to_it(
    world: World, zone: str, day: str
) -> None:
    mapping = {"kind": "window", "from": "hour", "to": "day", "zone": zone}
    world.job("make", {"raw": mapping}, "made")
    needed = world.rows("SELECT dataid FROM dataflow.required_inputs('make', %s)", day)
    for [hour] in needed:
        assert world.rows("SELECT dataid FROM dataflow.affected_runs('raw', %s)", hour) == [(day,)]


def test_the_judge_and_the_database_sort_dataids_alike(world: World) -> None:
    chunkids = st.from_regex(r"[A-Za-z0-9_+=:][A-Za-z0-9._:+=-]{0,20}", fullmatch=True) | dataids

    @settings(max_examples=150)
    @given(first=chunkids, second=chunkids)
    @example("1.9", "1.10")
    @example("2", "10")
    @example("99999999999", "9999999999a")
    def agree(first: str, second: str) -> None:
        stored = world.value(
            'SELECT (dataflow.sortkey(%s), %s COLLATE "C") < (dataflow.sortkey(%s), %s COLLATE "C")',
            *(first, first, second, second),
        )
        assert ((natural_key(first), first) < (natural_key(second), second)) is stored

    agree()


def test_a_day_without_midnight_has_its_hours() -> None:
    """Where clocks go forward at midnight, the day begins at one o'clock."""
    mapping = {"kind": "window", "from": "hour", "to": "day", "zone": "America/Santiago"}
    hours = inputs_of(mapping, "2026-09-06", lambda _: ())
    assert len(hours) == 23
    assert datetime.fromisoformat(f"{hours[0]}:00+00:00").astimezone(ZoneInfo("America/Santiago")).hour == 1
