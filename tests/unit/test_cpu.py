"""CPU time of attempts that share a runner: all of it is told once, whoever used it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a session of its own, as a runner is: two attempts overlap, and a child that has ended works for them.
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
def test_cpu_time_is_shared_by_the_attempts_that_ran_and_idle_time_is_nobodys() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARED], capture_output=True, text=True, check=True, start_new_session=True
    )
    first, second = map(float, done.stdout.split())
    # 0.2 alone and half of 0.6; half of 0.6 and 0.1 alone. A tick is 0.01, and the starting Python counts, too.
    assert 0.45 <= first <= 0.8
    assert 0.35 <= second <= 0.7
