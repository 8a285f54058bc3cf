"""The file of known keys has one key a database. Concurrent writers lose nothing."""

from __future__ import annotations

import stat
import threading
from typing import TYPE_CHECKING

import pytest

from dataflowd.host.known_keys import KnownKeys
from dataflowd.model.errors import InvalidCredentialError

if TYPE_CHECKING:
    from pathlib import Path


def test_each_database_has_its_key_and_a_new_one_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "known_keys"
    one, two = KnownKeys(path, "db1:5432/a"), KnownKeys(path, "db2:5432/a")
    assert KnownKeys(path, "db1:5432/a").keyid is None
    one.remember("1111")
    two.remember("2222")
    one.remember("3333")
    assert (one.keyid, two.keyid) == ("3333", "2222")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_concurrent_writers_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "known_keys"
    databases = [KnownKeys(path, f"db{number}:5432/a") for number in range(8)]
    threads = [
        threading.Thread(target=one.remember, args=(f"{number}",)) for number, one in enumerate(databases)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.keyid for one in databases] == [f"{number}" for number in range(8)]


def test_keys_are_not_written_below_a_directory_that_everybody_can_change(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(InvalidCredentialError, match="can be changed by everybody"):
        KnownKeys(shared / "deep" / "known_keys", "db:5432/a").remember("1")
    assert list(shared.iterdir()) == []
