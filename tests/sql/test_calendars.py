"""A calendar makes periods READY when they are due, in order, also after an outage and across changes of daylight saving time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import psycopg
import pytest

from tests.fix_world import World  # noqa: TC001 - pytest shows the type of a fixture


def tick(world: World, until: str) -> list[str]:
    """The periods of `clock` that became READY, in the order in which they were registered."""
    before = {
        dataid for [dataid] in world.rows("SELECT dataid FROM dataflow.datastatus WHERE datasetid = 'clock'")
    }
    world.do("SELECT dataflow.tick(%s)", until)
    registered = world.rows(
        "SELECT dataid FROM dataflow.datastatus WHERE datasetid = 'clock' AND status = 'READY' ORDER BY sortkey"
    )
    return [dataid for [dataid] in registered if dataid not in before]


@pytest.mark.parametrize(
    ("every", "start", "until", "expected"),
    [
        (
            "hourly",
            "2026-01-31 22:00Z",
            "2026-02-01 01:30Z",
            ["2026-01-31T22", "2026-01-31T23", "2026-02-01T00"],
        ),
        ("daily", "2026-02-27 00:00Z", "2026-03-01 23:00Z", ["2026-02-27", "2026-02-28"]),
        ("weekly", "2026-12-21 00:00Z", "2027-01-11 00:00Z", ["2026-W52", "2026-W53", "2027-W01"]),
        ("monthly", "2025-12-01 00:00Z", "2026-03-01 00:00Z", ["2025-12", "2026-01", "2026-02"]),
    ],
)
def test_a_period_is_ready_when_it_has_ended(
    world: World, every: str, start: str, until: str, expected: list[str]
) -> None:
    world.calendar("clock", every, start)
    assert tick(world, until) == expected


def test_a_period_may_be_ready_when_it_starts(world: World) -> None:
    world.calendar("clock", "daily", "2026-01-01", calendar_ready="start")
    assert tick(world, "2025-12-31 23:59:59Z") == []
    assert tick(world, "2026-01-01 00:00Z") == ["2026-01-01"]
    assert tick(world, "2026-01-02 00:00Z") == ["2026-01-02"]


@pytest.mark.parametrize(
    ("zone", "day", "due"),
    [
        ("Europe/Berlin", "2026-01-01", "2026-01-01 23:00Z"),
        ("Europe/Berlin", "2026-07-01", "2026-07-01 22:00Z"),
        ("Europe/Berlin", "2026-03-29", "2026-03-29 22:00Z"),  # a day of 23 hours
        ("Europe/Berlin", "2026-10-25", "2026-10-25 23:00Z"),  # a day of 25 hours
        ("America/New_York", "2026-03-08", "2026-03-09 04:00Z"),
        ("America/New_York", "2026-11-01", "2026-11-02 05:00Z"),
        ("Asia/Kolkata", "2026-01-01", "2026-01-01 18:30Z"),
        ("Africa/Cairo", "2026-04-24", "2026-04-24 21:00Z"),  # the day begins at one o'clock
        ("Africa/Cairo", "2026-04-25", "2026-04-25 21:00Z"),
    ],
)
def test_a_day_ends_at_midnight_in_its_zone(world: World, zone: str, day: str, due: str) -> None:
    world.calendar("clock", "daily", f"{day} 12:00Z", calendar_zone=zone)
    moment = datetime.fromisoformat(due)
    world.do("UPDATE dataflow.dataset SET retired = now() WHERE datasetid = 'today'")
    assert world.value("SELECT dataflow.next_tick() = %s::timestamptz", due)
    assert tick(world, (moment - timedelta(seconds=1)).isoformat()) == []
    assert tick(world, moment.isoformat()) == [day]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Africa/Cairo", "Asia/Kolkata"])
def test_a_year_of_days_has_every_day_once_and_each_starts_at_midnight(world: World, zone: str) -> None:
    world.calendar("clock", "daily", "2026-01-01 12:00Z", calendar_zone=zone, calendar_ready="start")
    days = tick(world, "2027-01-01 12:00Z")
    first = datetime(2026, 1, 1, tzinfo=UTC)
    assert days == [f"{first + timedelta(days=n):%Y-%m-%d}" for n in range(366)]
    midnight = "SELECT (calendar_next AT TIME ZONE calendar_zone)::time::text FROM dataflow.dataset WHERE datasetid = 'clock'"
    assert world.value(midnight) == "00:00:00"


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)])
def test_an_hourly_calendar_feeds_a_day_of_any_length(world: World, day: str, hours: int) -> None:
    world.calendar("clock", "hourly", f"{day} 00:00 Europe/Berlin", calendar_zone="Europe/Berlin")
    window = {"kind": "window", "from": "hour", "to": "day", "zone": "Europe/Berlin"}
    world.job("daily_sum", {"clock": window}, "sums")
    end = datetime.fromisoformat(f"{day} 22:00Z") + timedelta(hours=1 if day == "2026-10-25" else 0)
    assert len(tick(world, (end - timedelta(seconds=1)).isoformat())) == hours - 1
    assert world.queue() == set()
    assert len(tick(world, end.isoformat())) == 1
    assert world.queue() == {("daily_sum", day)}


def test_after_an_outage_all_missed_periods_come_in_order(world: World) -> None:
    world.calendar("clock", "hourly", "2026-01-01 00:00Z")
    world.job("fetch", "clock", "raw")
    tick(world, "2026-01-01 01:00Z")
    daemon = world.daemon()
    daemon.work_off()
    missed = tick(world, "2026-01-04 12:30Z")
    assert len(missed) == 83
    assert [daemon.claim_one().dataid for _ in missed] == missed


def test_a_tick_is_idempotent_and_says_how_many_it_registered(world: World) -> None:
    world.calendar("clock", "daily", "2026-01-01")
    world.do("UPDATE dataflow.dataset SET retired = now() WHERE datasetid = 'today'")
    assert world.value("SELECT dataflow.tick('2026-01-04 00:00Z')") == 3
    assert world.value("SELECT dataflow.tick('2026-01-04 00:00Z')") == 0
    assert world.value("SELECT dataflow.tick('2026-01-02 00:00Z')") == 0


def test_two_daemons_may_tick_at_the_same_moment(world: World) -> None:
    world.calendar("clock", "daily", "2026-01-01")
    with world.session() as one, world.session() as two:
        two.execute("SET lock_timeout = '1s'")
        one.execute("SELECT dataflow.tick('2026-01-04 00:00Z')")
        two.execute("SELECT dataflow.tick('2026-01-04 00:00Z')")
        one.commit()
        two.commit()
    assert (
        world.value("SELECT count(*) FROM dataflow.datastatus WHERE datasetid = 'clock' AND version = 1") == 3
    )


def test_a_period_that_somebody_holds_or_registered_stays_as_it_is(world: World) -> None:
    world.calendar("clock", "daily", "2026-01-01")
    world.do("SELECT dataflow.hold('clock', '2026-01-01', 'holiday')")
    world.ready("clock", "2026-01-02")
    assert tick(world, "2026-01-04 00:00Z") == ["2026-01-03"]
    assert world.status("clock", "2026-01-01") == "HOLD"
    assert world.version("clock", "2026-01-02") == 1


def test_the_next_tick_is_the_earliest_that_is_due(world: World) -> None:
    world.do("UPDATE dataflow.dataset SET retired = now() WHERE datasetid = 'today'")
    assert world.value("SELECT dataflow.next_tick() IS NULL")
    world.calendar("clock", "monthly", "2026-01-01")
    world.calendar("other", "weekly", "2026-01-05", calendar_zone="Asia/Kolkata")
    assert world.value("SELECT dataflow.next_tick() = '2026-01-11 18:30Z'")
    world.do("SELECT dataflow.tick('2026-01-11 18:30Z')")
    assert world.value("SELECT dataflow.next_tick() = '2026-01-18 18:30Z'")


def test_today_is_ready_when_the_day_begins(world: World) -> None:
    world.job("fetch", "today", "raw")
    world.do("SELECT dataflow.tick()")
    assert world.daemon().runs() == {("fetch", f"{datetime.now(UTC):%Y-%m-%d}")}


def test_a_retired_calendar_makes_no_periods(world: World) -> None:
    world.calendar("clock", "daily", "2026-01-01", retired="2026-01-01")
    assert tick(world, "2026-02-01 00:00Z") == []


def test_a_calendar_in_an_unknown_zone_is_refused(world: World) -> None:
    with pytest.raises(psycopg.Error, match="unknown time zone Europe/Atlantis") as refused:
        world.calendar("clock", "daily", "2026-01-01", calendar_zone="Europe/Atlantis")
    assert refused.value.sqlstate == "DF400"
    assert "Europe/Berlin" in (refused.value.diag.message_hint or "")


def test_a_calendar_of_centuries_is_caught_up_with_in_calls_of_bounded_length(world: World) -> None:
    world.calendar("days", "daily", "1970-01-01")
    made = [world.value("SELECT dataflow.tick('2026-01-01 00:00Z')") for _ in range(4)]
    assert made[0] == made[1] == 10_000
    assert made[2:] == [(date(2026, 1, 1) - date(1970, 1, 1)).days - 20_000, 0]
    assert (
        world.value("SELECT dataflow.tick('infinity')") == 20_000
    )  # 10,000 periods of each of the two calendars


@pytest.mark.parametrize(
    ("dataid", "says"),
    [
        ("2999-01-01", "wait: the calendar makes it READY at 2999-01-02 00:00:00+00"),
        ("2025-12-31", "the calendar clock begins with 2026-01-01; "),
        ("2026-01-02", "it is due since 2026-01-03 00:00:00+00: start dataflowd, which makes it READY"),
    ],
)
def test_why_says_when_a_calendar_makes_the_input(world: World, dataid: str, says: str) -> None:
    world.calendar("clock", "daily", "2026-01-01")
    world.job("daily_report", ["clock"], "report")
    world.do("SET TimeZone = 'UTC'")
    [[remedy]] = world.rows("SELECT remedy FROM dataflow.why('daily_report', %s) WHERE number = 1", dataid)
    assert remedy.startswith(says)
    assert "when it has arrived" not in remedy
