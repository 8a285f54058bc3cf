"""How many Spark applications fit into this host's memory.

The count uses all memory that this process may use, not the free memory: an application that has just started has not
taken its share yet. The limit of a container or a systemd unit counts where it is lower than the memory of the host.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHARE = 0.8  # of the memory; the rest is for the daemon, the database and the cache of files
HEAP = "spark.driver.memory"
HEAP_BYTES = 1 << 30  # Spark's default
BESIDE_HEAP_BYTES = 400 << 20  # Python, the JVM's code and stacks

_SIZE = re.compile(r"([0-9]+)([bkmgtp]?)b?", re.IGNORECASE)
_UNITS = {"b": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_CGROUPS = Path("/sys/fs/cgroup")


def applications(configurations: Iterable[Mapping[str, str]], *, has_jvm: bool) -> int:
    """How many applications of the largest configuration fit; at least one."""
    heaps = (_bytes(each[HEAP]) if HEAP in each else HEAP_BYTES for each in configurations)
    heap = max(heaps, default=HEAP_BYTES)
    needed = BESIDE_HEAP_BYTES + (heap if has_jvm else 0)
    return max(1, int(total() * SHARE) // needed)


def total() -> int:
    """Bytes that this process and its children may use."""
    return min([_of_host(), *_of_groups()])


def _bytes(size: str) -> int:
    """A size as Spark reads it: 2g, 512m; a bare number is in MiB. Spark itself refuses a size that it cannot read."""
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        return HEAP_BYTES
    return int(found[1]) << _UNITS[found[2].lower() or "m"]


def _of_host() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/meminfo does not say how much memory there is")


def _of_groups() -> Iterable[int]:
    """The limits of this process's control group and of the groups above it."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return
    paths = [line.split(":", 2)[2] for line in own.splitlines() if line.startswith("0::")]
    for path in paths:
        directory = _CGROUPS / path.strip().lstrip("/")
        for group in (directory, *directory.parents):
            if group != _CGROUPS and _CGROUPS not in group.parents:
                break
            try:
                limit = (group / "memory.max").read_text(encoding="ascii").strip()
            except OSError:
                continue
            if limit.isdecimal():
                yield int(limit)
