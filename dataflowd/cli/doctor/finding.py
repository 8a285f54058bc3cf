"""What a check of the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    check: str
    state: Literal["ok", "warning", "failed", "skipped"]
    detail: str
    remedy: str = ""
