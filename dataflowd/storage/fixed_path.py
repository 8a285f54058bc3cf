"""publish = "rename": a chunk at a fixed path, `<location>/dataid=<id>`, for readers that ask no database.

The path is a symbolic link to the directory of the attempt that is current. A link is replaced by a rename, in one
moment: a reader finds the old version or the new one, whole, and never neither. The order of events:

1. The attempt writes to a directory of its own, below `.attempts` of its root, which nobody else looks at.
2. `finish`, with the token, publishes in the database: the manifest names that directory.
3. The path is turned: under a lock on `<location>/.attempts/dataid=<id>` the database is asked what is current now, and
   the link is made to lead there. That directory is empty; release 0.1.0 wrote to it, and locks it as well.

The other order would let a zombie turn the path to what it was never entitled to publish. With this one the path
follows the manifest, and whatever happens between 2 and 3 leaves it at the version before, complete and once published.
A daemon that dies there is made up for by any daemon that sees the disk: each looks at all paths when it starts and once
every gc_interval. A daemon that sleeps there and wakes late asks the database inside the lock, so that it turns the path
to what is current by then; and since whoever asks later has the lock later, the path never goes back.

A version that the path leads to is not collected, and one that it led to stays for gc_retention: readers may be at it.
HDFS and object stores have neither links nor a rename that replaces a directory: there it is refused.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from dataflowd.host.allowed_roots import check, local
from dataflowd.model.faults import AttemptError
from dataflowd.model.location import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BUSY_SECONDS = 5.0
AGAIN_SECONDS = 0.05


def can_lead_to(location: str, dataid: str, directory: str) -> bool:
    """Not where the version lies at the path itself: before its dataset had fixed paths, older releases wrote there."""
    root, found = local(location), local(directory)
    return root is not None and found is not None and not found.is_relative_to(_link(root, dataid))


def is_here(location: str, dataid: str, current: str, allowed_roots: Sequence[str]) -> bool:
    """Whether this host can turn it. Others have their own disks, and see to them. What was published otherwise before has no path yet."""
    try:
        if not can_lead_to(location, dataid, current):
            return False
        for place in (location, current):
            check(place, allowed_roots)
    except AttemptError:
        return False
    directory = local(current)
    return directory is not None and directory.is_dir()


def leads_to(location: str, dataid: str, directory: str) -> bool:
    """Whether the path of a chunk leads to this directory."""
    root = local(location)
    if root is None:
        return False
    link, found = _link(root, dataid), local(directory)
    return found is not None and link.is_symlink() and os.path.realpath(link) == os.path.realpath(found)


def lock(location: str, dataid: str) -> int | None:
    """A descriptor that holds the lock until it is closed; None: somebody else has it for long."""
    root = local(location)
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
    """Makes the path lead to what is current; the caller holds the lock. False: it did so already."""
    root, directory = local(location), local(current)
    if root is None or directory is None or leads_to(location, dataid, current):
        return False
    fresh = _locked(root, dataid) / ".turning"
    fresh.unlink(missing_ok=True)
    # Between the directories as the kernel sees them: `..` leads elsewhere where the location is a link itself.
    fresh.symlink_to(os.path.relpath(os.path.realpath(directory), os.path.realpath(root)))
    fresh.replace(_link(root, dataid))
    return True


def forget(location: str, dataid: str, gone: str) -> None:
    """Removes the path if it leads to a directory that is about to be removed."""
    root = local(location)
    if root is not None and leads_to(location, dataid, gone):
        _link(root, dataid).unlink(missing_ok=True)


def _locked(root: Path, dataid: str) -> Path:
    return root / ATTEMPTS / f"dataid={dataid}"


def _link(root: Path, dataid: str) -> Path:
    return root / f"dataid={dataid}"
