"""Watches the host for two processes of one run at the same time.

A frozen daemon cannot know that its lease has ended: its script goes on while another daemon runs the chunk again. This is
allowed until the daemon has woken and had a moment to stop the script. A stopped script is allowed too, because it does
nothing. Everything else that lasts longer than a signal needs is a violation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests import processes

TOGETHER_SECONDS = 0.3  # a killed process needs a moment to end
SETTLE_SECONDS = 3.0  # for a woken daemon to stop attempts that it has lost
ASLEEP = "TtZX"  # states of processes that do nothing


@dataclass(frozen=True)
class Script:
    pid: int
    host: int
    jobid: str
    dataid: str
    report: str  # its DATAFLOW_REPORT, which is different for each attempt

    @property
    def run(self) -> tuple[str, str]:
        return self.jobid, self.dataid


@dataclass
class Witness:
    found: list[str] = field(default_factory=list)
    seen: int = 0
    _scripts: dict[int, Script] = field(default_factory=dict)
    _woken: dict[int, float] = field(
        default_factory=dict
    )  # host process -> the time until which its past sleep excuses it
    _together: dict[tuple[int, int], float] = field(default_factory=dict)  # two processes -> since when

    def look(self, hosts: list[tuple[int, bool]], now: float) -> None:
        for host, is_frozen in hosts:
            if is_frozen:
                self._woken[host] = now + SETTLE_SECONDS
            for pid in processes.children_of(host):
                if pid not in self._scripts and (script := read(pid, host)):
                    self._scripts[pid] = script
                    self.seen += 1
        self.judge([script for script in list(self._scripts.values()) if self._is_awake(script)], now)

    def judge(self, scripts: list[Script], now: float) -> None:
        """`scripts`: the scripts that are running now."""
        by_run: dict[tuple[str, str], list[Script]] = {}
        for script in scripts:
            by_run.setdefault(script.run, []).append(script)
        still: dict[tuple[int, int], float] = {}
        for run, several in by_run.items():
            entitled = [script for script in several if self._woken.get(script.host, 0.0) < now]
            for one, other in pairwise(entitled):
                pair = one.pid, other.pid
                still[pair] = self._together.get(pair, now)
                if now - still[pair] >= TOGETHER_SECONDS:
                    self.found.append(f"{'/'.join(run)}: processes {one} and {other}")
                    still[pair] = float("inf")  # report it only once
        self._together = still

    def _is_awake(self, script: Script) -> bool:
        state = processes.state(script.pid)
        if state in "ZX":
            del self._scripts[script.pid]
        return state not in ASLEEP


def read(pid: int, host: int) -> Script | None:
    """The script of a process; None while the process has not become a script."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if not {"jobid", "dataid", "DATAFLOW_REPORT"} <= found.keys():
        return None
    return Script(pid, host, found["jobid"], found["dataid"], found["DATAFLOW_REPORT"])
