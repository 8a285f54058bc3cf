"""The environment variables that a script gets, and the lines that it may report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflowd.engine.report import LINE_BYTES, Reader, Report
from dataflowd.flow import script_variables
from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import Chunk, Connection, Dataset, Input, Order, Output
from dataflowd.runner import script
from dataflowd.runner.output_filter import Recogniser

if TYPE_CHECKING:
    from pathlib import Path


def order(*datasets: str, outputs: tuple[str, ...] = ("out",), **params: Any) -> Order:
    return Order(
        attempt=7,
        jobid="load",
        dataid="d1",
        tag="",
        code="",
        directory="/flow",
        params=params,
        inputs={
            name: Input(
                dataset=Dataset(name=name, connection=Connection(hostname="h")),
                chunks=(Chunk(dataid="d0", location="/r/d0"), Chunk(dataid="d1", location="/r/d1")),
            )
            for name in datasets
        },
        outputs={name: Output(dataset=Dataset(name=name), location=f"/r/{name}") for name in outputs},
    )


def test_an_input_of_several_chunks_has_one_a_line() -> None:
    found = script_variables.variables(order("raw"))
    assert (found["raw_location"], found["raw_dataid"]) == ("/r/d0\n/r/d1", "d0\nd1")
    assert (found["out_location"], found["out_itemtype"]) == ("/r/out/.attempts/dataid=d1/attempt=7", "OUT")


def test_a_dataset_that_is_read_and_written_has_both_places() -> None:
    found = script_variables.variables(order("out"))
    assert (found["out_itemtype"], found["out_location"]) == ("OUT", "/r/out/.attempts/dataid=d1/attempt=7")
    assert (found["out_in_location"], found["out_in_dataid"]) == ("/r/d0\n/r/d1", "d0\nd1")


def test_two_names_that_would_become_one_variable_are_refused() -> None:
    with pytest.raises(AttemptError, match="a_b_datasetid would stand for two things"):
        script_variables.variables(order("a.b", "a-b"))


@given(
    st.dictionaries(st.text(min_size=1, max_size=10), st.text() | st.integers() | st.booleans(), max_size=3)
)
def test_a_variable_has_a_name_that_every_shell_knows(params: dict[str, Any]) -> None:
    try:
        found = script_variables.variables(
            order("raw", **{f"p{name}": value for name, value in params.items()})
        )
    except AttemptError:
        return
    assert all(name.isascii() and name.replace("_", "a").isalnum() for name in found)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["rows", "file", "check", "passed", "quarantine", "progress", "total", "dataset", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(_JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200))
def test_a_line_of_a_report_is_understood_or_refused(line: bytes) -> None:
    report = Report(["out"])
    try:
        report.add(line, 1)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - most lines are refused
    assert all(isinstance(rows, int) and rows >= 0 for rows in report.rows.values())
    assert all(".." not in path.split("/") for paths in report.files.values() for path in paths)


def test_a_wrong_line_of_a_report_is_named_at_every_look(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text('{"rows": 1}\n\n{"rows": -1}\n{"rows": 2', encoding="ascii")
    reader = Reader(path, ["out"])
    for _ in range(2):
        with pytest.raises(AttemptError, match="line 3 of the file that DATAFLOW_REPORT names has at 'rows'"):
            reader.look()
    assert reader.report.rows == {"out": 1}
    long = Reader(tmp_path / "long", ["out"])
    (tmp_path / "long").write_bytes(b'{"quarantine": "' + b"x" * LINE_BYTES + b'"}\n')
    with pytest.raises(AttemptError, match="is longer than"):
        long.look()
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(AttemptError, match="cannot be read"):
        Reader(tmp_path / "link", ["out"]).look()


def test_a_report_is_read_as_it_grows(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "report", ["out"])
    assert reader.look().progress is None
    with (tmp_path / "report").open("w", encoding="ascii") as file:
        file.write('{"progress": 1, "total": 3}\n{"progress": 2')
        file.flush()
        assert reader.look().progress == (1, 3)
        file.write(', "total": 3}')
    assert reader.look(is_last=True).progress == (2, 3)


@given(st.text(min_size=4), st.integers(0, 50))
def test_a_secret_is_masked_in_every_form_that_is_known(secret: str, place: int) -> None:
    forms = script.forms([secret])
    text = bytearray(("x" * place + secret + "y").encode())
    if secret.encode() in forms:
        spans = Recogniser.of(forms).spans(text, len(text))
        assert any(start <= place and place + len(secret.encode()) <= end for start, end in spans)
