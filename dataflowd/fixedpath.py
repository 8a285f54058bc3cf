"""publish = "rename": a chunk at a fixed path, `<location>/dataid=<id>`, for readers that ask no database.

The path is a symbolic link to the directory of the attempt that is current. A link is replaced by a rename, in one
moment: a reader finds the old version or the new one, whole, and never neither. The order of events:

1. The attempt writes to `<location>/.attempts/dataid=<id>/attempt=<n>`, which nobody else looks at.
2. `finish`, with the token, publishes in the database: the manifest names that directory.
3. The path is turned: under a lock on the chunk's directory the database is asked what is current now, and the link is
   made to lead there.

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
from contextlib import suppress
from typing import TYPE_CHECKING

from dataflowd import paths
from dataflowd.order import ATTEMPTS

if TYPE_CHECKING:
    from pathlib import Path

BUSY_SECONDS = 5.0
AGAIN_SECONDS = 0.05


def is_behind(location: str | None) -> bool:
    """Whether a published directory is one that a fixed path leads to."""
    return location is not None and f"/{ATTEMPTS}/dataid=" in location


def leads_to(location: str, dataid: str, directory: str) -> bool:
    """Whether the path of a chunk leads to this directory."""
    root = paths.local(location)
    if root is None:
        return False
    with suppress(OSError):
        return root / _link(root, dataid).readlink() == paths.local(directory)
    return False


def lock(location: str, dataid: str) -> int | None:
    """A descriptor that holds the lock until it is closed; None: somebody else has it for long, or nothing is there."""
    root = paths.local(location)
    if root is None:
        return None
    try:
        held = os.open(root / ATTEMPTS / f"dataid={dataid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
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
    root, directory = paths.local(location), paths.local(current)
    if root is None or directory is None or leads_to(location, dataid, current):
        return False
    target = directory.relative_to(root)
    fresh = root / ATTEMPTS / f"dataid={dataid}" / ".turning"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(_link(root, dataid))
    return True


def forget(location: str, dataid: str, gone: str) -> None:
    """Removes the path if it leads to a directory that is about to be removed."""
    root = paths.local(location)
    if root is not None and leads_to(location, dataid, gone):
        _link(root, dataid).unlink(missing_ok=True)


def _link(root: Path, dataid: str) -> Path:
    return root / f"dataid={dataid}"
