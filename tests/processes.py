"""Reads /proc: which processes there are."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root becomes another user")


def in_session(leader: int) -> list[int]:
    """The processes of a session, including its leader."""
    found = []
    for pid in all_processes():
        fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        if fields and fields[0] not in "ZX" and int(fields[3]) == leader:
            found.append(pid)
    return found


def working_in(directory: Path) -> list[int]:
    """The processes whose working directory is this one or lies below it."""
    found = []
    for pid in all_processes():
        with suppress(OSError):  # it has ended, or is another user's
            if Path(f"/proc/{pid}/cwd").readlink().is_relative_to(directory):
                found.append(pid)
    return found


def all_processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def require_python_of(user: str) -> None:
    """Skips the test if that user cannot run this Python: the tests do not run as root, or Python lies in root's closed home."""
    words = [sys.executable, "-I", "-c", "import dataflowd"]
    try:
        can_run = subprocess.run(words, user=user, check=False, capture_output=True).returncode == 0
    except (OSError, KeyError):
        can_run = False
    if not IS_ROOT or not can_run:
        pytest.skip(f"needs root, and a Python that the user {user} can execute")


def state(pid: int) -> str:
    return (_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() or ["X"])[0]


def command(pid: int) -> str:
    return f"{pid} {_text(Path(f'/proc/{pid}/cmdline')).replace(chr(0), ' ').strip() or '?'}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children_of(pid: int | str) -> set[int]:
    """The children of a process, including zombies."""
    found: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # a process may end at any moment
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            found |= set(map(int, _text(path).split()))
    return found


def below(pid: int) -> list[int]:
    """The process itself, its children, and theirs."""
    found = [pid]
    for each in found:
        found += children_of(each)
    return found
