"""Time zones by name."""

from __future__ import annotations

import zoneinfo


def is_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # a directory of zones, a path, a NUL
        return False
    return True
