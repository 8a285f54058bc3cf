"""How a daemon accepts the connection of a runner: who may connect, what the runner sends first, and how much it may send.

1. `accept` takes a connection only from a process of the runners' user and of the session that the daemon started. The
   kernel says which process is at the other end.
2. `handshake` reads the first line, which is short. `authenticate` compares its token with the one that the daemon gave to
   the process. The token is good for this line alone.
3. `TokenBucket` says how long the daemon pauses before it reads on, so that a runner cannot keep the event loop busy.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from dataflowd.host import log
from dataflowd.runner import wire

if TYPE_CHECKING:
    import socket

BURST_SECONDS = 1.0

_log = log.logger(__name__)


async def accept(listener: socket.socket, session: int, uid: int) -> socket.socket:
    """Returns the first connection of a process of this user and session; closes all others."""
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await loop.sock_accept(listener)
        connection.setblocking(False)
        peer = wire.peer(connection)
        with suppress(ProcessLookupError):
            if peer.uid == uid and os.getsid(peer.pid) == session:
                return connection
        _log.warning("runner.stranger", pid=peer.pid, uid=peer.uid)
        connection.close()


async def handshake(connection: socket.socket, lines: wire.Lines) -> list[wire.Message]:
    """Reads until the first message is complete; returns the messages that have arrived, none if the runner closed."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(connection, wire.HELLO_BYTES):
        if messages := lines.feed(data):
            return messages
    return []


def authenticate(hello: wire.Message, token: str) -> None:
    """Raises WireError unless the message is a hello with this token."""
    wire.check(hello)
    sent = hello["token"] if hello["type"] == "hello" else ""
    if not hmac.compare_digest(sent.encode(errors="replace"), token.encode()):
        raise wire.WireError("the runner did not send the right token")


class TokenBucket:
    """Token bucket: RATE messages a second, with a burst of one second."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._paid_until = now

    def take(self, messages: int, now: float) -> float:
        """Takes a token for each message; returns for how many seconds the reader has to pause."""
        self._paid_until = max(self._paid_until, now - BURST_SECONDS) + messages / self._rate
        return max(0.0, self._paid_until - now)
