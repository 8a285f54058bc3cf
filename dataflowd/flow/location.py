"""Locations: what {root} stands for, which schemes there are, and whether a location lies under an allowed root.

The comparison is lexical, on normalised paths, so that it holds on the host that checks as on the host that runs;
links that leave a root are found by the runner, which sees the disk.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataflowd.nearest import did_you_mean

if TYPE_CHECKING:
    from dataflowd.settings import Settings

SCHEMES = ("file", "s3a", "hdfs", "abfs", "abfss", "gs")
PLACEHOLDERS = ("root", "dataid")

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>.*)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Place:
    scheme: str
    authority: str
    path: str

    def holds(self, other: Place) -> bool:
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        return self.path == other.path or other.path.startswith(self.path.rstrip("/") + "/")


class BadLocationError(ValueError):
    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def place(location: str) -> Place:
    """Splits and normalises; a plain path and a file: URL of the same path are the same place."""
    if _CONTROL.search(location):
        raise BadLocationError("holds a control character", "remove it")
    found = _URL.fullmatch(location)
    scheme = found["scheme"].lower() if found else "file"
    authority = (found["authority"] or "") if found else ""
    path = found["path"] if found else location
    if scheme not in SCHEMES:
        raise BadLocationError(
            f"has the scheme {scheme!r}{did_you_mean(scheme, SCHEMES)}",
            f"use a path or one of {', '.join(SCHEMES)}",
        )
    if scheme == "file" and authority:
        raise BadLocationError(
            f"names a host {authority!r}", "write file:///path with three slashes, or a plain path"
        )
    if scheme != "file" and not authority and scheme != "hdfs":
        raise BadLocationError("names no bucket or container", f"write {scheme}://name/path")
    if scheme == "file" and not path.startswith("/"):
        raise BadLocationError("is a relative path", "start it with {root} or with a slash")
    return Place(scheme, authority, posixpath.normpath("/" + path.lstrip("/")))


def resolve(location: str, settings: Settings) -> str:
    """The location with {root} filled in; {dataid} stays. Raises BadLocationError when it may not be used."""
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
    if not any(place(root).holds(found) for root in allowed):
        raise BadLocationError(
            f"is outside the allowed roots ({resolved})",
            f"keep it under {' or '.join(allowed)}, or add its root to the setting allowed_roots",
        )
    return resolved
