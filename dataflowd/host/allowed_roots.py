"""Whether a location may be read or written on this host: under an allowed root, without '..', and by no link that leaves it.

The check of a flow file only looks at the text, and may have run on another host. This check looks at the disk: it
follows links as far as the path exists, and the result must lie under a root, whose links are followed too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.model.faults import AttemptError
from dataflowd.model.location import checked_place

if TYPE_CHECKING:
    from collections.abc import Sequence


PATH_BYTES = 4000
PART_BYTES = 255


def check(location: str, allowed_roots: Sequence[str]) -> None:
    """Raises INVALID_PATH. Object stores and HDFS have no links, so there the text decides."""
    found, roots = checked_place(location), [checked_place(root) for root in allowed_roots]
    if ".." in location.split("/"):
        raise _invalid(f"the location {location} has '..' in it", "write the path without it")
    remedy = f"allowed are {', '.join(allowed_roots) or 'none'}: move the data, or add its root to the setting allowed_roots"
    if not any(root.holds(found) for root in roots):
        raise _invalid(f"the location {location} is outside the allowed roots", remedy)
    if found.scheme != "file":
        return
    if len(os.fsencode(found.path)) > PATH_BYTES or any(
        len(os.fsencode(part)) > PART_BYTES for part in found.path.split("/")
    ):
        raise _invalid(f"the location {location:.100}... is longer than a path may be", "shorten it")
    real = os.path.realpath(found.path)
    if not any(_is_under(real, os.path.realpath(root.path)) for root in roots if root.scheme == "file"):
        raise _invalid(
            f"the location {location} leads by a link to {real}, outside the allowed roots", remedy
        )


def check_below(location: str, allowed_roots: Sequence[str]) -> None:
    """Raises INVALID_PATH if a link below the location leaves the roots: Spark and scripts would follow the link."""
    path = local_path(location)
    if path is None:
        return
    for parent, directories, names in os.walk(path):
        for name in (*directories, *names):
            entry = os.path.join(parent, name)  # noqa: PTH118 - a Path for each file costs more than the check
            if os.path.islink(entry):  # noqa: PTH114
                check(entry, allowed_roots)


def require_writable(location: str) -> None:
    """Raises INVALID_PATH if the user of this process cannot make the directory, which does not exist yet."""
    path = local_path(location)
    if path is None:
        return
    above = next(each for each in path.parents if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise _invalid(
            f"the directory {path} cannot be made: this user may not write to {above}",
            "let the user who runs the jobs write there",
        )


def local_path(location: str) -> Path | None:
    """The path on this host's disk, or None for a location elsewhere. Raises INVALID_PATH."""
    found = checked_place(location)
    return Path(found.path) if found.scheme == "file" else None


def _is_under(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _invalid(message: str, remedy: str) -> AttemptError:
    return AttemptError("INVALID_PATH", message, remedy)
