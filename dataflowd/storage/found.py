"""Measures what lies at a location: the number of files, their bytes, the newest time of change, and a digest if asked for.

Registration measures a chunk from outside, prepare measures it again, and an attempt stores its measurement. All use this
module, so that two measurements of the same data are equal. Names that begin with a dot or an underscore do not count:
Spark skips them too.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dataflowd.host import allowed_roots
from dataflowd.storage import files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.storage.files import File

MILLISECONDS = 1000


@dataclass(frozen=True)
class Found:
    files: int
    bytes: int
    modified: (
        int | None
    )  # of the newest file, in milliseconds since 1970; None: no file, or a store without times
    digest: str | None = None

    def document(self) -> dict[str, Any]:
        """In the form that the database stores; `modified` is ISO 8601 in UTC."""
        known = {"files": self.files, "bytes": self.bytes, "modified": self.moment, "digest": self.digest}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def moment(self) -> str | None:
        if self.modified is None:
            return None
        return datetime.fromtimestamp(self.modified / MILLISECONDS, UTC).isoformat(timespec="milliseconds")


def of(listed: Sequence[File]) -> Found:
    """The measurement of a listing. It has a digest if every file has one."""
    times = [file.modified for file in listed if file.modified is not None]
    digests = [[file.path, file.digest] for file in listed if file.digest is not None]
    is_read = bool(listed) and len(digests) == len(listed)
    return Found(
        files=len(listed),
        bytes=sum(file.bytes for file in listed),
        modified=max(times, default=None),
        digest=hashlib.sha256(json.dumps(digests).encode()).hexdigest() if is_read else None,
    )


def here(location: str, *, digest: bool = False) -> Found | None:
    """Measures on this host's disk, without Spark. None if the location is not on this disk. Raises OSError."""
    path = allowed_roots.local_path(location)
    return None if path is None else of(files.local_listing(path, digest=digest))
