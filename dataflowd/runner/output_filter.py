"""Masks passwords in what a script prints, without knowing them: `python -I -S output_filter.py SOURCE TOLD`, run by script.

The filter lives as long as the script, and its memory must hold neither the key nor a password. So it is a program of its
own, begun before the key is read, and is told how to recognise a password: its length, and at most 50 bits about it.

- The bytes of all output are put into eight classes by a random table. A place is looked at more closely where the classes
  are those of the password's first six bytes; `bytes.find` sees to that at full speed.
- There a keyed hash of as many bytes as the password has must agree, in 32 bits. Other text is masked by mistake once in
  2**50 places; and from so few bits nobody can tell which of all good passwords it is. A weak one can be guessed from them.

What a script prints does pass through the filter's memory. It is kept in one buffer, and overwritten there once it was
masked. An unfinished line waits for its rest, because a password may be cut by the end of a read.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MASK = b"***"
PIPE_BYTES = 65536
LINE_BYTES = 65536
TOLD_BYTES = 65536
CLASSES = 8
CLASSED_BYTES = 6
TAG_BYTES = 4
KEY_BYTES = 32
TABLES = 64  # tried until the classes of no password are all alike, as in a line of dashes
PR_SET_DUMPABLE = 4
READY = b"\n"


class Recogniser:
    """What the filter knows: `table` and `key` are random, `marks` has length, classes and tag of each password."""

    def __init__(self, table: bytes, key: bytes, marks: Sequence[tuple[int, bytes, bytes]]) -> None:
        self.table = table
        self.key = key
        self.marks = marks
        self.longest = max((length for length, _, _ in marks), default=1)

    @classmethod
    def of(cls, forms: Sequence[bytes]) -> Recogniser:
        """Made by the process that has the passwords."""
        key = secrets.token_bytes(KEY_BYTES)
        tables = (_random_table() for _ in range(TABLES))
        table = max(tables, key=lambda table: min((_variety(form, table) for form in forms), default=0))
        marks = [
            (len(form), form[:CLASSED_BYTES].translate(table), _tag(form, key))
            for form in dict.fromkeys(forms)
        ]
        return cls(table, key, marks)

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Recogniser:
        marks = [
            (length, bytes.fromhex(classes), bytes.fromhex(tag)) for length, classes, tag in document["marks"]
        ]
        return cls(bytes.fromhex(document["table"]), bytes.fromhex(document["key"]), marks)

    def document(self) -> dict[str, Any]:
        marks = [(length, classes.hex(), tag.hex()) for length, classes, tag in self.marks]
        return {"table": self.table.hex(), "key": self.key.hex(), "marks": marks}

    def spans(self, buffer: bytearray, size: int) -> list[tuple[int, int]]:
        """Where passwords stand in the first `size` bytes; those that overlap are one."""
        merged: list[tuple[int, int]] = []
        for start, end in sorted(self._found(buffer, size)):
            if merged and start < merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((start, end))
        return merged

    def _found(self, buffer: bytearray, size: int) -> Iterator[tuple[int, int]]:
        classed = buffer.translate(self.table)
        with memoryview(buffer) as view:
            for length, classes, tag in self.marks:
                at = classed.find(classes, 0, size)
                while at >= 0 and at + length <= size:
                    with view[at : at + length] as there:
                        is_it = _tag(there, self.key) == tag
                    if is_it:
                        # The hash leaves what it was given on the stack: the next one of this length takes its place.
                        _tag(bytes(length), self.key)
                        yield at, at + length
                    at = classed.find(classes, at + (length if is_it else 1), size)


def _random_table() -> bytes:
    """As many bytes in each class."""
    order = list(range(256))
    secrets.SystemRandom().shuffle(order)
    table = bytearray(256)
    for place, byte in enumerate(order):
        table[byte] = place % CLASSES
    return bytes(table)


def _variety(form: bytes, table: bytes) -> int:
    return len(set(form[:CLASSED_BYTES].translate(table)))


def _tag(form: bytes | memoryview, key: bytes) -> bytes:
    return blake2b(form, key=key, digest_size=TAG_BYTES).digest()


def run(source: int, target: int, known: Recogniser) -> None:
    """Until the last writer is gone."""
    kept = known.longest - 1
    buffer = bytearray(LINE_BYTES + PIPE_BYTES + kept)
    waiting = 0  # bytes at the start of the buffer, of a line that has not ended
    while True:
        with memoryview(buffer) as view, view[waiting : waiting + PIPE_BYTES] as room:
            count = os.readv(source, [room])
        size = waiting + count
        spans = known.spans(buffer, size)
        end = size if not count else buffer.rfind(b"\n", 0, size) + 1
        if size - end > LINE_BYTES:
            end = size - kept
        end = max([end, *(after for start, after in spans if start < end)])
        shown = _masked(buffer, end, spans)
        waiting = _keep(buffer, end, size)
        _write(target, shown)
        if not count:
            return


def _masked(buffer: bytearray, end: int, spans: Sequence[tuple[int, int]]) -> bytes:
    pieces, at = [], 0
    for start, after in spans:
        if start < end:
            pieces += [bytes(buffer[at:start]), MASK]
            at = after
    return b"".join([*pieces, bytes(buffer[at:end])])


def _keep(buffer: bytearray, end: int, size: int) -> int:
    """Moves what waits to the start, and overwrites all else."""
    left = size - end
    with memoryview(buffer) as view:
        view[:left] = view[end:size]
        view[left:size] = bytes(size - left)
    return left


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def _told(handle: int) -> Recogniser | None:
    """None: there will be no script."""
    said = b""
    while not said.endswith(READY):
        more = os.read(handle, TOLD_BYTES)
        if not more:
            return None
        said += more
    os.write(handle, READY)
    os.close(handle)
    return Recogniser.parse(json.loads(said))


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
    source, told = map(int, sys.argv[1:3])
    try:
        known = _told(told)
        if known is not None:
            run(source, sys.stdout.fileno(), known)
    except OSError:
        pass  # the reader is gone


if __name__ == "__main__":
    main()
