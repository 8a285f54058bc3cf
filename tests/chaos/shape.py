"""The declarations of each version of the chaos flow: its jobs, and which input chunks make an output chunk.

    raw -> clean -> clean, odd -> join -> joined -> (window of five) total -> total
    joined (last few), clean (the one before) -> trend        total, rates (fixed) -> ledger, in strict order
    total (all of a list) -> summary                          total -> left and right, one of which makes `side`
    hours -> (from hour to day) daily                         clock (a calendar), rates -> stamp
    total -> late, which comes with a later version, is retired, and comes back

A new version changes mappings, moves an output from one job to another, and adds or retires a job. The mappings are
computed here a second time, to check the answer of SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tests.chaos.steps import WINDOW

Mapping = dict[str, Any]

IDENTITY: Mapping = {"kind": "identity"}
SIZED: Mapping = {"kind": "window", "size": WINDOW}
BEFORE: Mapping = {"kind": "offset", "by": -1, "unit": "number"}
REFERENCE = "v1"
FIXED: Mapping = {"kind": "fixed", "dataid": REFERENCE}
ZONE = "Europe/Berlin"
DAY: Mapping = {"kind": "window", "from": "hour", "to": "day", "zone": ZONE}
ALL = "all"
FIRST_DAY = date(2026, 3, 28)  # the next day has 23 hours
LATE_COMES = 2  # the first version that has the job `late`


@dataclass(frozen=True)
class Job:
    step: str
    inputs: dict[str, Mapping]
    outputs: tuple[str, ...]
    is_strict: bool = False
    max_running: int | None = None


def jobs(engine: str, version: int, *, is_last: bool = False) -> list[Job]:
    """The jobs of a version. `is_last`: the version at the end of a chaos run, which has every job."""
    core = [
        Job("clean", {"raw": IDENTITY}, ("clean", "odd")),
        Job("join", {"clean": IDENTITY, "odd": IDENTITY}, ("joined",), max_running=3),
        Job("total", {"joined": SIZED}, ("total",)),
    ]
    if engine == "spark":
        # In the deep flow the totals are a table in Postgres.
        slow = [Job(job.step, job.inputs, job.outputs, max_running=2) for job in core]
        return [*slow, Job("report", {"total": IDENTITY}, ("report",), max_running=2)]
    is_left = version // 2 % 2 == 0
    listed = [str(number) for number in range(3 + version % 2)]
    found = [
        *core,
        Job(
            "trend",
            {"joined": {"kind": "window", "last": 2 + version % 2, "unit": "number"}, "clean": BEFORE},
            ("trend",),
        ),
        Job("ledger", {"total": IDENTITY, "rates": FIXED}, ("ledger", "audit"), is_strict=True),
        Job("summary", {"total": {"kind": "all", "dataids": listed, "dataid": ALL}}, ("summary",)),
        Job("daily", {"hours": DAY}, ("daily",)),
        Job("stamp", {"clock": IDENTITY, "rates": FIXED}, ("stamp",)),
        Job("left", {"total": IDENTITY}, ("lefts", "side") if is_left else ("lefts",)),
        Job("right", {"total": IDENTITY}, ("rights",) if is_left else ("rights", "side")),
    ]
    if is_last or (version >= LATE_COMES and version % 3 != 1):
        found.append(Job("late", {"total": IDENTITY}, ("late",)))
    return found


def every_job(engine: str) -> dict[str, list[Job]]:
    """Each form that a job has in any version, by step."""
    found: dict[str, list[Job]] = {}
    for version in range(12):
        for job in jobs(engine, version, is_last=True):
            if job not in found.setdefault(job.step, []):
                found[job.step].append(job)
    return found


def constant_outputs(engine: str) -> dict[str, list[str]]:
    """The outputs that a job has in every version, by step."""
    return {
        step: sorted(set.intersection(*(set(form.outputs) for form in forms)))
        for step, forms in every_job(engine).items()
    }


def required(mapping: Mapping, dataid: str) -> list[str]:
    """The dataids of the input chunks that a run needs."""
    match mapping:
        case {"kind": "fixed", "dataid": reference}:
            found = [str(reference)]
        case {"kind": "all", "dataids": listed, "dataid": output}:
            found = list(listed) if dataid == output else []
        case {"kind": "offset", "by": by}:
            found = _numbers(range(int(dataid) + by, int(dataid) + by + 1))
        case {"kind": "window", "size": size}:
            found = _numbers(range(int(dataid) * size, (int(dataid) + 1) * size))
        case {"kind": "window", "last": last}:
            found = _numbers(range(int(dataid) - last + 1, int(dataid) + 1))
        case {"kind": "window"}:
            found = hours_of(date.fromisoformat(dataid))
        case _:
            found = [dataid]
    return found


def _numbers(found: range) -> list[str]:
    return [str(number) for number in found if number >= 0]


def hours_of(day: date) -> list[str]:
    """The hours (UTC) of a day in ZONE: 23, 24 or 25."""
    start, end = (
        datetime.combine(moment, time(), ZoneInfo(ZONE)).astimezone(UTC)
        for moment in (day, day + timedelta(days=1))
    )
    return [hour_id(start + timedelta(hours=hour)) for hour in range(int((end - start) / timedelta(hours=1)))]


def hour_id(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H")


def given(job: Job, dataid: str) -> set[tuple[str, str]]:
    """The chunks (dataset without its prefix, dataid) that a run of the job reads."""
    return {(name, chunk) for name, mapping in job.inputs.items() for chunk in required(mapping, dataid)}
