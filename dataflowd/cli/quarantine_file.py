"""Bad records as a file that a person edits: a line a record, with its columns, and `action` and `note` to fill in.

`action` is empty (not decided yet), `repair` (use the record as it is in the line now) or `drop`. A repair consists of the
columns that differ from the record as it was set aside; an emptied cell of CSV, or null in JSON, is NULL. For a record that
could not be parsed, the file has the original line in `text`, only for the reader, and the columns that Spark could read;
`reason` says which columns to fill in. If no column is missing, `repair` takes the columns as they are.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from dataflowd.model.errors import NotAllowedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Format = Literal["json", "csv"]
FIXED = ("dataid", "itemid", "code", "reason", "action", "note")
PREFIX = "record."
TEXT = "text"
ACTIONS = ("", "repair", "drop")


@dataclass(frozen=True)
class Line:
    """A record as it came back, and where it stands in the file."""

    number: int
    dataid: str
    itemid: str
    action: str
    note: str
    record: Any


def format_of(name: str) -> Format:
    ending = name.rpartition(".")[2].lower()
    if ending in get_args(Format):
        return ending  # type: ignore[return-value]
    if ending in {"jsonl", "ndjson"}:
        return "json"
    raise NotAllowedError(f"{name} is neither .json nor .csv", "name the file so, or give --format")


def text(rows: Sequence[Mapping[str, Any]], form: Format) -> str:
    lines = [{name: row.get(name) or "" for name in FIXED} | _editable(row) for row in rows]
    if form == "json":
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    columns = list(dict.fromkeys(name for line in lines for name in _cells(line)))
    written = io.StringIO()
    writer = csv.DictWriter(written, [*FIXED, *columns], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: line[name] for name in FIXED} | _cells(line) for line in lines)
    return written.getvalue()


def _editable(row: Mapping[str, Any]) -> dict[str, Any]:
    record, parsed = row["record"], row.get("parsed")
    if isinstance(record, dict):
        return {"record": record}
    if not parsed:
        return {"record": record, TEXT: _cell(record)}
    lacks = _unread(parsed)
    said = f"fill in {', '.join(lacks)}" if lacks else "repair takes its columns as they stand"
    return {
        "reason": f"{row.get('reason') or ''}; {said}".lstrip("; "),
        "record": parsed,
        TEXT: _cell(record),
    }


def _unread(parsed: Mapping[str, Any]) -> list[str]:
    return [name for name, value in parsed.items() if value is None]


def _cells(line: Mapping[str, Any]) -> dict[str, str]:
    text = {TEXT: line[TEXT]} if TEXT in line else {}
    record = line["record"] if isinstance(line["record"], dict) else {}
    return text | {PREFIX + name: _cell(value) for name, value in record.items()}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parsed(content: str, form: Format) -> Iterator[Line]:
    for number, fields in _json_lines(content) if form == "json" else _csv_lines(content):
        missing = [name for name in ("dataid", "itemid", "action") if not isinstance(fields.get(name), str)]
        if missing:
            raise _wrong(number, f"has no {', '.join(missing)}", "keep the columns of the export")
        action = fields["action"].strip().lower()
        if action not in ACTIONS:
            raise _wrong(number, f"has the action {action!r}", "write repair or drop, or leave it empty")
        note, record = str(fields.get("note") or ""), fields.get("record")
        yield Line(number, fields["dataid"], fields["itemid"], action, note, record)


def _json_lines(content: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise _wrong(number, f"is not JSON: {error}", "keep one object a line") from None
        if not isinstance(found, dict):
            raise _wrong(number, "is not a JSON object", "keep one object a line")
        yield number, found


def _csv_lines(content: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(content, newline=""), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise _wrong(reader.line_num, "has another number of cells than the first line", "")
            record: Any = {
                name.removeprefix(PREFIX): cell for name, cell in row.items() if name.startswith(PREFIX)
            }
            yield reader.line_num, {name: row.get(name) for name in FIXED} | {"record": record}
    except csv.Error as error:
        raise _wrong(reader.line_num + 1, f"is not CSV: {error}", "keep the quotes of the export") from None


def resolutions(lines: Iterable[Line], originals: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the decisions in the form of dataflow.resolve_records; leaves out records without a decision."""
    known = {(row["dataid"], row["itemid"]): row for row in originals}
    decided = []
    seen: dict[tuple[str, str], int] = {}
    for line in lines:
        if not line.action:
            continue
        if (line.dataid, line.itemid) not in known:
            raise _wrong(
                line.number,
                f"names record {line.itemid} of {line.dataid}, which the job has not set aside",
                "export again",
            )
        if (before := seen.setdefault((line.dataid, line.itemid), line.number)) != line.number:
            raise _wrong(
                line.number,
                f"decides on record {line.itemid} of {line.dataid}, as line {before} does",
                "keep one of them",
            )
        original = known[line.dataid, line.itemid]
        resolution = {"reason": line.note} if line.action == "drop" else {"repaired": _repair(line, original)}
        decided.append({"dataid": line.dataid, "itemid": line.itemid, "resolution": resolution})
    return decided


def _repair(line: Line, original: Mapping[str, Any]) -> dict[str, Any]:
    record, parsed = original["record"], original.get("parsed") or {}
    if not isinstance(line.record, dict):
        columns = ", ".join(f'"{name}": ...' for name in parsed) or '"column": "value"'
        raise _wrong(line.number, "repairs a text", f'put an object in its place: "record": {{{columns}}}')
    if isinstance(record, dict):
        found = _changed(line.record, record)
    elif parsed:
        as_it_stands = {} if _unread(parsed) else dict(parsed)
        found = _changed(line.record, parsed) or as_it_stands
    else:
        found = {name: value for name, value in line.record.items() if value != ""}
    if not found:
        lacks = "" if isinstance(record, dict) else ", ".join(_unread(parsed))
        remedy = f"fill in {lacks}" if lacks else "change a column"
        raise _wrong(line.number, "repairs nothing", f"{remedy}, or drop the record")
    return found


def _changed(edited: Mapping[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    cells = {name: _cell(value) for name, value in original.items()}
    return {
        name: None if value == "" else value
        for name, value in edited.items()
        if value != original.get(name) and _cell(value) != cells.get(name, "")
    }


def _wrong(number: int, what: str, remedy: str) -> NotAllowedError:
    return NotAllowedError(f"line {number} {what}; nothing was changed", remedy)
