"""What is written down of an output when it is published, whoever has made it: a runner, a script, or something outside."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from dataflowd.model.attempt import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence


def manifest(
    location: str | None, files: Sequence[dict[str, Any]], rows: int | None, columns: str | None = None
) -> dict[str, Any]:
    """`columns`: known where Spark has written the output or has looked at it; only then it has a fingerprint."""
    listed = list(files)
    made = json.dumps([columns, rows, listed]).encode()
    return Manifest(
        location=location,
        files=listed,
        bytes=sum(file["bytes"] for file in listed),
        rows=rows,
        columns=columns,
        fingerprint=None if columns is None else hashlib.sha256(made).hexdigest(),
    ).document()
