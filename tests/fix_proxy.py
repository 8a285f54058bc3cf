"""Stands between a program and Postgres: a proxy that behaves as a real pooler, and a relay that fails as a real network.

The proxy pools by transaction, or pretends to be an older server. It reads as little of the protocol as it needs: after a
client's start-up, every message of the server is a type byte, a length and a body.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

from psycopg import conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 65536
HEAD = 5
NOTIFICATION = b"A"
ROW = b"D"
RELAY_TICK_SECONDS = 0.01
READY_IDLE = b"Z\x00\x00\x00\x05I"


@contextmanager
def proxy(dsn: str, *, servers: int = 1, server_version: str = "") -> Iterator[str]:
    """The DSN of a proxy. With two `servers`, the transactions of each client alternate between two sessions."""
    listener = socket.create_server(("127.0.0.1", 0))
    with ExitStack() as stack:
        threads: list[threading.Thread] = []
        acceptor = threading.Thread(target=_accept, args=(listener, dsn, servers, server_version, threads))
        acceptor.start()
        stack.callback(_join, threads)
        stack.callback(acceptor.join)
        stack.callback(listener.close)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        port = listener.getsockname()[1]
        yield conninfo.make_conninfo(
            dsn, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable"
        )


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def _accept(
    listener: socket.socket, dsn: str, servers: int, server_version: str, threads: list[threading.Thread]
) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threads.append(threading.Thread(target=_serve, args=(client, dsn, servers, server_version)))
        threads[-1].start()


def _serve(client: socket.socket, dsn: str, servers: int, server_version: str) -> None:
    with client, ExitStack() as stack:
        backends = [stack.enter_context(_connect(dsn)) for _ in range(servers)]
        current, unread = backends[0], dict.fromkeys(backends, b"")
        startup = client.recv(CHUNK)
        for spare in backends[1:]:
            _log_in(spare, startup)
        current.sendall(startup)
        while True:
            for ready in select.select([client, *backends], [], [])[0]:
                try:
                    data = ready.recv(CHUNK)
                    if not data:
                        return
                    if ready is client:
                        current.sendall(data)
                        continue
                    unread[ready] += data
                    messages, unread[ready] = _messages(unread[ready])
                    # Messages of the other session, such as a NOTIFY, are lost.
                    if ready is current:
                        client.sendall(b"".join(_spoken_as(message, server_version) for message in messages))
                        if READY_IDLE in messages:
                            current = backends[(backends.index(current) + 1) % servers]
                except OSError:
                    return


def _log_in(backend: socket.socket, startup: bytes) -> None:
    backend.sendall(startup)
    answer = b""
    while not answer.endswith(READY_IDLE):
        answer += backend.recv(CHUNK)


def _messages(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole messages at the start of the data, and the rest."""
    found = []
    while len(data) >= HEAD and len(data) >= (end := 1 + int.from_bytes(data[1:HEAD])):
        found.append(data[:end])
        data = data[end:]
    return found, data


def _spoken_as(message: bytes, server_version: str) -> bytes:
    if not server_version or not message[HEAD:].startswith(b"server_version\0"):
        return message
    body = b"server_version\0" + server_version.encode() + b"\0"
    return message[:1] + (len(body) + 4).to_bytes(4) + body


def _connect(dsn: str) -> socket.socket:
    target = conninfo.conninfo_to_dict(dsn)
    host, port = str(target["host"]), int(target.get("port") or 5432)
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    backend = socket.socket(socket.AF_UNIX)
    backend.connect(f"{host}/.s.PGSQL.{port}")
    return backend


