"""Whether the files at a location are those that were published or registered."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import Batch, Chunk, Dataset, Input, Order
from dataflowd.runner import script
from dataflowd.storage import files, found, manifest_check
from dataflowd.storage.evidence import Evidence

if TYPE_CHECKING:
    from pathlib import Path

DAY = "2026-01-31"
NOON = 1_769_860_800  # 12:00 UTC of DAY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return put(tmp_path / "a.csv", "1,one\n")


def put(path: Path, text: str, at: int = NOON) -> Path:
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def look(path: Path, chunk: Chunk, *, digest: bool = False) -> None:
    source = Input(dataset=Dataset(name="raw", format="csv", digest=digest), chunks=(chunk,))
    manifest_check.require_right(source, chunk, files.local_listing(path, digest=digest))


def refused(path: Path, chunk: Chunk, *, digest: bool = False) -> str:
    with pytest.raises(AttemptError) as told:
        look(path, chunk, digest=digest)
    assert told.value.code == "WRONG_DATA"
    return told.value.message


def registered(path: Path, *, digest: bool = False) -> Chunk:
    measured = found.of(files.local_listing(path, digest=digest)).document()
    return Chunk(dataid=DAY, location=str(path), measured=measured)


def test_a_registered_file_of_another_size_or_time_is_refused(path: Path) -> None:
    chunk = registered(path)
    look(path, chunk)
    put(path, "1,one\n2,two\n")
    assert "bytes 6 then, 12 now" in refused(path, chunk)
    put(path, "1,two\n", NOON + 1)
    assert "modified 2026-01-31T12:00:00.000+00:00 then, 2026-01-31T12:00:01.000+00:00 now" in refused(
        path, chunk
    )
    put(path, "1,two\n")
    look(path, chunk)


def test_a_digest_finds_what_size_and_time_do_not_and_forgives_a_copy_that_was_restored(path: Path) -> None:
    chunk = registered(path, digest=True)
    put(path, "1,two\n")
    assert "digest" in refused(path, chunk, digest=True)
    put(path, "1,one\n", NOON + 3600)
    look(path, chunk, digest=True)
    # Without a digest on either side, the file's time decides.
    assert "modified" in refused(path, chunk)


def test_a_published_file_of_equal_size_is_found_when_digests_are_on(path: Path) -> None:
    listed = tuple(file.document() for file in files.local_listing(path, digest=True))
    chunk = Chunk(dataid=DAY, location=str(path), files=listed)
    put(path, "1,two\n", NOON + 60)
    look(path, chunk)
    assert "1 of the same size with other content" in refused(path, chunk, digest=True)
    before = replace(chunk, files=tuple({"path": "", "bytes": 6} for _ in listed))
    look(path, before, digest=True)


def test_yesterdays_file_is_refused_where_a_newer_one_is_expected(path: Path) -> None:
    chunk = Chunk(dataid=DAY, location=str(path), not_older="2026-01-31T00:00:00.000+00:00")
    look(path, chunk)
    put(path, "1,one\n", NOON - 86_400)
    assert "is of 2026-01-30T12:00:00.000+00:00, before the day of the chunk" in refused(path, chunk)


def order_of(*chunks: Chunk) -> Order:
    source = Input(dataset=Dataset(name="raw", format="csv", digest=True), chunks=chunks)
    return Order(
        attempt=1, jobid="copy", dataid="1", tag="t", code="", directory="/", inputs={"raw": source}, outputs={},
        allowed_roots=("/",),
    )  # fmt: skip


def test_a_source_is_read_once_however_many_batches_share_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def digest(one: Path) -> str:
        read.append(one)
        return "d"

    monkeypatch.setattr(files, "_digest", digest)
    batch = Batch(columns=("id",), bounds={})
    order = order_of(*(Chunk(dataid=str(number), location=str(path), batch=batch) for number in range(500)))
    seen = Evidence(order)
    script.prepare(order, seen)
    assert read == [path]
    told = seen.document()["inputs"]["raw"]
    assert (told["chunks"], told["files"], told["bytes"]) == (1, 1, 6)
    # Chunks that are not batches may share a location too. Each is compared with its own registration.
    other = replace(registered(path), dataid="2", measured={"files": 1, "bytes": 7})
    with pytest.raises(AttemptError, match="bytes 7 then, 6 now"):
        script.prepare(changed := order_of(registered(path), other), Evidence(changed))


def test_a_file_that_may_not_be_read_is_reported_as_such(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(one: Path) -> str:
        raise PermissionError(13, "Permission denied", str(one))

    monkeypatch.setattr(files, "_digest", refuse)
    order = order_of(Chunk(dataid=DAY, location=str(path)))
    with pytest.raises(AttemptError, match=f"raw/{DAY}: {path} cannot be read: Permission denied") as told:
        script.prepare(order, Evidence(order))
    assert told.value.code == "INVALID_PATH"
