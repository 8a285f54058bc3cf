"""Reads back an export of quarantined records that a person has edited: only edited lines become resolutions."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from dataflowd.cli import quarantine_file
from dataflowd.model.errors import NotAllowedError

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS: list[dict[str, Any]] = [
    {
        "dataid": "d1",
        "itemid": "1",
        "code": "BAD_RECORD",
        "reason": "no amount",
        "record": {"id": 1, "amount": -2.5, "note": 'said "no",\nthen ü', "gone": None},
    },
    {"dataid": "d1", "itemid": "2", "code": "MALFORMED", "reason": "broken", "record": "1;2;3"},
]


def decided(content: str, form: quarantine_file.Format) -> list[dict[str, Any]]:
    return quarantine_file.resolutions(quarantine_file.parsed(content, form), ROWS)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_an_export_that_nobody_touched_decides_nothing(form: quarantine_file.Format) -> None:
    assert decided(quarantine_file.text(ROWS, form), form) == []


def test_a_repair_in_csv_is_the_cells_that_changed_and_an_emptied_one_is_null() -> None:
    content = quarantine_file.text(ROWS[:1], "csv").replace(",no amount,,,", ",no amount,repair,,")
    assert '""no"",\nthen ü' in content
    repaired = content.replace(",-2.5,", ",2.5,")
    [only] = decided(repaired, "csv")
    assert only == {"dataid": "d1", "itemid": "1", "resolution": {"repaired": {"amount": "2.5"}}}
    [only] = decided(content.replace(",-2.5,", ",,"), "csv")
    assert only["resolution"] == {"repaired": {"amount": None}}


def test_a_record_that_could_not_be_parsed_is_replaced_by_an_object() -> None:
    content = quarantine_file.text(ROWS[1:], "json").replace('"action": ""', '"action": "repair"')
    with pytest.raises(NotAllowedError, match="line 1 repairs a text"):
        decided(content, "json")
    [only] = decided(content.replace('"1;2;3"', '{"id": 2, "amount": 3}'), "json")
    assert only["resolution"] == {"repaired": {"id": 2, "amount": 3}}


PARSED: dict[str, Any] = {
    "dataid": "d1",
    "itemid": "3",
    "code": "MALFORMED",
    "reason": "does not fit the schema of raw",
    "record": "4,eve,xx",
    "parsed": {"id": 4, "name": "eve", "amount": None},
}


def edited(form: quarantine_file.Format, record: Mapping[str, Any], **cells: str) -> list[dict[str, Any]]:
    """The resolutions that come back when a person exports the record, fills in these cells, and imports the file."""
    content = quarantine_file.text([record], form)
    if form == "csv":
        reader = csv.DictReader(io.StringIO(content))
        [line] = reader
        written = io.StringIO()
        writer = csv.DictWriter(written, reader.fieldnames or [])
        writer.writeheader()
        writer.writerow(
            line | {f"record.{name}": value for name, value in cells.items()} | {"action": "repair"}
        )
        content = written.getvalue()
    else:
        line = json.loads(content)
        content = json.dumps(line | {"record": line["record"] | cells, "action": "repair"})
    return [
        one["resolution"]
        for one in quarantine_file.resolutions(quarantine_file.parsed(content, form), [record])
    ]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_line_that_could_not_be_parsed_has_columns_to_fill_in(form: quarantine_file.Format) -> None:
    content = quarantine_file.text([PARSED], form)
    assert "does not fit the schema of raw; fill in amount" in content
    assert "4,eve,xx" in content
    assert edited(form, PARSED, amount="5.5") == [{"repaired": {"amount": "5.5"}}]
    with pytest.raises(NotAllowedError, match="repairs nothing") as refused:
        edited(form, PARSED)
    assert refused.value.remedy == "fill in amount, or drop the record"


@pytest.mark.parametrize("form", ["json", "csv"])
def test_repairing_a_line_with_too_many_fields_keeps_its_columns(form: quarantine_file.Format) -> None:
    more = PARSED | {"record": "4,eve,1,more", "parsed": {"id": 4, "name": "eve", "amount": 1}}
    assert "repair takes its columns as they stand" in quarantine_file.text([more], form)
    assert edited(form, more) == [{"repaired": {"id": 4, "name": "eve", "amount": 1}}]


def test_the_refusal_of_a_text_as_repair_names_the_columns() -> None:
    line = {"dataid": "d1", "itemid": "3", "action": "repair", "record": "4,eve,5"}
    with pytest.raises(NotAllowedError, match="repairs a text") as refused:
        quarantine_file.resolutions(quarantine_file.parsed(json.dumps(line), "json"), [PARSED])
    assert '{"id": ..., "name": ..., "amount": ...}' in refused.value.remedy


def test_a_dropped_record_keeps_the_note() -> None:
    content = quarantine_file.text(ROWS[:1], "json").replace(
        '"action": "", "note": ""', '"action": "DROP", "note": "a test"'
    )
    assert decided(content, "json")[0]["resolution"] == {"reason": "a test"}


@pytest.mark.parametrize(
    ("content", "form", "said"),
    [
        ("{", "json", "line 1 is no JSON"),
        ("[]", "json", "line 1 is no JSON object"),
        ('\n{"dataid": "d1"}', "json", "line 2 has no itemid, action"),
        ('{"dataid": "d1", "itemid": "1", "action": "fix"}', "json", "has the action 'fix'"),
        ('{"dataid": "d1", "itemid": "9", "action": "drop"}', "json", "names record 9 of d1"),
        (
            '{"dataid": "d1", "itemid": "1", "action": "repair", "record": {"id": 1}}',
            "json",
            "repairs nothing",
        ),
        ("dataid,itemid,action\nd1,1\n", "csv", "line 2 has another number of cells"),
        ('dataid,itemid,action\nd1,"1"x,drop\n', "csv", "line 2 is no CSV"),
        ("a,b\n1,2\n", "csv", "has no dataid, itemid, action"),
    ],
)
def test_a_line_that_says_nothing_clear_is_named_and_nothing_is_taken(
    content: str, form: quarantine_file.Format, said: str
) -> None:
    with pytest.raises(NotAllowedError, match=said):
        decided(content, form)


def test_a_file_of_another_kind_is_refused() -> None:
    assert quarantine_file.format_of("bad.JSONL") == "json"
    with pytest.raises(NotAllowedError, match=r"neither \.json nor \.csv"):
        quarantine_file.format_of("bad.xlsx")