class Relay:
    """A wire between a daemon and Postgres that a test can cut, blackhole, delay, deafen and resume.

    One thread moves the bytes. In a blackhole, connections stay open and new ones are accepted, but nothing arrives; as with
    TCP, bytes that were sent meanwhile arrive after `resume`. A deaf wire loses only notifications. `lose_row` loses an
    answer: the server has done the work, and the daemon does not learn of it.
    """

    def __init__(self, dsn: str) -> None:
        self._target = dsn
        self._mode: Literal["pass", "blackhole", "refuse"] = "pass"
        self._delay = 0.0
        self._stop = self._is_deaf = False
        self._unwanted = (
            b""  # the first row that contains this is lost, with all later messages of that session
        )
        self._muted: set[socket.socket] = set()
        self.has_lost = threading.Event()
        self._is_cut = threading.Event()  # all requested cuts are done
        self._is_cut.set()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._unread: dict[socket.socket, bytes] = {}  # by the server's side: an incomplete message
        self._sent: list[tuple[float, socket.socket, bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.dsn = conninfo.make_conninfo(
            dsn, host="127.0.0.1", port=self.port, sslmode="disable", gssencmode="disable"
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def blackhole(self) -> None:
        self._mode = "blackhole"

    def refuse(self) -> None:
        """Cuts every connection, and accepts no new one."""
        self._mode = "refuse"
        self.reset()

    def reset(self) -> None:
        """Cuts every connection once. Bytes that are sent on them after this call are lost."""
        self._is_cut.clear()
        while self._thread.is_alive() and not self._is_cut.wait(RELAY_TICK_SECONDS):
            pass

    def deafen(self) -> None:
        self._is_deaf = True

    def lose_row(self, containing: bytes) -> None:
        """Loses one row; `has_lost` is set when it is done."""
        self.has_lost.clear()
        self._unwanted = containing

    @property
    def connections(self) -> int:
        return len(self._unread)

    def delay(self, seconds: float) -> None:
        self._delay = seconds

    def resume(self) -> None:
        self._mode, self._delay, self._is_deaf = "pass", 0.0, False

    def close(self) -> None:
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        while not self._stop:
            if not self._is_cut.is_set():
                self._cut()
                self._is_cut.set()
            if self._mode == "blackhole":
                time.sleep(RELAY_TICK_SECONDS)
                continue
            for ready in select.select([self._listener, *self._peers], [], [], RELAY_TICK_SECONDS)[0]:
                if ready is self._listener:
                    self._accept()
                elif ready in self._peers:
                    self._read(ready)
            self._deliver()
        self._cut()
        self._listener.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._mode == "refuse":
            client.close()
            return
        try:
            backend = _connect(self._target)
        except OSError:
            client.close()
            return
        self._peers |= {client: backend, backend: client}
        self._unread[backend] = b""

    def _read(self, ready: socket.socket) -> None:
        try:
            data = ready.recv(CHUNK)
        except OSError:
            data = b""
        if data:
            passed = self._passed_on(ready, data)
            self._sent.append((time.monotonic() + self._delay, self._peers[ready], passed))
        else:
            self._drop(ready)

    def _passed_on(self, sender: socket.socket, data: bytes) -> bytes:
        if sender not in self._unread:
            return data
        messages, self._unread[sender] = _messages(self._unread[sender] + data)
        if self._unwanted and any(message[:1] == ROW and self._unwanted in message for message in messages):
            self._unwanted = b""
            self._muted.add(sender)
            self.has_lost.set()
        if sender in self._muted:
            return b""
        return b"".join(
            message for message in messages if not (self._is_deaf and message[:1] == NOTIFICATION)
        )

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._sent and self._sent[0][0] <= now:
            _, to, data = self._sent.pop(0)
            if to in self._peers:
                try:
                    to.sendall(data)
                except OSError:
                    self._drop(to)

    def _drop(self, one: socket.socket) -> None:
        other = self._peers.pop(one)
        self._peers.pop(other)
        self._unread.pop(one, None)
        self._unread.pop(other, None)
        self._muted -= {one, other}
        one.close()
        other.close()

    def _cut(self) -> None:
        for one in list(self._peers):
            # Close without a FIN, so that the other side sees a reset.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        self._peers.clear()
        self._unread.clear()
        self._muted.clear()
        self._sent.clear()
