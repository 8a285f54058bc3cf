"""How the files at a location are measured: number, size, time and digest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dataflowd.storage import found

if TYPE_CHECKING:
    from pathlib import Path

NEW_YEAR = 1_767_225_600  # 2026-01-01 in UTC


def written(path: Path, text: str, at: int = NEW_YEAR) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def test_a_directory_is_measured_by_its_data_files(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "one")
    written(tmp_path / "below" / "b.csv", "three", NEW_YEAR + 60)
    written(tmp_path / "_SUCCESS", "", NEW_YEAR + 3600)
    written(tmp_path / ".a.csv.crc", "12345678", NEW_YEAR + 3600)
    measured = found.here(str(tmp_path))
    assert measured is not None
    assert measured.document() == {"files": 2, "bytes": 8, "modified": "2026-01-01T00:01:00.000+00:00"}


def test_one_file_is_measured_as_a_directory_is(tmp_path: Path) -> None:
    measured = found.here(f"file://{written(tmp_path / 'a.csv', 'one')}")
    assert measured is not None
    assert measured.document() == {"files": 1, "bytes": 3, "modified": "2026-01-01T00:00:00.000+00:00"}


def test_a_digest_tells_files_of_equal_size_and_time_apart(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "one")
    before = found.here(str(tmp_path), digest=True)
    written(path, "two")
    after = found.here(str(tmp_path), digest=True)
    assert before is not None
    assert after is not None
    assert before.digest is not None
    assert (before.bytes, before.modified) == (after.bytes, after.modified)
    assert before.digest != after.digest


def test_a_missing_path_has_no_files_and_a_bucket_is_not_measured(tmp_path: Path) -> None:
    assert found.here(str(tmp_path / "nowhere")) == found.Found(files=0, bytes=0, modified=None)
    assert found.here("s3a://bucket/a") is None
