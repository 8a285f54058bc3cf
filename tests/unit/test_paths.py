"""A location is allowed when its text, and its path on disk after links are followed, lies under an allowed root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dataflowd.host import allowed_roots
from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import attempt_location

if TYPE_CHECKING:
    from pathlib import Path


def test_a_location_under_a_root_is_allowed_whether_or_not_it_exists(tmp_path: Path) -> None:
    allowed_roots.check(f"{tmp_path}/orders/dataid=1", [str(tmp_path)])
    allowed_roots.check(f"file://{tmp_path}/orders", [str(tmp_path)])


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
        allowed_roots.check(location.format(root=tmp_path), [str(tmp_path)])
    assert refused.value.code == "INVALID_PATH"
    assert refused.value.retry is False


def test_a_link_that_leaves_the_root_is_refused(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "orders").symlink_to(outside)
    with pytest.raises(AttemptError, match="leads by a link to"):
        allowed_roots.check(f"{root}/orders/dataid=1", [str(root)])


def test_a_root_that_is_itself_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    allowed_roots.check(f"{tmp_path}/root/orders", [f"{tmp_path}/root"])


def test_a_bucket_is_allowed_by_its_own_root(tmp_path: Path) -> None:
    allowed_roots.check("s3a://bucket/orders/1", [str(tmp_path), "s3a://bucket/orders"])


@pytest.mark.parametrize(
    ("location", "roots", "written"),
    [
        ("/data/orders", ["/data"], "/data/.attempts/orders/dataid=x/attempt=7"),
        ("/data/shop/orders/", ["/data/"], "/data/.attempts/shop/orders/dataid=x/attempt=7"),
        ("/data/{dataid}/orders/", ["/data"], "/data/.attempts/x/orders/attempt=7"),
        # How the database gives the location of a dataset with a fixed path.
        ("/data/orders/.attempts", ["/data"], "/data/.attempts/orders/dataid=x/attempt=7"),
        # The nearest of several roots counts, also when it is the dataset's own directory.
        ("/data/shop/orders", ["/data", "/data/shop", "/"], "/data/shop/.attempts/orders/dataid=x/attempt=7"),
        ("/data/orders", ["/data/orders", "/data"], "/data/orders/.attempts/dataid=x/attempt=7"),
        ("/orders", ["/"], "/.attempts/orders/dataid=x/attempt=7"),
        ("file:///data/orders", ["/data"], "file:///data/.attempts/orders/dataid=x/attempt=7"),
        ("/data/orders", ["file:///data"], "/data/.attempts/orders/dataid=x/attempt=7"),
        ("/data/./orders", ["/data"], "/data/./.attempts/orders/dataid=x/attempt=7"),
        ("s3a://b/shop/orders", ["/data", "s3a://b"], "s3a://b/.attempts/shop/orders/dataid=x/attempt=7"),
        ("s3a://b", ["s3a://b"], "s3a://b/.attempts/dataid=x/attempt=7"),
        ("/elsewhere/orders", ["/data"], "/elsewhere/orders/.attempts/dataid=x/attempt=7"),
    ],
)
def test_every_attempt_has_a_directory_of_its_own(location: str, roots: list[str], written: str) -> None:
    assert attempt_location(location, "x", 7, roots) == written


def test_a_directory_that_cannot_be_made_is_named_before_any_code_runs(tmp_path: Path) -> None:
    allowed_roots.require_writable(f"{tmp_path}/a/b/c")
    allowed_roots.require_writable("s3a://bucket/a")
    (tmp_path / "file").touch()
    with pytest.raises(AttemptError, match=r"may not write to .*/file"):
        allowed_roots.require_writable(f"{tmp_path}/file/a")
