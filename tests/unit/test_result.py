"""The fields of a result are declared once, in dataflowd.model.attempt; the wire and the SQL functions know the same ones."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from dataflowd.host import sqlfiles
from dataflowd.model.attempt import Manifest, Result, told_by
from dataflowd.runner import wire
from dataflowd.storage.manifest import manifest

FUNCTIONS = sqlfiles.sql_dir() / "functions"
FINISH = FUNCTIONS / "finish.sql"
OUTSIDE = FUNCTIONS / "outside.sql"


def listed(pattern: str) -> frozenset[str]:
    """The names in the array literal of outside.sql that the pattern finds."""
    found = re.search(pattern, OUTSIDE.read_text())
    assert found is not None
    return frozenset(found[1].split(","))


def test_a_runner_may_send_only_the_fields_that_are_declared_for_it() -> None:
    values = {str: "DONE", bool: True, dict: {}, list: []}
    for each in fields(Result):
        kinds = wire._RESULT.get(each.name, (str,))
        result = {"outcome": "DONE", each.name: values[kinds[0]]}
        message = {"type": "result", "attempt": 1, "result": result}
        if each.name in told_by("runner"):
            wire.check(message)
        else:
            with pytest.raises(wire.WireError):
                wire.check(message)


def test_an_outside_executor_may_send_only_the_fields_that_are_declared_for_it() -> None:
    assert listed(r"known constant text\[\] := '\{(.*)\}'") == told_by("outside") | {
        "retry_after"
    }  # only SQL passes retry_after


def test_finish_reads_every_field() -> None:
    # finish calls _note_judged and _record_found, which are in other files.
    said = "".join(
        (FUNCTIONS / f"{name}.sql").read_text() for name in ("finish", "evidence", "judgement", "replay")
    )
    unread = [each.name for each in fields(Result) if not re.search(rf"\b{each.name}\b", said)]
    assert unread == []


def test_the_functions_know_the_fields_of_a_manifest() -> None:
    names = {each.name for each in fields(Manifest)}
    assert listed(r"k <> ALL \('\{(location.*)\}'\)") == names
    found = re.search(r"AS m \(\s*(location text[^)]*)\)", FINISH.read_text())
    assert found is not None
    assert {column.split()[0] for column in found[1].split(",")} == names


def test_the_document_leaves_out_empty_fields_and_keeps_false_ones() -> None:
    result = Result(attempt=1, token="t", outcome="FAILED", code="X", retry=False, usage={})  # noqa: S106
    told = {"attempt": 1, "token": "t", "outcome": "FAILED", "code": "X", "retry": False}
    assert result.document() == told


def test_only_an_output_with_columns_has_a_fingerprint() -> None:
    files = [{"path": "a", "bytes": 3}, {"path": "b", "bytes": 4}]
    assert manifest("/x", files, None)["fingerprint"] is None
    known = manifest("/x", files, 2, "id int")
    assert (known["bytes"], known["rows"], len(known["fingerprint"])) == (7, 2, 64)
