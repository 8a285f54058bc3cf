"""Mappings can be followed both ways, for any dataid, zone and day; and dataids sort in natural order.

One call to the database tries a property on many dataids: an example of hypothesis is a list of dataids.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from functools import cmp_to_key
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.fix_world import World

UTC = ZoneInfo("UTC")
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",  # an offset of half an hour
    "Australia/Lord_Howe",  # daylight saving shifts by half an hour
    "Africa/Cairo",  # daylight saving begins at midnight: that day has no first hour
]
UNITS = ["hour", "day", "week", "month", "year"]
# All examples share one database: mapped() rolls each of them back.
EXAMPLES = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextmanager
def mapped(world: World, mapping: Mapping[str, Any]) -> Iterator[None]:
    """A job whose input has this mapping."""
    with world.connection.transaction(force_rollback=True):
        world.job("job", {"source": mapping}, "target")
        yield


def inputs(world: World, *runs: str) -> set[tuple[str, str]]:
    """(run, input) for each of these runs."""
    found = world.rows(
        "SELECT run, i.dataid FROM unnest(%s::text[]) AS run, dataflow.required_inputs('job', run) AS i",
        list(runs),
    )
    return {(run, dataid) for run, dataid in found}


def runs(world: World, *dataids: str) -> set[tuple[str, str]]:
    """(run, input) for each of these inputs."""
    found = world.rows(
        "SELECT r.dataid, input FROM unnest(%s::text[]) AS input, dataflow.affected_runs('source', input) AS r"
        " WHERE r.jobid = 'job'",
        list(dataids),
    )
    return {(run, dataid) for run, dataid in found}


def assert_inverse(world: World, candidates: list[str]) -> None:
    """Follows the mapping from these ids both ways, as runs and as inputs. Checks only the ends of a large window."""
    forward, backward = sorted(inputs(world, *candidates)), runs(world, *candidates)
    ends = set(forward if len(forward) <= 200 else forward[:100] + forward[-100:])
    assert runs(world, *{dataid for _, dataid in ends}) >= ends
    assert inputs(world, *{run for run, _ in backward}) >= backward


def period(unit: str, day: date, hour: int) -> str:
    return {
        "hour": f"{day:%Y-%m-%d}T{hour:02}",
        "day": f"{day:%Y-%m-%d}",
        "week": "{:04}-W{:02}".format(*day.isocalendar()),
        "month": f"{day:%Y-%m}",
        "year": f"{day:%Y}",
    }[unit]


LAST_NUMBER = 10**18 - 1
DATES = st.dates(date(2015, 1, 1), date(2030, 12, 31)) | st.sampled_from([date.min, date(9999, 12, 30)])
NUMBERS = st.integers(0, 300).map(str) | st.integers(LAST_NUMBER - 300, LAST_NUMBER + 3).map(str)
PERIODS = st.builds(period, st.sampled_from(UNITS), DATES, st.integers(0, 23))
ODDITIES = st.sampled_from(
    [
        "all",
        "north",
        "",
        "2026-02-30",
        "2026-13",
        "2026-W54",
        "2026-01-01T24",
        "02026",
        "0000",
        "007",
        "-1",
        "1e3",
        "10000-01-01",
    ]
)
DATAIDS = st.lists(PERIODS | NUMBERS | ODDITIES, min_size=5, max_size=30)
RECENT = st.dates(date(2015, 1, 1), date(2030, 12, 31))
SIZES = [(small, large) for at, small in enumerate(UNITS) for large in UNITS[at + 1 :] if small != "week"]


@EXAMPLES
@given(dataids=DATAIDS)
def test_identity_maps_a_dataid_to_itself(world: World, dataids: list[str]) -> None:
    with mapped(world, {"kind": "identity"}):
        assert inputs(world, *dataids) == runs(world, *dataids) == {(each, each) for each in dataids}


@EXAMPLES
@given(
    dataids=DATAIDS,
    unit=st.sampled_from([*UNITS, "number"]),
    by=st.integers(-400, 400) | st.integers(-999999, 999999),
)
def test_an_offset_can_be_followed_both_ways(world: World, dataids: list[str], unit: str, by: int) -> None:
    with mapped(world, {"kind": "offset", "unit": unit, "by": by}):
        assert_inverse(world, dataids)


@EXAMPLES
@given(
    days=st.lists(RECENT, min_size=1, max_size=4),
    oddities=st.lists(ODDITIES | NUMBERS, max_size=3),
    sizes=st.sampled_from(SIZES),
    zone=st.sampled_from(ZONES),
)
def test_a_window_of_periods_can_be_followed_both_ways(
    world: World, days: list[date], oddities: list[str], sizes: tuple[str, str], zone: str
) -> None:
    small, large = sizes
    candidates = [period(large, day, 0) for day in days]
    candidates += [period(small, day, hour) for day in days for hour in (0, 1, 21, 22, 23)]
    with mapped(world, {"kind": "window", "from": small, "to": large, "zone": zone}):
        assert_inverse(world, sorted({*candidates, *oddities}))


@EXAMPLES
@given(dataids=DATAIDS, size=st.integers(1, 12))
def test_a_window_of_numbers_can_be_followed_both_ways(world: World, dataids: list[str], size: int) -> None:
    with mapped(world, {"kind": "window", "size": size}):
        assert_inverse(world, dataids)


def test_a_window_of_numbers_ends_with_the_last_number(world: World) -> None:
    with mapped(world, {"kind": "window", "size": 999_999_999}):
        assert inputs(world, str(LAST_NUMBER)) == set()
        assert runs(world, str(LAST_NUMBER)) == {("1000000001", str(LAST_NUMBER))}


@EXAMPLES
@given(dataids=DATAIDS, unit=st.sampled_from([*UNITS, "number"]), last=st.integers(1, 20))
def test_a_trailing_window_can_be_followed_both_ways(
    world: World, dataids: list[str], unit: str, last: int
) -> None:
    with mapped(world, {"kind": "window", "unit": unit, "last": last}):
        assert_inverse(world, dataids)


@EXAMPLES
@given(
    dataids=DATAIDS,
    declared=st.lists(PERIODS | NUMBERS, min_size=1, max_size=5),
    name=st.sampled_from([None, "week", "7"]),
)
def test_a_fan_in_can_be_followed_both_ways(
    world: World, dataids: list[str], declared: list[str], name: str | None
) -> None:
    mapping: dict[str, Any] = {"kind": "all", "dataids": declared} | ({"dataid": name} if name else {})
    with mapped(world, mapping):
        assert_inverse(world, [*dataids, *declared, name or "all"])
        assert inputs(world, name or "all") == {(name or "all", each) for each in declared}


def test_a_fan_in_of_a_partitioning_takes_all_its_batches(world: World) -> None:
    world.job("job", {"source": {"kind": "all", "partitioning": "size_2"}}, "target")
    world.do(
        "INSERT INTO dataflow.partitioning (partitioning, datasetid, key_columns, kind, size)"
        " VALUES ('size_2', 'source', '{id}', 'size', 2), ('other', 'source', '{id}', 'size', 9)"
    )
    world.do(
        "INSERT INTO dataflow.batch (datasetid, dataid, partitioning, bounds) VALUES"
        " ('source', 'a', 'size_2', '{}'), ('source', 'b', 'size_2', '{}'), ('source', 'c', 'other', '{}')"
    )
    assert inputs(world, "all", "a") == {("all", "a"), ("all", "b")} == runs(world, "a", "b", "c")


@EXAMPLES
@given(known=st.lists(st.integers(0, 99).map(str), min_size=1, max_size=9, unique=True))
def test_a_fixed_chunk_leads_to_every_known_run_and_back(world: World, known: list[str]) -> None:
    with world.connection.transaction(force_rollback=True):
        world.job(
            "job", {"rates": {"kind": "fixed", "dataid": "current"}, "source": {"kind": "identity"}}, "target"
        )
        world.ready("source", *known)
        found = world.rows("SELECT dataid FROM dataflow.affected_runs('rates', 'current')")
        assert {run for [run] in found} == set(known)
        assert world.rows("SELECT * FROM dataflow.affected_runs('rates', 'older')") == []
        required = world.rows("SELECT * FROM dataflow.required_inputs('job', %s)", known[0])
        assert set(required) == {("rates", "current"), ("source", known[0])}


def test_a_fixed_chunk_is_waited_for_by_every_run(world: World) -> None:
    week = {"kind": "window", "from": "day", "to": "month"}
    world.job("job", {"rates": {"kind": "fixed", "dataid": "current"}, "source": week}, "target")
    world.ready("source", *[f"2026-02-{day:02}" for day in range(1, 29)])
    assert world.queue() == set()
    world.ready("rates", "current")
    assert world.queue() == {("job", "2026-02")}


@EXAMPLES
@given(day=RECENT, zone=st.sampled_from(ZONES))
def test_a_day_has_as_many_hours_as_its_zone_says(world: World, day: date, zone: str) -> None:
    local = ZoneInfo(zone)

    def begins(when: date) -> datetime:
        """The first moment of a day, also where midnight is skipped."""
        midnight = datetime(when.year, when.month, when.day, tzinfo=local).astimezone(UTC)
        return next(
            moment
            for minutes in range(-120, 121, 30)
            if (moment := midnight + timedelta(minutes=minutes)).astimezone(local).date() == when
        )

    first = begins(day)
    first += timedelta(minutes=-first.minute % 60)
    until = begins(day + timedelta(days=1))
    hours = {
        f"{first + timedelta(hours=n):%Y-%m-%dT%H}" for n in range(30) if first + timedelta(hours=n) < until
    }
    with mapped(world, {"kind": "window", "from": "hour", "to": "day", "zone": zone}):
        assert {dataid for _, dataid in inputs(world, day.isoformat())} == hours


@pytest.mark.parametrize(
    ("zone", "day", "hours", "first", "last"),
    [
        ("Europe/Berlin", "2026-03-29", 23, "2026-03-28T23", "2026-03-29T21"),
        ("Europe/Berlin", "2026-10-25", 25, "2026-10-24T22", "2026-10-25T22"),
        ("America/New_York", "2026-03-08", 23, "2026-03-08T05", "2026-03-09T03"),
        ("America/New_York", "2026-11-01", 25, "2026-11-01T04", "2026-11-02T04"),
        ("Asia/Kolkata", "2026-03-29", 24, "2026-03-28T19", "2026-03-29T18"),
        ("Africa/Cairo", "2026-04-24", 23, "2026-04-23T22", "2026-04-24T20"),
        ("UTC", "2026-03-29", 24, "2026-03-29T00", "2026-03-29T23"),
    ],
)
def test_the_days_of_23_and_25_hours(  # noqa: PLR0913, PLR0917 - a table
    world: World, zone: str, day: str, hours: int, first: str, last: str
) -> None:
    with mapped(world, {"kind": "window", "from": "hour", "to": "day", "zone": zone}):
        found = sorted(dataid for _, dataid in inputs(world, day))
    assert (len(found), found[0], found[-1]) == (hours, first, last)


@pytest.mark.parametrize(
    ("mapping", "run", "expected"),
    [
        ({"kind": "offset", "by": -1, "unit": "day"}, "2026-03-01", {"2026-02-28"}),
        ({"kind": "offset", "by": -1, "unit": "hour"}, "2026-01-01T00", {"2025-12-31T23"}),
        ({"kind": "offset", "by": 1, "unit": "week"}, "2026-W53", {"2027-W01"}),
        ({"kind": "offset", "by": -1, "unit": "month"}, "2026-01", {"2025-12"}),
        ({"kind": "offset", "by": -1, "unit": "number"}, "0", set()),
        ({"kind": "window", "last": 3, "unit": "number"}, "1", {"0", "1"}),
        ({"kind": "window", "size": 3}, "2", {"6", "7", "8"}),
        ({"kind": "window", "from": "day", "to": "week"}, "2026-W01", {"2025-12-29", "2025-12-30", "2025-12-31", "2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"}),
        ({"kind": "window", "from": "month", "to": "year"}, "2026", {f"2026-{month:02}" for month in range(1, 13)}),
    ],
)  # fmt: skip
def test_mappings_by_example(world: World, mapping: dict[str, Any], run: str, expected: set[str]) -> None:
    with mapped(world, mapping):
        assert {dataid for _, dataid in inputs(world, run)} == expected


@pytest.mark.parametrize(
    ("unit", "dataid"),
    [
        ("day", "2026-02-30"),
        ("day", "2026-2-3"),
        ("day", "0000-01-01"),
        ("hour", "2026-01-01T24"),
        ("week", "2025-W53"),
        ("week", "2026-W00"),
        ("month", "2026-13"),
        ("year", "26"),
        ("number", "007"),
        ("number", "-1"),
    ],
)
def test_a_dataid_that_names_no_period_maps_to_nothing(world: World, unit: str, dataid: str) -> None:
    with mapped(world, {"kind": "offset", "by": 1, "unit": unit}):
        assert inputs(world, dataid) == runs(world, dataid) == set()


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"kind": "every_other"},
        {"kind": "identity", "by": 1},
        {"kind": "offset"},
        {"kind": "offset", "by": 1},
        {"kind": "offset", "by": 1.5, "unit": "day"},
        {"kind": "offset", "by": "1", "unit": "day"},
        {"kind": "offset", "by": 1, "unit": "fortnight"},
        {"kind": "fixed"},
        {"kind": "fixed", "dataid": "a/b"},
        {"kind": "fixed", "dataid": ""},
        {"kind": "all"},
        {"kind": "all", "dataids": []},
        {"kind": "all", "dataids": [1]},
        {"kind": "all", "dataids": ["a/b"]},
        {"kind": "all", "dataids": ["a"], "dataid": "a/b"},
        {"kind": "all", "dataids": "a"},
        {"kind": "all", "dataids": ["a"], "partitioning": "size_2"},
        {"kind": "window"},
        {"kind": "window", "size": 0},
        {"kind": "window", "size": 1.5},
        {"kind": "window", "size": 2, "from": "hour", "to": "day"},
        {"kind": "window", "size": 2, "unit": "day"},
        {"kind": "window", "last": 0, "unit": "day"},
        {"kind": "window", "last": 2},
        {"kind": "window", "last": 2, "unit": "day", "to": "week"},
        {"kind": "window", "from": "day", "to": "hour"},
        {"kind": "window", "from": "day", "to": "day"},
        {"kind": "window", "from": "week", "to": "month"},
        {"kind": "window", "from": "hour", "to": "day", "zone": "Europe/Atlantis"},
        {"kind": "window", "from": "hour", "to": "day", "unit": "day"},
    ],
    ids=lambda mapping: " ".join(f"{key}={value}" for key, value in mapping.items()) or "empty",
)
def test_a_mapping_that_cannot_be_followed_both_ways_is_refused_with_what_it_needs(
    world: World, mapping: dict[str, Any]
) -> None:
    world.job("job", "source", "target")
    before = world.everything()
    with pytest.raises(psycopg.Error, match="mapping of input source of job job cannot be used") as refused:
        world.do("UPDATE dataflow.job_input SET mapping = %s", Jsonb(mapping))
    assert refused.value.sqlstate == "DF400"
    assert refused.value.diag.message_hint
    assert world.everything() == before


def natural(one: str, other: str) -> int:
    """A sort key of natural order: characters compare one by one, and digits in sequence as one number."""
    tokens = [re.findall(r"[0-9]+|[^0-9]", each) for each in (one, other)]
    for a, b in zip(*tokens, strict=False):
        if a[0].isdigit() and b[0].isdigit():
            if int(a) != int(b):
                return -1 if int(a) < int(b) else 1
        elif a != b:
            return -1 if a < b else 1
    return len(tokens[0]) - len(tokens[1])


DIGITS = st.sampled_from(
    ["0", "7", "10", "9" * 10, "1" + "0" * 10, "12345678901", "9" * 20, "1" + "0" * 20, "8" * 25]
)
PARTS = (
    DIGITS
    | DIGITS.map("0".__add__)
    | st.integers(0, 10**24).map(str)
    | st.sampled_from([*"aZ._:+=-", "2026-01-31"])
)
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("".join)


@EXAMPLES
@given(names=st.lists(NAMES, min_size=2, max_size=60))
def test_dataids_sort_in_natural_order(connection: psycopg.Connection, names: list[str]) -> None:
    keys = connection.execute(
        "SELECT n, dataflow.sortkey(n) FROM unnest(%s::text[]) AS n", [names]
    ).fetchall()
    by_name = cmp_to_key(natural)
    ordered = sorted(keys, key=lambda row: by_name(row[0]))
    for (one, low), (other, high) in pairwise(ordered):
        assert (low < high) == (natural(one, other) < 0), (one, other)
