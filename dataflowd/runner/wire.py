"""Messages between a daemon and its runners: one JSON object a line, over a Unix socket in a directory of 0700.

A runner connects to the socket of its daemon and says hello with a token that is good once. The daemon also asks the kernel
who has connected: the process must belong to the runners' user and to the session that the daemon started (see
dataflowd.engine.runner_connection). A line that is longer than LINE_BYTES ends the connection, so that neither side can fill
the other's memory. A message of the runner that does not have its form ends the connection too: job code lives in that
process, and could send anything. The daemon reads at most RATE messages a second.

Daemon to runner: order, cancel, confirmed, forget, ping, stop. Runner to daemon: hello, ready, step, found, log, progress,
confirm, result, pong. The runner sends `found`, what prepare found, once, before the job's code begins. Before an attempt puts
rows into a table, it asks with `confirm` whether it still holds its claim.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataflowd.model.attempt import Manifest, Result, kinds_of, told_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SOCKET_VARIABLE = "DATAFLOW_RUNNER_SOCKET"
TOKEN_VARIABLE = "DATAFLOW_RUNNER_TOKEN"  # noqa: S105 - the name of a variable
LINE_BYTES = 64 * 1024 * 1024
RECEIVE_BYTES = 1024 * 1024
LOG_CHARACTERS = 32 * 1024
HELLO_BYTES = 4096
RATE = 20_000  # messages a second

Message = dict[str, Any]
Kinds = tuple[type, ...]

_TEXT: Kinds = (str,)
_WHOLE: Kinds = (int,)
_NUMBER: Kinds = (int, float)
_MESSAGES_OF_RUNNER: dict[str, dict[str, Kinds]] = {
    "hello": {"token": _TEXT},
    "ready": {},
    "pong": {"heap": _NUMBER, "heap_max": _NUMBER},
    "step": {"attempt": _WHOLE, "step": _TEXT},
    "found": {"attempt": _WHOLE, "found": (dict,)},
    "log": {"attempt": _WHOLE, "line": _TEXT},
    "progress": {"attempt": _WHOLE},
    "confirm": {"attempt": _WHOLE},
    "result": {"attempt": _WHOLE, "result": (dict,)},
}
# The fields of a runner's result. Only the result of a trial has a preview, which is not stored.
_RESULT: dict[str, Kinds] = {
    name: kinds for name, kinds in kinds_of(Result).items() if name in told_by("runner")
} | {"preview": (dict,)}
_LISTS = tuple(name for name, kinds in _RESULT.items() if kinds == (list,))
_MANIFEST = kinds_of(Manifest)  # only types are checked here; the database checks the values
OUTCOMES = ("DONE", "FAILED")


class WireError(Exception):
    """The other side sent something that is not a message, or one that it may not send."""


@dataclass(frozen=True)
class Peer:
    pid: int
    uid: int


def peer(connection: socket.socket) -> Peer:
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return Peer(pid, uid)


def encode(message: Message) -> bytes:
    line = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
    if len(line) > LINE_BYTES:
        raise WireError(f"a message of {len(line)} bytes is longer than the {LINE_BYTES} that are allowed")
    return line


def decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message is not JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError("a message is not an object with a type")
    return message


def check(message: Message) -> None:
    """Raises WireError unless a runner may send this message."""
    kind = message["type"]
    if kind not in _MESSAGES_OF_RUNNER:
        raise WireError(f"a runner may not send a message of the type {kind!r:.50}")
    _require(f"a message {kind}", message, _MESSAGES_OF_RUNNER[kind])
    if kind == "result":
        result = message["result"]
        if unknown := result.keys() - _RESULT.keys():
            raise WireError(f"a result has the unknown field {min(unknown)!r:.50}")
        _require("a result", result, {name: kinds for name, kinds in _RESULT.items() if name in result})
        if result.get("outcome") not in OUTCOMES:
            raise WireError(f"a result has the outcome {result.get('outcome')!r:.50}")
        _check_details(result)


def _check_details(result: Message) -> None:
    for name, manifest in result.get("outputs", {}).items():
        _require("a result", {name: manifest}, {name: (dict,)})
        _require("a manifest", manifest, {key: kinds for key, kinds in _MANIFEST.items() if key in manifest})
    for kind in _LISTS:
        for each in result.get(kind, []):
            _require("a result", {kind: each}, {kind: (dict,)})
    for each in result.get("judged", []):
        _require("what was judged", each, {"dataset": _TEXT, "dataid": _TEXT})


def _require(what: str, found: Message, wanted: Mapping[str, Kinds]) -> None:
    for name, kinds in wanted.items():
        value = found.get(name)
        is_flag = isinstance(value, bool) and bool not in kinds
        if is_flag or not isinstance(value, kinds):
            raise WireError(f"{what} has the wrong value {value!r:.50} for {name}")


class Lines:
    """Cuts the arriving bytes into lines; keeps at most one unfinished line of bounded length."""

    def __init__(self, most: int = LINE_BYTES) -> None:
        self._rest = bytearray()
        self.most = most

    def feed(self, data: bytes) -> list[Message]:
        self._rest += data
        *lines, rest = self._rest.split(b"\n") if b"\n" in data else (bytes(self._rest),)
        if max(map(len, (*lines, rest))) > self.most:
            raise WireError(f"a line is longer than the {self.most} bytes that are allowed")
        if lines:
            self._rest = bytearray(rest)
        return [decode(bytes(line)) for line in lines if line]


class Wire:
    """The runner's end of the connection. Many threads send, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._lines = Lines()

    @classmethod
    def connect(cls, path: str, token: str, **hello: Any) -> Wire:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        wire = cls(connection)
        wire.send({"type": "hello", "token": token, **hello})
        return wire

    def send(self, message: Message) -> None:
        line = encode(message)
        with self._lock:
            self._connection.sendall(line)

    def messages(self) -> Iterator[Message]:
        """Yields messages until the daemon closes its end, or dies."""
        while data := self._connection.recv(RECEIVE_BYTES):
            yield from self._lines.feed(data)

    def close(self) -> None:
        self._connection.close()
