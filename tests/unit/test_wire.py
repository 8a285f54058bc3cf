"""A runner's process runs job code, which may send anything to the daemon. A wrong message ends that runner's own attempts and nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
import textwrap
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dataflowd.engine.runner import Pending, Runner
from dataflowd.runner import wire
from dataflowd.runner.__main__ import Reporter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dataflowd.host.settings import Settings

TOKEN = "a token"  # noqa: S105 - of nothing
HELLO = {"type": "hello", "token": TOKEN}
SECONDS = 30.0

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
WORDS = st.sampled_from(
    ["type", "attempt", "result", "token", "line", "step", "heap", "heap_max", "usage", "outcome"]
)
KINDS = st.sampled_from(
    ["hello", "ready", "pong", "step", "log", "progress", "confirm", "result", "order", "stop"]
)
MESSAGES = st.dictionaries(WORDS, VALUES, max_size=6).flatmap(
    lambda message: KINDS.map(lambda kind: message | {"type": kind})
)
LINES = (
    st.binary(max_size=60)
    | MESSAGES.map(lambda message: json.dumps(message).encode())
    | st.builds(
        lambda result: json.dumps({"type": "result", "attempt": 1, "result": result}).encode(), VALUES
    )
)


@given(st.lists(LINES, max_size=6), st.integers(1, 40))
@example([b"[" * 100_000], 1000)
@example([b'{"type":"log","attempt":1,"line":"\\ud800"}'], 7)
def test_whatever_arrives_is_a_message_or_refused(lines: list[bytes], cut: int) -> None:
    data, parser = b"\n".join(lines) + b"\n", wire.Lines()
    try:
        for start in range(0, len(data), cut):
            for message in parser.feed(data[start : start + cut]):
                wire.check(message)
    except wire.WireError:
        pass


@hypothesis_settings(max_examples=60)
@given(st.lists(LINES, min_size=1, max_size=6), st.booleans())
@example([b'{"type":"pong","heap":1,"heap_max":null}'], True)
@example([b'{"type":"log","attempt":[1],"line":""}'], True)
@example([b'{"type":"result","attempt":1,"result":{"outcome":"DONE","token":"x"}}'], True)
@example([b'{"type":"result","attempt":1,"result":{"outcome":"DONE","usage":[]}}'], True)
@example([json.dumps({"type": "hello", "token": "\u00e9"}).encode()], False)
def test_any_message_ends_at_most_its_own_connection(lines: list[bytes], is_known: bool) -> None:
    """Without the token a peer delivers no result."""
    own = Pending(lambda _message: None)

    async def hear() -> None:
        runner = Runner(("key",), reuse=2, slots=1)
        runner.pending |= {1: own}
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            first = json.dumps(HELLO).encode() + b"\n" if is_known else b""
            theirs.sendall(first + b"\n".join(lines) + b"\n")
            theirs.shutdown(socket.SHUT_WR)
            with suppress(wire.WireError):
                await runner._read(ours, TOKEN)

    asyncio.run(hear())
    assert is_known or own.result is None
    assert own.result is None or own.result["outcome"] in wire.OUTCOMES


# Replaces the runner's program: a package `dataflowd` in the first directory of PYTHONPATH.
PEER = """
    import json, os, socket, sys, time
    path, token = os.environ["DATAFLOW_RUNNER_SOCKET"], os.environ["DATAFLOW_RUNNER_TOKEN"]
    while os.path.exists(__file__ + ".late"):
        time.sleep(0.01)
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)

    def say(**message):
        link.sendall(json.dumps(message).encode() + b"\\n")

    def hello(**changes):
        say(**{"type": "hello", "token": token, **changes})
        say(type="ready")

    def until_closed():
        while link.recv(4096):
            pass
        link.close()

