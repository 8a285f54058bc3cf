"""An export that a person has edited says what was decided, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from dataflowd.ctl import records
from dataflowd.errors import NotAllowedError

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


def decided(content: str, form: records.Format) -> list[dict[str, Any]]:
    return records.resolutions(records.parsed(content, form), ROWS)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_an_export_that_nobody_touched_decides_nothing(form: records.Format) -> None:
    assert decided(records.text(ROWS, form), form) == []


def test_a_repair_in_csv_is_the_cells_that_changed_and_an_emptied_one_is_null() -> None:
    content = records.text(ROWS[:1], "csv").replace(",no amount,,,", ",no amount,repair,,")
    assert '""no"",\nthen ü' in content
    repaired = content.replace(",-2.5,", ",2.5,")
    [only] = decided(repaired, "csv")
    assert only == {"dataid": "d1", "itemid": "1", "resolution": {"repaired": {"amount": "2.5"}}}
    [only] = decided(content.replace(",-2.5,", ",,"), "csv")
    assert only["resolution"] == {"repaired": {"amount": None}}


def test_a_record_that_could_not_be_parsed_is_replaced_by_an_object() -> None:
    content = records.text(ROWS[1:], "json").replace('"action": ""', '"action": "repair"')
    with pytest.raises(NotAllowedError, match="line 1 repairs a text"):
        decided(content, "json")
    [only] = decided(content.replace('"1;2;3"', '{"id": 2, "amount": 3}'), "json")
    assert only["resolution"] == {"repaired": {"id": 2, "amount": 3}}


def test_a_dropped_record_keeps_the_note() -> None:
    content = records.text(ROWS[:1], "json").replace(
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
    content: str, form: records.Format, said: str
) -> None:
    with pytest.raises(NotAllowedError, match=said):
        decided(content, form)


def test_a_file_of_another_kind_is_refused() -> None:
    assert records.format_of("bad.JSONL") == "json"
    with pytest.raises(NotAllowedError, match=r"neither \.json nor \.csv"):
        records.format_of("bad.xlsx")
