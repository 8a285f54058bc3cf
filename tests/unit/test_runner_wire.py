"""A daemon sends whole lines to a runner, or kills it; and the end of a runner always reaches those who wait for it."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from dataflowd.engine import runner as runners
from dataflowd.engine.runner import Runner
from dataflowd.host import supervise
from tests.fix_postgres import reachable_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataflowd.host.settings import Settings

LARGE = {"type": "order", "order": "x" * 4_000_000}  # larger than the socket's buffer
ENV = {"PATH": "/usr/bin:/bin"}


async def received(wire: socket.socket, lines: int) -> list[dict[str, Any]]:
    loop, got = asyncio.get_running_loop(), b""
    while got.count(b"\n") < lines:
        got += await loop.sock_recv(wire, 1 << 20)
    return [json.loads(line) for line in got.splitlines()]


async def test_a_send_that_is_cancelled_leaves_no_half_line_on_the_wire() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        for end in (ours, theirs):
            end.setblocking(False)
        one = Runner(("key",), reuse=2, slots=2)
        one._connection = ours
        async with anyio.create_task_group() as group:
            group.start_soon(one.send, LARGE)
            await anyio.wait_readable(theirs)  # the first bytes of the line are sent, the rest waits
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as neighbour:
                    neighbour.start_soon(one.send, {"type": "ping"})
                    said = await received(theirs, 2)
        assert [message["type"] for message in said] == ["order", "ping"]


async def test_a_runner_that_does_not_read_is_killed_and_does_not_delay_a_cancel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runners, "SEND_SECONDS", 0.2)
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        ours.setblocking(False)
        one = Runner(("key",), reuse=2, slots=2)
        one._connection, one._child = ours, supervise.spawn(["sleep", "60"], env=ENV)
        with anyio.fail_after(10):
            await one.send(LARGE)
            assert (await one._child.wait()).signal == "SIGKILL"


@pytest.fixture
def blocked(settings: Settings) -> Iterator[Settings]:
    """Settings under which no runner can make its directory."""
    with reachable_directory() as short:  # a longer path would make the runner put its socket elsewhere
        (short / "run").touch()
        yield settings.model_copy(update={"data_dir": short})


async def test_waiting_for_a_runner_that_cannot_start_ends_with_the_reason(blocked: Settings) -> None:
    one = Runner(("key",), reuse=2, slots=2)
    one.start(blocked, {}, {})
    with anyio.fail_after(10):
        assert not await one.ready()
        await one.stop()
    assert "File exists" in one.how


async def test_a_runner_that_is_killed_twice_at_once_ends(settings: Settings, tmp_path: Path) -> None:
    one = Runner(("key",), reuse=2, slots=2)
    one.start(settings, {}, {"JAVA_HOME": str(tmp_path)})
    while one.pid is None:
        await anyio.lowlevel.checkpoint()
    pid = one.pid
    first = asyncio.create_task(one.kill())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done, _ = await asyncio.wait({first, asyncio.create_task(one.kill())}, timeout=20)
    assert len(done) == 2
    assert one.ended.is_set()
    assert supervise.started_at(pid) is None
