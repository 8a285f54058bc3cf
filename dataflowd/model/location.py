"""A location as a scheme, an authority and a normalised path, so that two of them can be compared.

Hadoop, scripts and people read the same text. A location that one of them could take for another place than the one
compared here is refused.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataflowd.model.faults import AttemptError
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

ATTEMPTS = ".attempts"  # the directory that attempts write below; the name is hidden from most readers
SCHEMES = ("file", "s3a", "hdfs", "abfs", "abfss", "gs")

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>.*)", re.DOTALL)
# Also invisible characters, and those that reverse the direction of the text.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)
# These look like a dot or a slash, and some programs convert them to one.
_LOOKS_ALIKE = re.compile("[\u2024\u2025\u2044\u2215\u29f5\u29f8\u29f9\ufe52\ufe68\uff0e\uff0f\uff3c]")
# A percent-encoded dot, slash, backslash, NUL or percent sign: a program that decodes the text finds another path.
_ENCODED = re.compile("%(?:00|25|2e|2f|5c)", re.IGNORECASE)
# Spark reads a location with one of these as a pattern, and would read places that were not checked.
_PATTERN = re.compile(r"[*?\[\]{}\\]")


@dataclass(frozen=True)
class Place:
    scheme: str
    authority: str
    path: str
    written: str = field(compare=False)  # the path as it stands in the location

    def holds(self, other: Place) -> bool:
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        # On a disk /a/./b is /a/b. In a bucket they are two names.
        return self._is_above(other.path) and (self.scheme == "file" or self._is_above(other.written))

    def _is_above(self, path: str) -> bool:
        return path == self.path or path.startswith(self.path.rstrip("/") + "/")


class BadLocationError(ValueError):
    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def place(location: str) -> Place:
    """Splits and normalises a location. A plain path and a file: URL of the same path give equal places."""
    _check_characters(location)
    found = _URL.fullmatch(location)
    scheme = found["scheme"].lower() if found else "file"
    authority = (found["authority"] or "") if found else ""
    path = found["path"] if found else location
    if scheme not in SCHEMES:
        raise BadLocationError(
            f"has the scheme {scheme!r}{did_you_mean(scheme, SCHEMES)}",
            f"use a path or one of {', '.join(SCHEMES)}",
        )
    if found and found["scheme"] != scheme:
        raise BadLocationError(f"has the scheme {found['scheme']!r}", f"write {scheme} in small letters")
    if path.startswith("//"):
        raise BadLocationError("has a path that begins with two slashes", "write one: two name a host")
    if scheme == "file" and authority:
        raise BadLocationError(
            f"names a host {authority!r}", "write file:///path with three slashes, or a plain path"
        )
    if scheme != "file" and not authority and scheme != "hdfs":
        raise BadLocationError("names no bucket or container", f"write {scheme}://name/path")
    if scheme == "file" and not path.startswith("/"):
        raise BadLocationError("is a relative path", "start it with {root} or with a slash")
    return Place(scheme, authority, posixpath.normpath("/" + path.lstrip("/")), path or "/")


def split_at_root(location: str, allowed_roots: Iterable[str]) -> tuple[str, str]:
    """The deepest root that holds the location, and the rest of the location, which is empty or begins with a slash.

    If no root holds the location, the first part is the whole location: the check of allowed roots refuses it later.
    """
    whole = checked_place(location)
    holding = [root for root in map(checked_place, allowed_roots) if root.holds(whole)]
    if not holding:
        return location.rstrip("/"), ""
    below = whole.path[len(max((root.path.rstrip("/") for root in holding), key=len)) :].rstrip("/")
    written = location.rstrip("/")
    # Cut the text as it was written, so that a plain path stays a plain path. A text such as /a//b is cut normalised.
    above = written.removesuffix(below) if written.endswith(below) else whole.path.removesuffix(below)
    return above.rstrip("/"), below


def checked_place(location: str) -> Place:
    """As place(), but raises INVALID_PATH."""
    try:
        return place(location)
    except BadLocationError as error:
        raise AttemptError("INVALID_PATH", f"the location {location} {error.what}", error.remedy) from None


def _check_characters(location: str) -> None:
    if _CONTROL.search(location):
        raise BadLocationError("holds a control character", "remove it")
    if special := _LOOKS_ALIKE.search(location):
        raise BadLocationError(
            f"holds {special[0]!a}, which looks like a dot or a slash", "write the one that is meant"
        )
    if special := _ENCODED.search(location):
        raise BadLocationError(f"holds {special[0]!r}, which stands for another character", "write that one")
    if special := _PATTERN.search(location.replace("{dataid}", "")):
        raise BadLocationError(
            f"holds {special[0]!r}, which makes it a pattern",
            "name one place; pathGlobFilter chooses files in it",
        )
