"""Reads mappings of a flow file: which input chunks make an output chunk.

Only SQL knows what a mapping means (dataflow.required_inputs and its inverse). This module refuses mappings that cannot
mean anything: it checks keys and values, that periods nest, and that the inputs agree on the form of an output dataid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataflowd.flow.section import Section, type_of
from dataflowd.flow.zone import is_zone
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataflowd.flow.model import Dataset

KINDS = ("identity", "offset", "window", "all", "fixed", "partitioning")
IDENTITY: dict[str, Any] = {"kind": "identity"}
OFFSET_UNITS = ("hour", "day", "week", "month", "year", "number")
PERIODS = ("hour", "day", "week", "month")
# Weeks cross the ends of months and years, so no month or year is made of whole weeks.
NESTS = {
    "hour": ("day", "week", "month", "year"),
    "day": ("week", "month", "year"),
    "week": (),
    "month": ("year",),
}
CALENDAR_UNITS = {"hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month"}
DEFAULT_OUTPUT = "all"


def parse(inputs: Section, dataset: str) -> dict[str, Any]:
    """The mapping of one input, in the form of the column job_input.mapping."""
    value = inputs.value(dataset)
    if isinstance(value, str):
        if value in KINDS[1:]:
            inputs.wrong(
                dataset, f"is {value!r} without its details", f'write a table: {{kind = "{value}", ...}}'
            )
        elif value != "identity":
            inputs.wrong(
                dataset, f"is {value!r}{did_you_mean(value, KINDS)}", f"write one of {', '.join(KINDS)}"
            )
        return IDENTITY
    if not isinstance(value, dict):
        inputs.wrong(dataset, f"is {type_of(value)}", 'write "identity" or a table: {kind = "..."}')
        return IDENTITY
    section = Section(inputs.report, (*inputs.key, dataset), value)
    if "kind" not in section:
        inputs.wrong(dataset, "has no kind", f"write kind = one of {', '.join(KINDS)}")
        return IDENTITY
    kind = section.word("kind", KINDS)
    if kind is None:
        return IDENTITY
    mapping = {"kind": kind} | _READERS[kind](section)
    section.close()
    return mapping


def grain(mapping: Mapping[str, Any]) -> str | None:
    """The form of the output's dataids, as far as the mapping says it: a period, a number, or one certain dataid."""
    if mapping["kind"] == "window":
        return "number" if "size" in mapping else str(mapping.get("to") or mapping.get("unit"))
    if mapping["kind"] == "offset":
        return str(mapping.get("unit"))
    return f"the dataid {mapping['dataid']!r}" if mapping["kind"] == "all" else None


def misfit(mapping: Mapping[str, Any], dataset: Dataset) -> str | None:
    """Why this mapping can never find chunks of this dataset; None if it can."""
    unit = mapping.get("from") or mapping.get("unit") or ("number" if "size" in mapping else None)
    if unit is None:
        return None
    if dataset.calendar and unit != CALENDAR_UNITS[dataset.calendar]:
        return f"counts in {unit}s, but {dataset.name} has {dataset.calendar} dataids"
    if dataset.ordering == "number" and unit != "number":
        return f"counts in {unit}s, but the dataids of {dataset.name} are numbers"
    if dataset.ordering == "date" and unit == "number":
        return f"counts in numbers, but the dataids of {dataset.name} are dates"
    return None


def _identity(_: Section) -> dict[str, Any]:
    return {}


def _offset(section: Section) -> dict[str, Any]:
    by = section.whole("by")
    if "by" not in section:
        section.wrong("by", "is missing", "say how far: by = -1 is the one before")
    elif by == 0:
        section.wrong("by", "is 0, which is no offset", 'write the mapping as "identity"')
    unit = section.word("unit", OFFSET_UNITS, "day")
    if "unit" not in section:
        section.wrong("unit", "is missing", f"write one of {', '.join(OFFSET_UNITS)}")
    return {"by": by, "unit": unit}


def _window(section: Section) -> dict[str, Any]:
    forms = [form for form in ("from", "size", "last") if form in section]
    if len(forms) != 1 or ("to" in section and forms != ["from"]):
        section.report.add(
            section.key,
            f"{section.title} is no window",
            'write from and to (from = "hour", to = "day"), or size = 24, or last = 7 with unit = "day"',
        )
        section.know("from", "to", "zone", "size", "last", "unit")
        return {"size": 1}
    return {"from": _nested_window, "size": _sized_window, "last": _trailing_window}[forms[0]](section)


def _nested_window(section: Section) -> dict[str, Any]:
    small = section.word("from", PERIODS)
    large = section.word("to", ("day", "week", "month", "year"))
    zone = section.text("zone") or "UTC"
    if not is_zone(zone):
        section.wrong("zone", f"is {zone!r}, which is no time zone", 'write a name such as "Europe/Berlin"')
    if "to" not in section:
        section.wrong("to", "is missing", 'say which period the chunks make: to = "day"')
    elif small and large and large not in NESTS[small]:
        fits = ", ".join(NESTS[small])
        section.wrong(
            "to",
            f"is {large!r}, which is not made of whole {small}s",
            f"from = {small!r} goes into {fits}"
            if fits
            else "start from days: weeks straddle months and years",
        )
    return {"from": small, "to": large, "zone": zone}


def _sized_window(section: Section) -> dict[str, Any]:
    return {"size": section.whole("size", minimum=1, default=1)}


def _trailing_window(section: Section) -> dict[str, Any]:
    if "unit" not in section:
        section.wrong("unit", "is missing", f"write one of {', '.join(OFFSET_UNITS)}")
    return {
        "last": section.whole("last", minimum=1, default=1),
        "unit": section.word("unit", OFFSET_UNITS, "day"),
    }


def _all(section: Section) -> dict[str, Any]:
    output = {"dataid": section.dataid("dataid", DEFAULT_OUTPUT)}
    if ("dataids" in section) == ("partitioning" in section):
        section.report.add(
            section.key,
            f"{section.title} does not say what all of them are",
            'write either dataids = ["a", "b"] or partitioning = "size_5000"',
        )
        section.know("dataids", "partitioning")
        return output
    if "partitioning" in section:
        return output | {"partitioning": section.identifier("partitioning")}
    return output | {"dataids": list(section.dataids("dataids"))}


def _fixed(section: Section) -> dict[str, Any]:
    if "dataid" not in section:
        section.wrong("dataid", "is missing", 'name the chunk that is always read: dataid = "v1"')
    return {"dataid": section.dataid("dataid")}


def _partitioning(section: Section) -> dict[str, Any]:
    if "name" not in section:
        section.wrong(
            "name", "is missing", 'name the partitioning whose batches are read: name = "size_5000"'
        )
    return {"name": section.identifier("name")}


_READERS = {
    "identity": _identity,
    "offset": _offset,
    "window": _window,
    "all": _all,
    "fixed": _fixed,
    "partitioning": _partitioning,
}
