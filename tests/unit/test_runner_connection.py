"""Which process may connect to a runner's socket, what it has to say first, and how fast it is read."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import anyio
import pytest

from dataflowd.engine import runner_connection
from dataflowd.engine.runner_connection import BURST_SECONDS, TokenBucket, authenticate, handshake
from dataflowd.runner import wire

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "good once"  # noqa: S105 - of this test alone
HELLO: wire.Message = {"type": "hello", "token": TOKEN}
RATE = 100.0


def sent(*messages: wire.Message) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


async def shaken(data: bytes) -> list[wire.Message]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        ours.setblocking(False)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return await handshake(ours, wire.Lines(wire.HELLO_BYTES))


async def test_the_handshake_returns_all_that_came_with_the_hello() -> None:
    assert await shaken(sent(HELLO, {"type": "ready"})) == [HELLO, {"type": "ready"}]


async def test_a_peer_that_goes_away_before_its_hello_has_said_nothing() -> None:
    assert await shaken(b'{"type": "hel') == []


async def test_a_first_line_that_is_too_long_is_refused() -> None:
    with pytest.raises(wire.WireError, match="longer"):
        await shaken(sent(HELLO | {"more": "x" * 2 * wire.HELLO_BYTES}))


@pytest.mark.parametrize(
    "first",
    [
        HELLO | {"token": "another"},
        HELLO | {"token": "\ud800"},
        {"type": "hello", "token": None},
        {"type": "hello"},
        {"type": "ready", "token": TOKEN},
    ],
)
def test_only_a_hello_with_the_token_is_let_in(first: wire.Message) -> None:
    authenticate(HELLO, TOKEN)
    with pytest.raises(wire.WireError):
        authenticate(first, TOKEN)


@pytest.mark.parametrize(("uid", "session"), [(1, 0), (0, 1)])
async def test_a_process_of_another_user_or_session_is_turned_away(
    tmp_path: Path, uid: int, session: int
) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener, closing(socket.socket(socket.AF_UNIX)) as peer:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(1)
        listener.setblocking(False)
        peer.connect(str(tmp_path / "socket"))
        peer.setblocking(False)
        async with anyio.create_task_group() as group:
            expected = os.getsid(0) + session, os.geteuid() + uid
            group.start_soon(runner_connection.accept, listener, *expected)
            assert await asyncio.get_running_loop().sock_recv(peer, 1) == b""
            group.cancel_scope.cancel()


async def test_a_process_of_the_user_and_session_is_accepted(tmp_path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener, closing(socket.socket(socket.AF_UNIX)) as peer:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(1)
        listener.setblocking(False)
        peer.connect(str(tmp_path / "socket"))
        with closing(await runner_connection.accept(listener, os.getsid(0), os.geteuid())) as connection:
            peer.sendall(b"x")
            assert connection.recv(1) == b"x"


def test_the_bucket_allows_a_burst_and_then_reads_at_the_rate() -> None:
    bucket = TokenBucket(RATE, now=0.0)
    after_rest = 10 * BURST_SECONDS
    assert bucket.take(int(RATE * BURST_SECONDS), after_rest) == 0
    assert bucket.take(1, after_rest) == pytest.approx(1 / RATE)
    assert bucket.take(int(RATE), after_rest) == pytest.approx(1 + 1 / RATE)


def test_a_pause_refills_the_bucket_to_one_burst_at_most() -> None:
    bucket = TokenBucket(RATE, now=0.0)
    assert bucket.take(int(2 * RATE), 1000.0) == pytest.approx(2 - BURST_SECONDS)


def test_a_runner_that_keeps_to_the_rate_never_waits() -> None:
    bucket = TokenBucket(RATE, now=0.0)
    assert [bucket.take(1, number / RATE) for number in range(1, 1000)] == [pytest.approx(0, abs=1e-9)] * 999
