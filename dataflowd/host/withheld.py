"""Secrets of the environment that job code must not read: the program takes them out of its environment when it starts.

`keep` makes the process undumpable: no other process of the same user can attach to it, or read its memory, its
environment or its descriptors under /proc, and it leaves no core dump. Then `keep` moves the secrets out of the
environment, so that children do not inherit them, and overwrites them in the block that /proc/PID/environ shows. Root can
still read everything, and so can anybody before `keep` is called; the setting runner_user protects against both.

exec makes a process dumpable again, so children are not affected, and each program calls `keep` itself.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

PR_SET_DUMPABLE = 4
# DATAFLOW_MASTER: the address of a Connect server may carry a token.
NAMES = frozenset({"DATAFLOW_DSN", "DATAFLOW_MASTER", "PGPASSWORD"})
# Fields of /proc/PID/stat after the name in brackets: the addresses where the environment begins and ends.
ENV_START, ENV_END = 47, 48

_kept: dict[str, str] = {}


def keep() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) failed")
    for name in [name for name in os.environ if name.upper() in NAMES]:
        _kept[name] = os.environ.pop(name)
        _erase(os.fsencode(name))


def variables() -> dict[str, str]:
    """The secrets, by the names that they had in the environment."""
    return dict(_kept)


def forget() -> None:
    _kept.clear()


def _erase(name: bytes) -> None:
    """Overwrites the value in the block that the kernel shows. Safe: the variable was unset, so nothing points there."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[ENV_START]), int(fields[ENV_END])
    if not 0 < start < end:
        return
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        if entry.startswith(name + b"="):
            ctypes.memset(at + len(name) + 1, 0, len(entry) - len(name) - 1)
        at += len(entry) + 1