"""


class Peers:
    def __init__(self, settings: Settings, program: Path) -> None:
        self._settings = settings
        self.late = program.with_name(program.name + ".late")  # while it exists, the peer does not connect
        self._program = program

    @asynccontextmanager
    async def started(self, behaviour: str) -> AsyncIterator[tuple[Runner, list[wire.Message]]]:
        """A runner whose process executes `behaviour`, with attempt 1 pending, and the messages of that attempt."""
        self._program.write_text(textwrap.dedent(PEER) + textwrap.dedent(behaviour))
        said: list[wire.Message] = []
        runner = Runner(("key",), reuse=2, slots=1)
        runner.pending[1] = Pending(said.append)
        runner.start(self._settings, {}, {})
        try:
            yield runner, said
        finally:
            await runner.kill()

    async def result(self, behaviour: str) -> dict[str, Any] | None:
        async with self.started(behaviour) as (runner, _):
            await asyncio.wait_for(runner.pending[1].ended.wait(), SECONDS)
            return runner.pending[1].result


@pytest.fixture
def peers(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peers:
    package = tmp_path / "stand-in" / "dataflowd" / "runner"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent.parent))
    return Peers(settings, package / "__main__.py")


@pytest.mark.parametrize(
    "behaviour",
    [
        "hello(token='wrong'); until_closed()",
        "say(type='ready'); until_closed()",
        "say(type='result', attempt=1, result={'outcome': 'DONE'}); until_closed()",
        "link.sendall(b'x' * 100_000); until_closed()",
        "hello(); link.sendall(bytes(range(256)) + b'\\n'); until_closed()",
        "hello(); say(type='result', attempt=1, result={'outcome': 'DONE', 'token': 'x'}); until_closed()",
        "hello(); say(type='result', attempt=1, result={'outcome': 'DONE', 'outputs': {'x': 'no manifest'}}); until_closed()",
        "hello(); say(type='result', attempt=1, result={'outcome': 'DONE', 'outputs': {'x': {'location': 5}}}); until_closed()",
        "hello(); say(type='result', attempt=1, result={'outcome': 'DONE', 'checks': [7]}); until_closed()",
        "hello(); say(type='result', attempt=1, result={'outcome': 'DONE', 'judged': [{'dataid': 'd'}]}); until_closed()",
        "hello(); say(type='result', attempt=2, result={'outcome': 'DONE'})",
        "hello(); say(type='claim'); until_closed()",
    ],
)
async def test_a_peer_that_breaks_the_rules_loses_its_own_attempt(peers: Peers, behaviour: str) -> None:
    assert await peers.result(behaviour) is None
    assert await peers.result("hello(); say(type='result', attempt=1, result={'outcome': 'DONE'}); until_closed()") == {"outcome": "DONE"}  # fmt: skip


async def test_only_the_process_that_was_started_may_connect(peers: Peers) -> None:
    peers.late.touch()
    async with peers.started("hello(); until_closed()") as (runner, _):
        await asyncio.sleep(0)  # lets the runner's task create the socket
        path = _socket(runner)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.setblocking(False)
            stranger.connect(str(path))
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(stranger, 1), SECONDS) == b""
        peers.late.unlink()
        await asyncio.wait_for(runner.is_ready.wait(), SECONDS)


def _socket(runner: Runner) -> Path:
    """The socket's path, from the environment of the runner's process."""
    told = Path(f"/proc/{runner.pid}/environ").read_text(encoding="utf-8").split("\0")
    [path] = [each.partition("=")[2] for each in told if each.startswith(wire.SOCKET_VARIABLE + "=")]
    return Path(path)


async def test_a_runner_that_sends_too_much_is_read_more_slowly(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All messages arrive, and the daemon's loop turns meanwhile."""
    monkeypatch.setattr(wire, "RATE", 5000)
    behaviour = """
        hello()
        link.sendall(b'{"type":"log","attempt":1,"line":"x"}\\n' * 12_000)
        say(type="result", attempt=1, result={"outcome": "DONE"})
        until_closed()
    """
    began, turns = time.monotonic(), 0
    async with peers.started(behaviour) as (runner, said):
        await asyncio.wait_for(runner.is_ready.wait(), SECONDS)
        while not runner.pending[1].ended.is_set():
            await asyncio.sleep(0.01)
            turns += 1
    assert len(said) == 12_000
    assert time.monotonic() - began > 1
    assert turns > 50


def test_every_message_of_a_reporter_passes_the_check() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reporter = Reporter(wire.Wire(ours), 1)
        reporter.step("run")
        reporter.log("half a character: \ud800")
        reporter.progress(1, None)
        reporter.result(
            {"outcome": "FAILED", "code": "X", "error": "", "retry": None, "usage": {"seconds": 0.1}}
        )
        checks: dict[str, Any] = {
            "checks": [{"name": "x"}],
            "nodes": [],
            "quarantine": (),
            "outputs": {"a": {}},
        }
        reporter.result({"outcome": "DONE", "code_hash": None, "config_hash": "x", "applied": True} | checks)
        reporter.result({"outcome": "DONE", "outputs": {"a": "x" * wire.LINE_BYTES}})
        ours.shutdown(socket.SHUT_WR)
        said = wire.Lines().feed(b"".join(iter(lambda: theirs.recv(wire.RECEIVE_BYTES), b"")))
    for message in said:
        wire.check(message)
    assert [message["type"] for message in said] == ["step", "log", "progress", "result", "result", "result"]
