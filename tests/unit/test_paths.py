"""A location may be used when it lies under an allowed root, on the disk as well as in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dataflowd import paths
from dataflowd.faults import AttemptError
from dataflowd.order import attempt_location

if TYPE_CHECKING:
    from pathlib import Path


def test_a_location_under_a_root_is_allowed_whether_or_not_it_exists(tmp_path: Path) -> None:
    paths.check(f"{tmp_path}/orders/dataid=1", [str(tmp_path)])
    paths.check(f"file://{tmp_path}/orders", [str(tmp_path)])


@pytest.mark.parametrize(
    "location",
    [
        "{root}/../elsewhere",
        "{root}/a/../b",
        "/etc",
        "{root}x/orders",
        "relative/orders",
        "s3a://bucket/orders",
    ],
)
def test_what_is_not_under_a_root_is_refused(tmp_path: Path, location: str) -> None:
    with pytest.raises(AttemptError) as refused:
        paths.check(location.format(root=tmp_path), [str(tmp_path)])
    assert refused.value.code == "INVALID_PATH"
    assert refused.value.retry is False


def test_a_link_that_leaves_the_root_is_refused(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "orders").symlink_to(outside)
    with pytest.raises(AttemptError, match="leads by a link to"):
        paths.check(f"{root}/orders/dataid=1", [str(root)])


def test_a_root_that_is_itself_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    paths.check(f"{tmp_path}/root/orders", [f"{tmp_path}/root"])


def test_a_bucket_is_allowed_by_its_own_root(tmp_path: Path) -> None:
    paths.check("s3a://bucket/orders/1", [str(tmp_path), "s3a://bucket/orders"])


def test_every_attempt_has_a_directory_of_its_own() -> None:
    hidden = "/data/orders/dataid=2026-01-01/.attempts/attempt=7"
    assert attempt_location("/data/orders", "2026-01-01", 7) == hidden
    assert attempt_location("/data/{dataid}/orders/", "x", 7) == "/data/x/orders/.attempts/attempt=7"
    behind = "/data/orders/.attempts/dataid=x/attempt=7"  # a fixed path, which has its own hidden directory
    assert attempt_location("/data/orders/.attempts", "x", 7) == behind
