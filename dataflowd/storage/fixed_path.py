"""publish = "rename": a chunk at a fixed path, `<location>/dataid=<id>`, for readers that do not ask the database.

The path is a symbolic link to the directory of the current attempt. A rename replaces the link in one step: a reader finds
the old version or the new one, each complete. The order of events:

1. The attempt writes to a directory of its own, below `.attempts` of its root.
2. `finish`, with the token, publishes in the database: the manifest names that directory.
3. The daemon turns the path: it locks the directory `<location>/.attempts/dataid=<id>`, asks the database which version is
   current, and replaces the link. The locked directory is empty; release 0.1.0 wrote to it, and locks it too.

In the opposite order a zombie could turn the path to a version that it may not publish. In this order the path follows the
manifest. If the daemon dies between 2 and 3, the path leads to the version before, which is complete and was published.
Any daemon that sees the disk then turns the path: each daemon checks all paths when it starts and once every gc_interval. A
daemon that is delayed between 2 and 3 asks the database while it holds the lock, so it turns the path to the version that is
current then. A later question is asked under a later lock, so the path never goes back to an older version.

gc does not remove the version that a path leads to. It keeps the version before for gc_retention, because readers may still
use it. HDFS and object stores have no links and no rename that replaces a directory: there publish = "rename" is refused.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from dataflowd.host.allowed_roots import check, local_path
from dataflowd.model.faults import AttemptError
from dataflowd.model.location import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BUSY_SECONDS = 5.0
AGAIN_SECONDS = 0.05


def can_lead_to(location: str, dataid: str, directory: str) -> bool:
    """False if the version lies at the path itself: older releases wrote there before the dataset had fixed paths."""
    root, found = local_path(location), local_path(directory)
    return root is not None and found is not None and not found.is_relative_to(_link(root, dataid))


def is_here(location: str, dataid: str, current: str, allowed_roots: Sequence[str]) -> bool:
    """Whether this host can turn the path: the version lies on its disk, under its roots, and not at the path itself."""
    try:
        if not can_lead_to(location, dataid, current):
            return False
        for place in (location, current):
            check(place, allowed_roots)
    except AttemptError:
        return False
    directory = local_path(current)
    return directory is not None and directory.is_dir()


def leads_to(location: str, dataid: str, directory: str) -> bool:
    """Whether the path of a chunk leads to this directory."""
    root = local_path(location)
    if root is None:
        return False
    link, found = _link(root, dataid), local_path(directory)
    return found is not None and link.is_symlink() and os.path.realpath(link) == os.path.realpath(found)


def lock(location: str, dataid: str) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process holds it longer than BUSY_SECONDS."""
    root = local_path(location)
    if root is None:
        return None
    directory = _locked(root, dataid)
    directory.mkdir(parents=True, exist_ok=True)
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(held)
                return None
            time.sleep(AGAIN_SECONDS)
        else:
            return held


def turn(location: str, dataid: str, current: str) -> bool:
    """Makes the path lead to the current version; the caller holds the lock. False: it led there already."""
    root, directory = local_path(location), local_path(current)
    if root is None or directory is None or leads_to(location, dataid, current):
        return False
    fresh = _locked(root, dataid) / ".turning"
    fresh.unlink(missing_ok=True)
    # The link is relative to the resolved directories: if the location is a link itself, `..` leads elsewhere.
    fresh.symlink_to(os.path.relpath(os.path.realpath(directory), os.path.realpath(root)))
    fresh.replace(_link(root, dataid))
    return True


def forget(location: str, dataid: str, gone: str) -> None:
    """Removes the path if it leads to a directory that is about to be removed."""
    root = local_path(location)
    if root is not None and leads_to(location, dataid, gone):
        _link(root, dataid).unlink(missing_ok=True)


def _locked(root: Path, dataid: str) -> Path:
    return root / ATTEMPTS / f"dataid={dataid}"


def _link(root: Path, dataid: str) -> Path:
    return root / f"dataid={dataid}"
