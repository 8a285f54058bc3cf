"""`dataflowd demo` as a newcomer runs it: twice, interrupted on a terminal, and removed.

The environment names another database, which the demo must not use: every connection to it would fail.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataflowd.host.embedded import postgres
from tests import fix_classes
from tests.fix_daemon import eventually
from tests.fix_postgres import reachable_directory
from tests.terminals import open_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 1500
BIN = Path(sys.executable).parent
# Patterns that the output has to match in this order.
STORY = (
    r"embedded",
    r"\$ dataflowctl init\n",
    r"\$ python quickstart/sample\.py 2026-02-01 28 --missing 2026-02-12 --cents 2026-02-19\n +27 days with [\d,]+ records",
    r"\$ dataflowctl apply quickstart/flow\.toml\n +applied flow retail: 8 created\n",
    r"raw_orders: 27 chunks ready\n",
    r"\$ dataflowd run ",
    r"\$ dataflowctl concurrency 4 ",
    r"clean_orders 2026-02-19 has failed \(CHECK_FAILED\) and waits for a person",
    r"clean_orders 26 of 28, 1 failed, daily_totals 26 of 28, monthly_totals 0 of 1\n",
    r"\$ dataflowctl why monthly_totals 2026-02\n",
    r"1\. Is the data ready\? +DATA_NOT_READY: daily_totals/2026-02-12 is not there \(and 1 more\)",
    r"5\. Is it safe to access\?",
    r"\$ dataflowctl why clean_orders 2026-02-19\n",
    r"CHECK_FAILED: orders: range\(amount\): observed \d+ of 200 rows",
    r"5\. Is it safe to access\? +LOCKED: orders/2026-02-19 has FAILED \(CHECK_FAILED\) and waits for RESUBMIT",
    r"\$ dataflowctl ready raw_orders 2026-02-12 2026-02-19\n +raw_orders: 2 chunks ready\n",
    r"\$ dataflowctl resubmit --error CHECK_FAILED --yes\n +resubmit: 1 run\n",
    r"running 0 of 2; clean_orders 28 of 28, daily_totals 28 of 28, monthly_totals 1 of 1\n",
    r"Everything is READY",
    r"clean_orders +28 +30 +2 +5600 ",
    r"Grace +28 +\d+ +\d+ +\d+\.\d\d\n",
    r"The database stays",
)


@pytest.fixture
def home() -> Iterator[Path]:
    with reachable_directory() as directory:
        try:
            yield directory / "demo"
        finally:
            postgres.stop(directory / "demo")


def environment(home: Path) -> dict[str, str]:
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=1"
    return {
        "PATH": os.environ["PATH"],
        "TMPDIR": os.environ["TMPDIR"],
        "HOME": str(home.parent),
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "DATAFLOW_DSN": nowhere,
        "DATAFLOW_FLOWS": "/nowhere/flow.toml",
        "PGHOSTADDR": "127.0.0.1",
        fix_classes.CONF_VARIABLE: os.environ[fix_classes.CONF_VARIABLE],
    }


def demo(home: Path, *options: str) -> str:
    ended = subprocess.run(
        [BIN / "dataflowd", "demo", "--dir", home, *options],
        env=environment(home),
        cwd=home.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "\x1b" not in ended.stdout
    return ended.stdout


def processes_of(home: Path) -> list[str]:
    """The command lines of processes with the demo's settings or inside its directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            has_settings = os.fsencode(home) in (process / "environ").read_bytes()
            if has_settings or (process / "cwd").readlink().is_relative_to(home):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # the process has ended, or belongs to the kernel
    return found


def on_a_terminal(home: Path) -> tuple[subprocess.Popen[bytes], int]:
    master, terminal = open_terminal()
    try:
        process = subprocess.Popen(
            [BIN / "dataflowd", "demo", "--dir", home, "--days", "3"],
            env=environment(home),
            cwd=home.parent,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
    finally:
        os.close(terminal)
    return process, master


def read_until(master: int, wanted: str) -> str:
    seen = ""
    while wanted not in seen:
        read = os.read(master, 65536)
        assert read, seen
        seen += read.decode(errors="replace")
    return seen


def pasted(text: str, home: Path) -> list[str]:
    """Types the commands that the demo suggests, in the environment that started it, and returns them."""
    block = text.split("To look around:\n")[1].split("\n\n", maxsplit=1)[0]
    lines = [line.strip() for line in block.splitlines()]
    typed = subprocess.run(
        ["bash", "-ec", "\n".join(lines)],
        env=environment(home),
        cwd=home.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert typed.returncode == 0, (lines, typed.stdout, typed.stderr)
    assert re.search(r"^clean_orders +28 ", typed.stdout, re.MULTILINE)
    assert re.search(r"FAILED -> RESUBMIT", typed.stdout)
    assert "amount must be positive" in typed.stdout
    return lines


def test_the_demo_runs_and_again_on_a_terminal_and_leaves_nothing(home: Path) -> None:
    told = demo(home)
    place = 0
    for mark in STORY:
        found = re.compile(mark).search(told, place)
        assert found, f"{mark} is missing or stands at the wrong place:\n{told}"
        place = found.end()
    lines = pasted(told, home)
    assert lines[0] == "unset DATAFLOW_DSN DATAFLOW_FLOWS PGHOSTADDR"
    assert [line for line in lines if line.startswith("dataflowctl ")] == [
        "dataflowctl status",
        "dataflowctl history clean_orders 2026-02-19",
        "dataflowctl quarantine list clean_orders",
    ]
    assert all("postgres" in command for command in processes_of(home)), processes_of(home)

    process, master = on_a_terminal(home)
    try:
        seen = read_until(master, "▶")
        assert "\x1b[32m" in seen
        assert re.search(r"February 2026: 3 days of orders\x1b\[0m +running ", seen)
        process.send_signal(signal.SIGINT)
        assert "stopped: nothing of the demo runs any more" in read_until(master, "any more")
        assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.wait()
        os.close(master)
    eventually(lambda: not processes_of(home))

    cleaned = subprocess.run(
        [BIN / "dataflowd", "demo", "--clean"],
        env=environment(home) | {"DATAFLOW_CONFIG": str(home / "config.toml")},
        cwd=home.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert cleaned.stdout == f"removed {home}\nthis shell still looks there: unset DATAFLOW_CONFIG\n"
    assert not list(home.parent.iterdir())
    assert demo(home, "--clean") == f"there is no demo in {home}\n"
