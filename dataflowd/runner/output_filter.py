"""Masks passwords in what a script prints, without knowing them: `python -I -S output_filter.py SOURCE CHANNEL`, run by script.

The filter lives as long as the script, and its memory must hold neither the key nor a password. So it is a program of its
own, started before the key is read. Through the channel it receives how to recognise each password: the password's length,
and at most 50 bits about it.

- A random table puts each byte value into one of eight classes. `bytes.find` quickly finds the places in the output where
  the classes are those of the password's first six bytes (18 bits).
- At such a place, a keyed hash over the password's length must agree in 32 bits. Other text is masked by mistake once in
  2**50 places. 50 bits do not determine a good password; a weak password can be guessed from them.

What a script prints passes through the filter's memory. It is kept in one buffer and overwritten there after it was
masked. The filter holds back an unfinished line until the line ends, because the end of a read may cut a password in two.
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
CHANNEL_BYTES = 65536
CLASSES = 8
CLASSED_BYTES = 6
TAG_BYTES = 4
KEY_BYTES = 32
# So many random tables are drawn, and the one that gives the passwords the most different classes is used: a password whose
# classes are all alike would make every line of dashes a place to look at.
TABLES = 64
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
        """Makes a recogniser of these forms of passwords, in the process that has the passwords."""
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
        """Returns where passwords stand in the first `size` bytes; overlapping places are merged."""
        merged: list[tuple[int, int]] = []
        for start, end in sorted(self._matches(buffer, size)):
            if merged and start < merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((start, end))
        return merged

    def _matches(self, buffer: bytearray, size: int) -> Iterator[tuple[int, int]]:
        classed = buffer.translate(self.table)
        with memoryview(buffer) as view:
            for length, classes, tag in self.marks:
                at = classed.find(classes, 0, size)
                while at >= 0 and at + length <= size:
                    with view[at : at + length] as piece:
                        is_match = _tag(piece, self.key) == tag
                    if is_match:
                        # The hash function leaves its input on the stack; hashing zeros of the same length overwrites it.
                        _tag(bytes(length), self.key)
                        yield at, at + length
                    at = classed.find(classes, at + (length if is_match else 1), size)


def _random_table() -> bytes:
    """Returns a random table with the same number of byte values in each class."""
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
    """Copies source to target with passwords masked, until the last writer of source is gone."""
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
    """Moves the unfinished line to the start of the buffer, overwrites the rest with zeros, and returns the line's length."""
    left = size - end
    with memoryview(buffer) as view:
        view[:left] = view[end:size]
        view[left:size] = bytes(size - left)
    return left


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def _receive(channel: int) -> Recogniser | None:
    """Reads the recogniser and confirms it. None: the other end closed, and no script will start."""
    received = b""
    while not received.endswith(READY):
        more = os.read(channel, CHANNEL_BYTES)
        if not more:
            return None
        received += more
    os.write(channel, READY)
    os.close(channel)
    return Recogniser.parse(json.loads(received))


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
    source, channel = map(int, sys.argv[1:3])
    try:
        known = _receive(channel)
        if known is not None:
            run(source, sys.stdout.fileno(), known)
    except OSError:
        pass  # nobody reads the output any more


if __name__ == "__main__":
    main()
