"""What the host adds to an attempt's evidence: sums over all chunks, a list of the first ones, and at most STORED_CHARACTERS."""

from __future__ import annotations

from dataflowd.model.work_order import Chunk, Dataset, Input, Order, Output
from dataflowd.storage.evidence import LISTED, STORED_CHARACTERS, Evidence, bounded
from dataflowd.storage.found import Found

ORDER = Order(
    attempt=7,
    jobid="copy",
    dataid="1",
    tag="t",
    code="jobs:copy",
    directory="/flows",
    inputs={name: Input(dataset=Dataset(name=name), chunks=()) for name in ("raw", "raw0", "raw1")},
    outputs={
        "out": Output(dataset=Dataset(name="out"), location="/data/out"),
        "table": Output(dataset=Dataset(name="table", format="postgres"), location=None),
    },
    code_hash="c0de",
    config_hash="c0nf",
)


def chunk(number: int) -> Chunk:
    return Chunk(dataid=str(number), version=2, location=f"/data/raw/{number}")


def test_an_output_has_the_directory_of_the_attempt() -> None:
    assert Evidence(ORDER).document() == {
        "inputs": {},
        "outputs": {"out": "/data/out/.attempts/dataid=1/attempt=7"},
        "code_hash": "c0de",
        "config_hash": "c0nf",
        "directory": "/flows",
    }


def test_chunks_are_summed_and_only_the_first_are_listed() -> None:
    seen = Evidence(ORDER)
    for number in range(3 * LISTED):
        seen.measured(f"raw{number % 2}", chunk(number), Found(files=2, bytes=10, modified=1000 * number))
    inputs = seen.document()["inputs"]
    assert [(one["chunks"], one["files"], one["bytes"]) for one in inputs.values()] == [(150, 300, 1500)] * 2
    assert sum(len(one["listed"]) for one in inputs.values()) == LISTED
    assert inputs["raw0"]["listed"][0] | {"modified": None} == {
        "dataid": "0",
        "version": 2,
        "location": "/data/raw/0",
        "files": 2,
        "bytes": 10,
        "modified": None,
    }
    assert inputs["raw1"]["modified"] == "1970-01-01T00:04:59.000+00:00", (
        "the time is that of the newest chunk"
    )


def test_an_input_has_a_digest_only_when_one_chunk_is_the_whole_input() -> None:
    seen = Evidence(ORDER)
    seen.measured("raw", chunk(1), Found(files=1, bytes=1, modified=None, digest="d1"))
    assert seen.document()["inputs"]["raw"]["digest"] == "d1"
    seen.measured("raw", chunk(2), Found(files=1, bytes=1, modified=None, digest="d2"))
    raw = seen.document()["inputs"]["raw"]
    assert ("digest" in raw, [one["digest"] for one in raw["listed"]]) == (False, ["d1", "d2"])


def test_what_cannot_be_measured_says_why() -> None:
    seen = Evidence(ORDER)
    seen.measured("raw", Chunk(dataid="1", location="s3a://bucket/raw"), None)
    assert "s3a://bucket/raw is not on this host's disk" in seen.document()["inputs"]["raw"]["note"]


def test_evidence_that_is_too_long_is_replaced_by_its_length() -> None:
    assert bounded({"inputs": {}}) == {"inputs": {}}
    assert bounded({"note": "x" * STORED_CHARACTERS}) == {"left_out": STORED_CHARACTERS + len('{"note": ""}')}
