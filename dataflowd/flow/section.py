"""One table of a flow file, read key by key.

Each method reads one key, reports a mistake in it, and returns a usable value in any case, so that the rest of the file can
be checked too. The keys that were read are the known keys: `close` reports all others.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TYPE_CHECKING, Any

from dataflowd.model.identifiers import DATAID, DATAID_REMEDY, NAME, NAME_REMEDY
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from dataflowd.flow.mistakes import Report
    from dataflowd.flow.source import Key

INTEGER_MAX = 2**31 - 1  # the columns are four bytes wide
SECONDS_MAX = 3650 * 86400
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,12})([smhd])")
_DURATION_REMEDY = 'write it as "30s", "5m", "1h", "2d" or a number of seconds'
_TYPES = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    list: "an array",
    dict: "a table",
}


def type_of(value: Any) -> str:
    return _TYPES.get(type(value), f"a {type(value).__name__}")


class Section:
    def __init__(self, report: Report, key: Key, table: dict[str, Any]) -> None:
        self.report = report
        self.key = key
        self._table = table
        self._known: set[str] = set()

    @property
    def title(self) -> str:
        return ".".join(map(str, self.key))

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def names(self) -> list[str]:
        return list(self._table)

    def know(self, *names: str) -> None:
        """Marks keys as known that are not read."""
        self._known |= set(names)

    def value(self, name: str) -> Any:
        self._known.add(name)
        return self._table.get(name)

    def wrong(self, name: str, what: str, remedy: str) -> None:
        key = (*self.key, name)
        self.report.add(key, f"{'.'.join(map(str, key))} {what}", remedy)

    def elsewhere(self, name: str, what: str, remedy: str) -> None:
        """Reports a location or a host of a dataset that this host does not allow."""
        key = (*self.key, name)
        self.report.elsewhere(key, f"{'.'.join(map(str, key))} {what}", remedy)

    def close(self) -> None:
        for name in self._table.keys() - self._known:
            where = f" in {self.title}" if self.key else ""
            near = did_you_mean(name, self._known)
            self.report.add(
                (*self.key, name),
                f"unknown key {name!r}{where}{near}",
                f"{'rename' if near else 'remove'} it; known are {', '.join(sorted(self._known))}",
            )

    def text(self, name: str) -> str | None:
        value = self.value(name)
        if value is None or isinstance(value, str):
            return value
        self.wrong(name, f"is {type_of(value)}", "write a string")
        return None

    def filled(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and not value.strip():
            self.wrong(name, "is empty", "write a value, or leave the key out")
            return None
        return value

    def identifier(self, name: str) -> str | None:
        value = self.filled(name)
        if value is not None and not NAME.fullmatch(value):
            self.wrong(name, f"is {value!r}, which is no name", NAME_REMEDY)
        return value

    def dataid(self, name: str, default: str | None = None) -> str | None:
        value = self.text(name)
        if value is not None and not DATAID.fullmatch(value):
            self.wrong(name, f"is {value!r}, which is no dataid", DATAID_REMEDY)
        return default if value is None else value

    def word(self, name: str, allowed: Collection[str], default: str | None = None) -> str | None:
        value = self.text(name)
        if value is None:
            return default
        if value in allowed:
            return value
        self.wrong(name, f"is {value!r}{did_you_mean(value, allowed)}", f"write one of {', '.join(allowed)}")
        return default

    def whole(self, name: str, *, minimum: int = -INTEGER_MAX, default: int | None = None) -> int | None:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            self.wrong(name, f"is {type_of(value)}", "write a whole number")
            return default
        if not minimum <= value <= INTEGER_MAX:
            self.wrong(name, f"is {value}", f"write a whole number from {minimum} to {INTEGER_MAX}")
            return default
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.value(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.wrong(name, f"is {type_of(value)}", "write true or false, without quotes")
        return default

    def seconds(self, name: str, *, minimum: int = 0, default: float | None = None) -> float | None:
        value = self.value(name)
        if value is None:
            return default
        found = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if found:
            value = int(found[1]) * _UNITS[found[2]]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.wrong(name, f"is {value!r}, which is no duration", _DURATION_REMEDY)
            return default
        if not minimum <= value <= SECONDS_MAX:
            self.wrong(name, f"is {value:g} seconds", f"write a duration from {minimum} seconds to 3650 days")
            return default
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """An array of distinct, non-empty strings. A wrong element is reported with its own line and left out."""
        value = self.value(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.wrong(name, f"is {type_of(value)}", 'write an array of strings: ["..."]')
            return ()
        found: list[str] = []
        for index, element in enumerate(value):
            if not isinstance(element, str) or not element:
                what = "an empty string" if element == "" else type_of(element)
                self._element(name, index, f"has {what} in it", "write an array of strings")
            elif element in found:
                self._element(name, index, f"has {element!r} twice", "name it once")
            else:
                found.append(element)
        return tuple(found)

    def dataids(self, name: str) -> tuple[str, ...]:
        found = self.words(name)
        if not found and self.value(name) == []:
            self.wrong(name, "is empty", "name at least one dataid")
        for index, element in enumerate(self.value(name) if found else []):
            if element in found and not DATAID.fullmatch(element):
                self._element(name, index, f"has {element!r} in it, which is no dataid", DATAID_REMEDY)
        return found

    def table(self, name: str) -> dict[str, Any]:
        value = self.value(name)
        if value is None or isinstance(value, dict):
            return value or {}
        self.wrong(name, f"is {type_of(value)}", f"write a table: [{'.'.join(map(str, (*self.key, name)))}]")
        return {}

    def section(self, name: str) -> Section:
        return Section(self.report, (*self.key, name), self.table(name))

    def data(self, name: str) -> dict[str, Any]:
        """A table of plain data, as JSON can carry it."""
        return {
            element: self._plain((*self.key, name, element), value)
            for element, value in self.table(name).items()
        }

    def data_value(self, name: str) -> Any:
        return self._plain((*self.key, name), self.value(name))

    def data_list(self, name: str) -> list[Any]:
        value = self.data_value(name)
        if value is None or isinstance(value, list):
            return value or []
        self.wrong(name, f"is {type_of(value)}", "write an array")
        return []

    def _plain(self, key: Key, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._plain((*key, name), element) for name, element in value.items()}
        if isinstance(value, list):
            return [self._plain((*key, index), element) for index, element in enumerate(value)]
        if isinstance(value, dt.date | dt.time):
            return value.isoformat()
        if isinstance(value, float) and not math.isfinite(value):
            self.report.add(key, f"{'.'.join(map(str, key))} is {value}", "write a finite number or a string")
            return None
        return value

    def _element(self, name: str, index: int, what: str, remedy: str) -> None:
        self.report.add((*self.key, name, index), f"{self.title}.{name} {what}", remedy)
