"""The report of a chaos run, for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SHOWN = 20


@dataclass
class Report:
    seed: int
    minutes: float
    engines: list[str]
    faults: dict[str, int] = field(default_factory=dict)
    without_target: dict[str, int] = field(default_factory=dict)
    unanswered: dict[str, int] = field(default_factory=dict)
    not_to_be_had: list[str] = field(default_factory=list)
    chunks: int = 0
    runs: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    rescues: int = 0
    publications: int = 0
    published_by_flow: dict[str, int] = field(default_factory=dict)
    versions_compared: int = 0
    daemon_starts: int = 0
    code_versions: int = 0
    operator_programs: int = 0
    program_ends: dict[str, int] = field(default_factory=dict)  # command and exit status
    forced: int = 0
    deleted: int = 0
    scripts_seen: int = 0
    drain_seconds: float = 0.0
    seconds: float = 0.0
    violations: list[dict[str, str]] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        return {**vars(self), "fault_count": sum(self.faults.values()), "fault_kinds": len(self.faults)}

    def text(self) -> str:
        lines = [
            f"seed {self.seed}, {self.minutes:g} minutes of faults, {self.seconds:.0f} s in all, engines {', '.join(self.engines)}",
            f"faults: {sum(self.faults.values())} of {len(self.faults)} kinds",
            *(f"  {kind:<18} {count}" for kind, count in sorted(self.faults.items())),
            *(f"  {what}" for what in self.not_to_be_had),
            f"chunks {self.chunks}, runs {self.runs}, attempts {sum(self.attempts.values())} ({_listed(self.attempts)})",
            f"rescues {self.rescues}, publications {self.publications} ({_listed(self.published_by_flow)}), of which {self.versions_compared} compared row by row",
            f"daemons started {self.daemon_starts} times, {self.code_versions} versions of code, {self.operator_programs} calls of dataflowctl",
            f"dataflowctl ended with {_listed(self.program_ends)}; attempts forced {self.forced}, deleted {self.deleted}; scripts seen {self.scripts_seen}",
            f"drained in {self.drain_seconds:.0f} s",
            f"violations: {len(self.violations)}",
            *(f"  {each['kind']}: {each['what']}" for each in self.violations[:SHOWN]),
        ]
        if self.violations:
            lines.append(f"replay with --seed {self.seed}")
        return "\n".join(lines)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def write(report: Report, path: Path) -> None:
    path.write_text(json.dumps(report.document, indent=1) + "\n", encoding="utf-8")
