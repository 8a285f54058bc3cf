"""Locations of a flow file: what {root} stands for, and whether a location lies under an allowed root.

Only the text of normalised paths is compared, so that the result is the same on every host. The runner finds links that
leave a root, because it sees the disk (dataflowd.host.allowed_roots).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dataflowd.model.location import ATTEMPTS, BadLocationError, place
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from dataflowd.host.settings import Settings

PLACEHOLDERS = ("root", "dataid")


class OutsideRootsError(BadLocationError):
    """The location is well formed, but this host does not allow it."""

    def __init__(self, resolved: str, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.resolved = resolved


_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def resolve(location: str, settings: Settings) -> str:
    """The location with {root} filled in; {dataid} stays. Raises BadLocationError if it may not be used."""
    for name in _PLACEHOLDER.findall(location):
        if name not in PLACEHOLDERS:
            raise BadLocationError(
                f"has an unknown placeholder {{{name}}}{did_you_mean(name, PLACEHOLDERS)}",
                "use {root} and {dataid}",
            )
    if re.search(r"[{}]", _PLACEHOLDER.sub("", location)):
        raise BadLocationError("has an unpaired brace", "use {root} and {dataid}")
    resolved = location.replace("{root}", settings.effective_root.rstrip("/"))
    found = place(resolved)
    if ".." in resolved.split("/") and found.scheme != "file":
        raise BadLocationError(
            "has '..' in it, which object stores take for a name", "write the path without it"
        )
    allowed = settings.effective_allowed_roots
    is_allowed = any(place(root).holds(found) for root in allowed)
    if is_allowed and ".." in resolved.split("/"):
        raise BadLocationError("has '..' in it", "write the path without it")
    if is_allowed and ATTEMPTS in resolved.split("/"):
        raise BadLocationError(f"lies in {ATTEMPTS}, where attempts write", "name another directory")
    if not is_allowed:
        raise OutsideRootsError(
            resolved,
            f"is outside the allowed roots ({resolved})",
            f"keep it under {' or '.join(allowed)}, or add its root to the setting allowed_roots",
        )
    return resolved
