"""Reads and checks the tables [dataset.NAME] of a flow file."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from dataflowd.flow import checks, location
from dataflowd.flow.model import Dataset
from dataflowd.flow.section import type_of
from dataflowd.flow.zone import is_zone
from dataflowd.host import allowed_hosts
from dataflowd.model import formats
from dataflowd.model.faults import AttemptError
from dataflowd.model.location import BadLocationError, place
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from dataflowd.flow.section import Section
    from dataflowd.host.settings import Settings

ORDERINGS = ("natural", "date", "number", "text")
CALENDARS = ("hourly", "daily", "weekly", "monthly")
BUILT_IN = frozenset({"today"})  # the daily calendar that every database has
PORT_MAX = 65535


def parse(section: Section, settings: Settings) -> Dataset:
    name = str(section.key[-1])
    if name in BUILT_IN:
        section.report.add(section.key, f"the dataset {name!r} is built in", "give this one another name")
    zone = section.filled("zone") or "UTC"
    if not is_zone(zone):
        section.wrong("zone", f"is {zone!r}, which is no time zone", 'write a name such as "Europe/Berlin"')
        zone = "UTC"
    columns = section.filled("schema")
    column_names = checks.columns_of(columns) if columns else None
    if columns and column_names is None:
        section.wrong("schema", "is no list of columns", 'write it as "order_id bigint, customer string"')
    data_checks, custom = checks.parse(section.section("checks"), column_names)
    calendar = section.word("calendar", CALENDARS)
    dataset = Dataset(
        name=name,
        description=section.text("description") or "",
        format=section.word("format", tuple(formats.OPTIONS), "none" if calendar else "parquet") or "parquet",
        location=_location(section, settings),
        hostname=section.filled("hostname"),
        port=_port(section),
        database=section.filled("database"),
        schemaname=section.filled("schemaname"),
        tablename=section.filled("tablename"),
        username=section.filled("username"),
        columns=columns,
        options=_options(section),
        checks=data_checks,
        custom_checks=custom,
        ordering=section.word("ordering", ORDERINGS, "natural") or "natural",
        publish=section.word("publish", ("pointer", "rename"), "pointer") or "pointer",
        environment=section.identifier("environment"),
        digest=section.flag("digest", default=False),
        expect_newer=section.flag("expect_newer", default=False),
        calendar=calendar,
        zone=zone,
        start=_start(section, calendar, zone),
        ready=section.word("ready", ("start", "end"), "end") or "end",
    )
    section.close()
    _check_reachable(section, dataset)
    if dataset.hostname is not None or dataset.format == "postgres":
        _check_host(section, dataset, settings)
    if dataset.format == "postgres":
        _check_table(section, dataset)
    return dataset


def _location(section: Section, settings: Settings) -> str | None:
    value = section.filled("location")
    if value is None:
        return None
    try:
        return location.resolve(value, settings)
    except location.OutsideRootsError as error:
        section.elsewhere("location", error.what, error.remedy)
        return error.resolved
    except BadLocationError as error:
        section.wrong("location", error.what, error.remedy)
        return None


def _port(section: Section) -> int | None:
    port = section.whole("port", minimum=1)
    if port is not None and port > PORT_MAX:
        section.wrong("port", f"is {port}", f"write a whole number from 1 to {PORT_MAX}")
    return port


def _options(section: Section) -> dict[str, Any]:
    options = section.data("options")
    for name, value in options.items():
        if not isinstance(value, str | int | float):
            section.wrong(
                "options", f"has {type_of(value)} at {name!r}", "write a string, a number or a boolean"
            )
        if name.lower() == "password":
            section.wrong(
                "options", "holds a password", "seal it with `dataflowctl seal`, which keeps it unreadable"
            )
    return options


def _check_reachable(section: Section, dataset: Dataset) -> None:
    if dataset.calendar is None and "calendar" in section:
        return  # the value of calendar is wrong, and that mistake is already reported
    if dataset.calendar is None:
        for name in ("zone", "start", "ready"):
            if name in section:
                section.wrong(
                    name, "is given without a calendar", f"write calendar = one of {', '.join(CALENDARS)}"
                )
    if section.value("format") not in (None, *formats.OPTIONS):
        return  # the format is wrong, so its other keys cannot be checked
    is_files = dataset.format in (*formats.FILES, *formats.LAKES)
    if dataset.calendar is None and is_files and "location" not in section:
        section.wrong(
            "location", f"is missing for format {dataset.format!r}", 'write location = "{root}/..."'
        )
    if dataset.format in formats.NAMED_TABLES and "tablename" not in section:
        section.wrong("tablename", f"is missing for format {dataset.format!r}", "name the table")
    if is_files:
        _check_options(section, dataset)
    _check_rightness(section, dataset)
    if dataset.publish == "rename":
        _check_fixed_path(section, dataset)


def _check_rightness(section: Section, dataset: Dataset) -> None:
    """Checks digest and expect_newer, which belong to the second question (is it the right data?) and need files."""
    for name, is_asked in (("digest", dataset.digest), ("expect_newer", dataset.expect_newer)):
        if is_asked and dataset.format not in formats.FILES:
            section.wrong(
                name, f"is true, and format {dataset.format!r} has no files to look at", "leave it out"
            )
    if dataset.expect_newer and dataset.ordering != "date":
        section.wrong(
            "expect_newer",
            f"is true, and ordering is {dataset.ordering!r}: a dataid may name no day",
            'write ordering = "date" too',
        )


def _check_fixed_path(section: Section, dataset: Dataset) -> None:
    """The conditions of dataflowd.storage.fixed_path."""
    remedy = "write 'pointer': readers find the data through dataflow.data_location()"
    location = dataset.location or ""
    if dataset.format not in formats.FILES:
        section.wrong("publish", f"is 'rename', and format {dataset.format!r} has no files to rename", remedy)
    elif "{dataid}" in location:
        section.wrong(
            "publish",
            "is 'rename', and the location has {dataid} in it",
            "leave {dataid} out: the chunks are at <location>/dataid=<id>",
        )
    elif location and place(location).scheme != "file":
        section.wrong(
            "publish", "is 'rename', which only a file system of the host can do in one step", remedy
        )


def _check_options(section: Section, dataset: Dataset) -> None:
    """Checks the options that reach Spark. A runner checks them again before it uses them."""
    try:
        formats.read_options(dataset.name, dataset.format, dataset.options)
    except AttemptError as error:
        section.wrong("options", f"cannot be used: {error.message}", error.remedy)
        return
    given = {name.lower(): value for name, value in dataset.options.items()}
    if formats.HEADER_MATCH not in given:
        return
    if dataset.columns is None:
        section.wrong(
            "options",
            f"has {formats.HEADER_MATCH}, and the dataset has no schema to compare with",
            "declare its schema, or leave the option out",
        )
    if dataset.format == "csv" and str(given.get("header")).lower() != "true":
        section.wrong(
            "options",
            f"has {formats.HEADER_MATCH}, and the files have no header",
            "write header = true, or leave the option out",
        )


def _check_host(section: Section, dataset: Dataset, settings: Settings) -> None:
    allowed = settings.effective_allowed_hosts
    if not allowed_hosts.is_allowed(dataset.hostname, dataset.port, allowed):
        section.elsewhere(
            "hostname",
            f"is {dataset.hostname!r}, where tables may not be",
            f"use {' or '.join(allowed)}, or add it to the setting allowed_hosts",
        )


def _check_table(section: Section, dataset: Dataset) -> None:
    known = formats.OPTIONS["postgres"].read
    for name in dataset.options:
        if name not in known:
            section.wrong(
                "options",
                f"has {name!r}, which no table takes{did_you_mean(name, known)}",
                f"use some of {', '.join(sorted(known))}",
            )
    if ("partitions" in dataset.options) != ("partition_column" in dataset.options):
        section.wrong(
            "options",
            "has only one of partitions and partition_column",
            "write both: how many parts are read side by side, and by which column they are told apart",
        )


def _start(section: Section, calendar: str | None, zone: str) -> dt.datetime | None:
    """The moment at which the first period starts. Any other moment inside a period is a mistake."""
    value = section.value("start")
    if value is None:
        if calendar is not None:
            section.wrong(
                "start", "is missing for a calendar", "write the first period's start: start = 2026-01-01"
            )
        return None
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            section.wrong("start", f"is {value!r}, which is no date", "write a date: start = 2026-01-01")
            return None
    if not isinstance(value, dt.date):
        section.wrong("start", f"is {type_of(value)}", "write a date: start = 2026-01-01")
        return None
    if not isinstance(value, dt.datetime):
        value = dt.datetime.combine(value, dt.time())
    try:
        local = (
            value.replace(tzinfo=ZoneInfo(zone)) if value.tzinfo is None else value.astimezone(ZoneInfo(zone))
        )
    except OverflowError:
        section.wrong(
            "start", f"is {value.isoformat()}, outside all calendars", "write a date: start = 2026-01-01"
        )
        return None
    first = _period_start(local, calendar)
    if first != local:
        section.wrong(
            "start",
            f"is {local.isoformat()}, inside a period",
            f"write a period's start, such as {first.isoformat()}",
        )
    return local


def _period_start(moment: dt.datetime, calendar: str | None) -> dt.datetime:
    hour = moment.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    match calendar:
        case "hourly":
            return hour
        case "daily":
            return day
        case "weekly":
            return day - dt.timedelta(days=day.weekday())
        case "monthly":
            return day.replace(day=1)
        case _:
            return moment
