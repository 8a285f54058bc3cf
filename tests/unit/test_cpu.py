"""CPU time of attempts that share a runner: every second is counted once, also when attempts overlap."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Runs in its own session, as a runner does. Two attempts overlap while a child process uses CPU time for both.
SHARED = """
import subprocess, sys, time
from dataflowd.runner import cpu

def busy(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

shares = cpu.Shares()
busy(0.3)
shares.begin(1)
busy(0.2)
shares.begin(2)
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.6: pass"], check=True)
first = shares.end(1)
busy(0.1)
print(first, shares.end(2))
"""


@pytest.mark.alone
def test_overlapping_attempts_share_cpu_time_and_time_outside_attempts_is_not_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARED], capture_output=True, text=True, check=True, start_new_session=True
    )
    first, second = map(float, done.stdout.split())
    # Attempt 1: 0.2 s alone and half of 0.6 s. Attempt 2: half of 0.6 s and 0.1 s alone.
    # The bounds allow for ticks of 0.01 s and for the start of the child's Python.
    assert 0.45 <= first <= 0.8
    assert 0.35 <= second <= 0.7
