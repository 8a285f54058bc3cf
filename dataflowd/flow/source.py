"""Reads a flow file: its values, and the line of each value.

tomllib parses the text and checks its syntax, but gives no positions. After tomllib has accepted the text, the locator
below walks through it a second time. It can trust the syntax, so it only finds where keys begin and values end; it never
interprets a value.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataflowd.flow.mistakes import FlowMistakesError, Mistake

if TYPE_CHECKING:
    from pathlib import Path

Key = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_KEY_PART = re.compile(r"""(?P<bare>[A-Za-z0-9_-]+)|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'""")
_VALUE = re.compile(
    r'''
      """ (?: [^"\\] | \\. | "{1,2}(?!") )*+ "{3,5}
    | \'\'\' (?: [^\'] | \'{1,2}(?!\') )*+ \'{3,5}
    | " (?: [^"\\\n] | \\. )*+ "
    | \' [^\'\n]*+ \'
    | [^,\]}\#\n]++
    ''',
    re.DOTALL | re.VERBOSE,
)
_POSITION = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


@dataclass(frozen=True)
class Source:
    path: Path
    data: dict[str, Any]
    lines: dict[Key, int]

    def line(self, key: Key) -> int:
        """The line of a key or, if the file does not have the key, of the nearest table around it."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, 1)


def read(path: Path) -> Source:
    text = _text(path)
    try:
        data = tomllib.loads(text)
        return Source(path, data, locate(text))
    except RecursionError:
        raise _refused(path, 1, "is nested too deeply", "flatten its arrays and tables") from None
    except ValueError as error:  # also from int() and datetime() inside tomllib
        found = _POSITION.search(str(error))
        line = int(found["line"]) if found and found["line"] else text.count("\n") + 1
        message = _POSITION.sub("", str(error))
        column = f" at column {found['column']}" if found and found["column"] else ""
        raise _refused(path, line, f"is not valid TOML: {message}{column}", "correct this line") from None


def locate(text: str) -> dict[Key, int]:
    """The line of every key of a valid TOML text. The key of an array's element is its index."""
    return _Locator(text).walk()


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise _refused(path, 1, "is a directory", "name the flow file inside it")
        if path.exists() and not path.is_file():
            raise _refused(path, 1, "is no ordinary file", "name a flow file")
        content = path.read_bytes()
    except FileNotFoundError:
        raise _refused(path, 1, "does not exist", "check the path") from None
    except (OSError, ValueError) as error:
        raise _refused(path, 1, f"cannot be read: {error}", "check the path and its permissions") from None
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refused(
            path, line, f"is not UTF-8: byte 0x{content[error.start]:02x}", "save the file as UTF-8"
        ) from None


def _refused(path: Path, line: int, what: str, remedy: str) -> FlowMistakesError:
    return FlowMistakesError(path, [Mistake(line, f"the file {what}", remedy)])


class _Locator:
    """Walks through the text, and notes the line of every key."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._at = 0
        self._lines: dict[Key, int] = {}
        self._last_element: dict[Key, int] = {}  # of arrays of tables

    def walk(self) -> dict[Key, int]:
        table: Key = ()
        self._skip_blank()
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._assignment(table)
            self._skip_blank()
        return self._lines

    def _header(self) -> Key:
        start, is_array = self._at, self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        parts = self._key()
        self._at += 2 if is_array else 1
        table: Key = ()
        for index, part in enumerate(parts, 1):
            table += (part,)
            if is_array and index == len(parts):
                self._last_element[table] = self._last_element.get(table, -1) + 1
                self._lines.setdefault(table, self._line(start))
            if table in self._last_element:
                table += (self._last_element[table],)
            self._lines.setdefault(table, self._line(start))
        self._lines[table] = self._line(start)
        return table

    def _assignment(self, table: Key) -> None:
        start = self._at
        for part in self._key():
            table += (part,)
            self._lines.setdefault(table, self._line(start))
        self._at += 1  # the equals sign
        self._skip_blank()
        self._value(table)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip_blank()
            found = _KEY_PART.match(self._text, self._at)
            if found is None:
                raise AssertionError(f"no key at offset {self._at} of an accepted text")
            self._at = found.end()
            parts.append(found["bare"] or tomllib.loads(f"key = {found[0]}")["key"])
            self._skip_blank()
            if self._text[self._at] != ".":
                return parts
            self._at += 1

    def _value(self, key: Key) -> None:
        opening = self._text[self._at]
        if opening == "[":
            self._elements(key, "]")
        elif opening == "{":
            self._elements(key, "}")
        else:
            found = _VALUE.match(self._text, self._at)
            if found is None:
                raise AssertionError(f"no value at offset {self._at} of an accepted text")
            self._at = found.end()

    def _elements(self, key: Key, closing: str) -> None:
        self._at += 1
        index = 0
        while True:
            self._skip_blank()
            if self._text[self._at] == closing:
                self._at += 1
                return
            if closing == "]":
                self._lines[(*key, index)] = self._line(self._at)
                self._value((*key, index))
                index += 1
            else:
                self._assignment(key)
            self._skip_blank()
            if self._text[self._at] == ",":
                self._at += 1

    def _skip_blank(self) -> None:
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _line(self, offset: int) -> int:
        return bisect.bisect_left(self._newlines, offset) + 1
