"""What this process was told and job code must not read: the programs keep it from other processes of their user.

`keep` makes the process undumpable: no other process of its user attaches to it, reads its memory, its environment or its
descriptors under /proc, and it leaves no core dump. Then it takes the secrets out of the environment: what children
would inherit, and what /proc/PID/environ shows, which is the block that the process was started with. Root reads
everything, and the moments between the start and `keep` are open; runner_user is the remedy for both.

exec makes a process dumpable again: children are not affected, and each program calls this itself.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

PR_SET_DUMPABLE = 4
# A Connect server's address may carry a token.
NAMES = frozenset({"DATAFLOW_DSN", "DATAFLOW_MASTER", "PGPASSWORD"})
# Of /proc/PID/stat, behind the name in brackets: where the environment begins and ends.
ENV_START, ENV_END = 47, 48

_kept: dict[str, str] = {}


def keep() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) failed")
    for name in [name for name in os.environ if name.upper() in NAMES]:
        _kept[name] = os.environ.pop(name)
        _erase(os.fsencode(name))


def variables() -> dict[str, str]:
    """By their names in the environment, as if they were still there."""
    return dict(_kept)


def forget() -> None:
    _kept.clear()


def _erase(name: bytes) -> None:
    """Overwrites the value in the block that the kernel shows. Nothing points there any more: it was unset."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[ENV_START]), int(fields[ENV_END])
    if not 0 < start < end:
        return
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        if entry.startswith(name + b"="):
            ctypes.memset(at + len(name) + 1, 0, len(entry) - len(name) - 1)
        at += len(entry) + 1
