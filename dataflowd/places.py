"""A location as a scheme, an authority and a normalised path, so that two of them can be compared."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from dataflowd.nearest import did_you_mean

SCHEMES = ("file", "s3a", "hdfs", "abfs", "abfss", "gs")

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>.*)", re.DOTALL)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# Spark takes a location with one of these for a pattern, and would look at other places than the one that was checked.
_PATTERN = re.compile(r"[*?\[\]{}\\]")


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
    if special := _PATTERN.search(location.replace("{dataid}", "")):
        raise BadLocationError(
            f"holds {special[0]!r}, which makes it a pattern",
            "name one place; pathGlobFilter chooses files in it",
        )
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
