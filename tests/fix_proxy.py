"""A proxy before Postgres that does what real middlemen do: pool by transaction, or speak for an older server.

It reads just enough of the protocol: after a client's start-up, every server message is a type byte and a length.
"""

from __future__ import annotations

import select
import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from psycopg import conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 65536
HEAD = 5
READY_IDLE = b"Z\x00\x00\x00\x05I"


@contextmanager
def proxy(dsn: str, *, servers: int = 1, server_version: str = "") -> Iterator[str]:
    """The DSN of a proxy. With two `servers` each client's transactions go to one and the other in turn."""
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
                    # What no client waits for, such as a NOTIFY to a session that is not its own now, is lost.
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
    while len(data) > HEAD and len(data) >= (end := 1 + int.from_bytes(data[1:HEAD])):
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
