"""Reads what a script reports as JSON lines in the file that DATAFLOW_REPORT names. One object a line, of one of five kinds:

    {"rows": 1200, "dataset": "orders"}                      rows of an output
    {"file": "part-1.csv", "rows": 600, "bytes": 9000, "dataset": "orders"}
    {"check": "totals", "passed": true, "observed": "12.50", "expected": "12.50", "severity": "error"}
    {"quarantine": "4711", "code": "BAD_DATE", "reason": "...", "record": {...}}
    {"progress": 3, "total": 10}

`dataset` may be left out if the job has one output. The file is written by job code and is not trusted: its size, the length
of a line and the number of lines are limited, and a line of another kind fails the attempt. The error has the line's number.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dataflowd.model.check_shapes import SEVERITIES
from dataflowd.model.faults import AttemptError
from dataflowd.sdk._quarantine import ITEM_CHARACTERS, KEPT, RECORD_CHARACTERS, Bad
from dataflowd.storage.checks import CheckResult

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

VARIABLE = "DATAFLOW_REPORT"
REPORT_BYTES = 64 * 1024 * 1024
LINE_BYTES = 64 * 1024
LINES = 100_000
TEXT_CHARACTERS = 2000
COUNT_MOST = 1 << 62

NUMBER, TEXT, FLAG, ANY = "a whole number, 0 or more", "a text", "true or false", "anything"
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "check": (
        TEXT,
        {"passed": FLAG, "observed": ANY, "expected": ANY, "severity": TEXT, "dataset": TEXT},
    ),
    "quarantine": (TEXT, {"code": TEXT, "reason": TEXT, "record": ANY, "source": TEXT}),
    "progress": (NUMBER, {"total": NUMBER}),
    "file": (TEXT, {"rows": NUMBER, "bytes": NUMBER, "dataset": TEXT}),
    "rows": (NUMBER, {"dataset": TEXT}),
}


class _WrongError(ValueError):
    """Says what is wrong with a line; the message continues "line 3 of the file ..."."""


@dataclass
class Report:
    outputs: Collection[str]
    rows: dict[str, int] = field(default_factory=dict)
    files: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    checks: dict[tuple[str, str], CheckResult] = field(default_factory=dict)
    bad: list[Bad] = field(default_factory=list)
    progress: tuple[int, int | None] | None = None

    def add(self, line: bytes, number: int) -> None:
        if number > LINES:
            raise _WrongError(f"is one too many: at most {LINES} are read")
        if len(line) > LINE_BYTES:
            raise _WrongError(f"is longer than {LINE_BYTES} bytes")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise _WrongError("is not JSON") from None
        kind = next((name for name in KINDS if isinstance(found, dict) and name in found), None)
        if kind is None:
            raise _WrongError(f"is not an object with one of the keys {', '.join(KINDS)}")
        main, others = KINDS[kind]
        for name, value in found.items():
            _check(name, value, main if name == kind else others.get(name))
        match kind:
            case "rows":
                self.rows[self._dataset(found)] = found["rows"]
            case "file":
                known = {name: found[name] for name in ("rows", "bytes") if name in found}
                self.files.setdefault(self._dataset(found), {})[_path(found["file"])] = known
            case "check":
                result = _result(self._dataset(found), found)
                self.checks[result.dataset, result.name] = result
            case "quarantine":
                self._set_aside(found)
            case _:
                self.progress = found["progress"], found.get("total")

    def _dataset(self, found: dict[str, Any]) -> str:
        if "dataset" not in found and len(self.outputs) == 1:
            return next(iter(self.outputs))
        if found.get("dataset") not in self.outputs:
            raise _WrongError(f"names no output of the job; its outputs are {', '.join(self.outputs)}")
        return str(found["dataset"])

    def _set_aside(self, found: dict[str, Any]) -> None:
        if len(self.bad) > KEPT:
            raise _WrongError(f"is one record too many: at most {KEPT} can be set aside")
        record = found.get("record")
        text = record if isinstance(record, str) else json.dumps(record)
        self.bad.append(
            Bad(
                found["quarantine"][:ITEM_CHARACTERS],
                found.get("code", "BAD_RECORD"),
                found.get("reason", ""),
                text[:RECORD_CHARACTERS],
                found.get("source"),
            )
        )


class Reader:
    """Reads the lines that were added since the last call. A job may put a pipe or a link in the file's place: neither blocks it."""

    def __init__(self, path: Path, outputs: Collection[str]) -> None:
        self.report = Report(outputs)
        self.path = path
        self._offset = 0
        self._number = 0
        self._rest = b""
        self._error: AttemptError | None = None

    def look(self, *, is_last: bool = False) -> Report:
        """Returns the report so far. Raises INVALID_REPORT at the first wrong line, and in every later call."""
        if self._error is None:
            try:
                self._look(is_last=is_last)
            except AttemptError as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self.report

    def _look(self, *, is_last: bool) -> None:
        *lines, self._rest = (self._rest + self._more()).split(b"\n")
        if is_last:
            lines.append(self._rest)
        for line in lines:
            self._number += 1
            if not line.strip():
                continue
            try:
                self.report.add(line, self._number)
            except _WrongError as error:
                raise AttemptError(
                    "INVALID_REPORT",
                    f"line {self._number} of the file that {VARIABLE} names {error}",
                    "correct what the script writes there; docs/scripts.md has the lines that are understood",
                ) from None

    def _more(self) -> bytes:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._unreadable(str(error.strerror)) from None
        try:
            # Checked before fdopen, which raises another error for a directory.
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise self._unreadable("it is not an ordinary file")
            with os.fdopen(handle, "rb", closefd=False) as file:
                file.seek(self._offset)
                data = file.read(REPORT_BYTES + 1 - self._offset)
        except OSError as error:
            raise self._unreadable(str(error.strerror)) from None
        finally:
            os.close(handle)
        self._offset += len(data)
        if self._offset > REPORT_BYTES:
            raise self._unreadable(f"it is larger than {REPORT_BYTES} bytes")
        return data

    def _unreadable(self, why: str) -> AttemptError:
        return AttemptError(
            "INVALID_REPORT", f"the file that {VARIABLE} names cannot be read: {why}", "append lines to it"
        )


def _check(name: str, value: Any, kind: str | None) -> None:
    match kind:
        case None:
            raise _WrongError(f"has the unknown key {name!r}")
        case "a whole number, 0 or more":
            is_right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MOST
        case "a text":
            is_right = isinstance(value, str) and len(value) <= TEXT_CHARACTERS and "\0" not in value
        case "true or false":
            is_right = isinstance(value, bool)
        case _:
            is_right = True
    if not is_right:
        raise _WrongError(f"has a wrong value for {name!r}: it must be {kind}")


def _path(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or not path.isprintable():
        raise _WrongError("names a file that is not below the output's location")
    return path


def _result(dataset: str, found: dict[str, Any]) -> CheckResult:
    if "passed" not in found or found.get("severity", "error") not in SEVERITIES:
        raise _WrongError("is a check without passed, or with a severity other than error and warn")
    shown = {name: str(found.get(name, ""))[:TEXT_CHARACTERS] for name in ("observed", "expected")}
    return CheckResult(dataset, found["check"], found.get("severity", "error"), found["passed"], **shown)
