"""A proxy before Postgres that does what real middlemen do: pool by transaction, or speak for an older server.

It reads just enough of the protocol: after a client's start-up, every server message is a type byte and a length.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from psycopg import conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 65536
READY, PARAMETER_STATUS, IDLE = b"Z", b"S", b"I"


@contextmanager
def proxy(dsn: str, *, servers: int = 1, server_version: str = "") -> Iterator[str]:
    """The DSN of a proxy. With two `servers` each client's transactions go to one and the other in turn."""
    listener = socket.create_server(("127.0.0.1", 0))
    with ExitStack() as stack:
        threads: list[threading.Thread] = []
        acceptor = threading.Thread(target=_accept, args=(listener, dsn, servers, server_version, threads))
        acceptor.start()
        stack.callback(lambda: [thread.join() for thread in threads])
        stack.callback(acceptor.join)
        stack.callback(listener.close)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        port = listener.getsockname()[1]
        yield conninfo.make_conninfo(
            dsn, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable"
        )


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
    """One question, one answer: psycopg sends nothing more before the server is ready again."""
    with client, ExitStack() as stack:
        backends = [stack.enter_context(_connect(dsn)) for _ in range(servers)]
        startup = client.recv(CHUNK)
        answers = [_answer(backend, startup, server_version) for backend in backends]
        client.sendall(answers[0])
        turn = 0
        while question := client.recv(CHUNK):
            answer = _answer(backends[turn % servers], question, server_version)
            client.sendall(answer)
            turn += answer.endswith(IDLE)


def _connect(dsn: str) -> socket.socket:
    target = conninfo.conninfo_to_dict(dsn)
    host, port = str(target["host"]), int(target.get("port") or 5432)
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    backend = socket.socket(socket.AF_UNIX)
    backend.connect(f"{host}/.s.PGSQL.{port}")
    return backend


def _answer(backend: socket.socket, question: bytes, server_version: str) -> bytes:
    """Everything up to the server's next ReadyForQuery; nothing once it has hung up."""
    backend.sendall(question)
    answer = b""
    with backend.makefile("rb", buffering=0) as stream:
        while head := stream.read(5):
            kind, length = head[:1], struct.unpack("!i", head[1:])[0]
            body = _exactly(backend, length - 4)
            if server_version and kind == PARAMETER_STATUS and body.startswith(b"server_version\0"):
                body = b"server_version\0" + server_version.encode() + b"\0"
            answer += kind + struct.pack("!i", len(body) + 4) + body
            if kind == READY:
                break
    return answer


def _exactly(backend: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        body += backend.recv(size - len(body))
    return body
