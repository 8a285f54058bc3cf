"""One runner process, from the daemon's side: starts it, lets it connect, sends it orders, and knows when it is gone.

One task owns the process from its start to its end; the caller of `start` names the task group of that task. The task reads
the socket and the process's output, and hands each message to the attempt that it belongs to. When the process has ended, the
task wakes everybody who waits for a result. After any error in the task the same holds: first the process is killed, then
everybody is woken. The task pings the runner regularly, and the answer needs the runner's JVM. A runner that does not answer
for `runner_silence` seconds is killed. The directory of a runner (0700) holds its socket and the files that Spark keeps
meanwhile; it is removed with the runner.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from dataflowd.engine import runner_connection, submit
from dataflowd.engine.owned_tasks import owned_tasks
from dataflowd.host import log, private, runner_user, supervise
from dataflowd.host import passwords as credentials
from dataflowd.host.keyfile import KeySource
from dataflowd.host.lent_key import lend
from dataflowd.host.scratch import RUNNER
from dataflowd.model.faults import first_of
from dataflowd.runner import session, submitted, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from anyio.abc import TaskGroup

    from dataflowd.host.settings import Settings

SOCKET_PATH_BYTES = 107
CONNECT_SECONDS = 120.0
PROBE_SECONDS = 10.0
PROBES_PER_SILENCE = 4
GRACE_SECONDS = 5.0
SEND_SECONDS = 10.0  # the main thread of a healthy runner reads at once, also while attempts run
HEAP_SHARE = 0.85

_log = log.logger(__name__)


@dataclass
class Pending:
    """An attempt that was sent to a runner."""

    on_message: Callable[[wire.Message], None]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    result: dict[str, Any] | None = None  # still None when `ended` is set: the runner died, or see `failure`
    failure: Exception | None = None  # the daemon's error at a message of the attempt; the runner goes on


class Runner:
    def __init__(self, key: tuple[Any, ...], *, reuse: int, slots: int) -> None:
        self.key = key
        self.reuse = reuse
        self.slots = slots
        self.load = 0
        self.served = 0
        self.pending: dict[int, Pending] = {}
        self.is_retired = False
        self.is_ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.exit: supervise.Exit | None = None
        self.born = time.monotonic()
        self.idle_since = time.monotonic()
        self._child: supervise.Child | None = None
        self._connection: socket.socket | None = None
        self._sending = asyncio.Lock()
        self._pong = asyncio.Event()  # replaced after each pong
        self._silence: float | None = None
        self._failure: Exception | None = None
        self._scope = anyio.CancelScope()
        self._is_started = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(
        self, tasks: TaskGroup, settings: Settings, spark: Mapping[str, str], variables: Mapping[str, str]
    ) -> None:
        """Starts the process in a task of `tasks`, and returns at once. `ready` waits until its Spark has started."""
        self._is_started = True
        tasks.start_soon(self._live, settings, spark, variables)

    async def ready(self) -> bool:
        """Waits until Spark has started. Returns False if the runner died instead."""
        await _first_of(self.is_ready, self.ended)
        return self.is_ready.is_set() and not self.ended.is_set()

    async def send(self, message: wire.Message) -> None:
        """Sends a message; does nothing if the runner is gone, which `ended` tells.

        A caller that is cancelled still sends its whole line, because half a line would spoil the messages of others. A
        runner that does not read for SEND_SECONDS is killed, so that no caller waits longer.
        """
        with anyio.CancelScope(shield=True), anyio.move_on_after(SEND_SECONDS) as limit:
            async with self._sending:
                connection = self._connection
                if connection is not None:
                    with suppress(OSError):
                        await asyncio.get_running_loop().sock_sendall(connection, wire.encode(message))
        if limit.cancelled_caught and self._child is not None and self.exit is None:
            self.is_retired = True
            _log.warning("runner.unread", pid=self.pid, seconds=SEND_SECONDS, attempts=len(self.pending))
            supervise.signal_session(self._child.pid, signal.SIGKILL)

    @property
    def how(self) -> str:
        """How the runner ended, for messages."""
        if self._silence is not None:
            return f"killed because it had not answered for {self._silence:.0f} s"
        if self._failure is not None:
            return f"it could not be started or supervised: {self._failure}"
        return str(self.exit) if self.exit else "it could not be started"

    async def probe(self) -> bool:
        """Whether the runner answers and has room in its heap."""
        return await self._answers(PROBE_SECONDS) and not self.is_retired

    async def stop(self) -> None:
        """Asks an idle runner to stop, then kills it; returns when nothing of it is left."""
        self.is_retired = True
        if self.is_ready.is_set() and not self.pending:
            await self.send({"type": "stop"})
            with anyio.move_on_after(GRACE_SECONDS):
                await self.ended.wait()
        await self.kill()

    async def kill(self) -> None:
        """Sends SIGTERM, then SIGKILL, to all processes of the runner's session; returns when they are gone."""
        self.is_retired = True
        with anyio.CancelScope(shield=True):
            if self._is_started:
                self._scope.cancel()
                await self.ended.wait()

    async def _live(self, settings: Settings, spark: Mapping[str, str], variables: Mapping[str, str]) -> None:
        log.leave_attempt()
        try:
            with self._scope, _place(settings) as (directory, listener):
                await self._supervise(settings, spark, variables, directory, listener)
        except Exception as error:  # noqa: BLE001 - after any error those who wait have to learn of the end
            self._failure = first_of(error)
            _log.exception("runner.failed", pid=self.pid)
        finally:
            self.is_retired = True
            _log.info("runner.ended", pid=self.pid, served=self.served, how=self.how)
            self.ended.set()
            for pending in self.pending.values():
                pending.ended.set()

    async def _supervise(
        self,
        settings: Settings,
        spark: Mapping[str, str],
        variables: Mapping[str, str],
        directory: Path,
        listener: socket.socket,
    ) -> None:
        """Starts the process and serves it. When this returns or raises, nothing of the process is left."""
        token = secrets.token_urlsafe(32)
        argv, env = _command(self.reuse, settings, spark, variables, directory, token)
        log_path = settings.effective_log_dir / "runners" / f"{directory.name}.log"
        child = self._child = supervise.spawn(
            argv, env=env, cwd=directory, log_path=log_path, user=settings.runner_user
        )
        try:
            _log.info("runner.started", pid=child.pid, reuse=self.reuse, slots=self.slots)
            async with anyio.create_task_group() as group:
                uid = runner_user.uid_of(settings.runner_user)
                group.start_soon(self._serve, listener, token, child, uid)
                group.start_soon(self._watch, child, settings.runner_silence)
                await child.wait()
                group.cancel_scope.cancel()
        finally:
            self.is_retired = True
            self.exit = await child.terminate(GRACE_SECONDS)
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    async def _serve(self, listener: socket.socket, token: str, child: supervise.Child, uid: int) -> None:
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                connection = await runner_connection.accept(listener, child.pid, uid)
            with closing(connection):
                await self._read(connection, token)
        except (wire.WireError, TimeoutError, OSError) as error:
            _log.warning("runner.refused", pid=child.pid, error=str(error) or type(error).__name__)
        self._connection = None
        # A runner without its socket is of no use. As a rule it ends by itself within GRACE_SECONDS.
        with anyio.move_on_after(GRACE_SECONDS):
            await anyio.sleep_forever()
        supervise.signal_session(child.pid, signal.SIGKILL)

    async def _watch(self, child: supervise.Child, silence: float) -> None:
        """Kills a runner that does not answer for `silence` seconds. A healthy one answers, however busy it is."""
        await self.is_ready.wait()
        while await self._answers(silence):  # noqa: ASYNC110 - the condition asks the runner
            await anyio.sleep(silence / PROBES_PER_SILENCE)
        self._silence = silence
        _log.warning("runner.silent", pid=child.pid, seconds=silence, attempts=len(self.pending))
        supervise.signal_session(child.pid, signal.SIGKILL)

    async def _answers(self, seconds: float) -> bool:
        pong = self._pong
        with anyio.move_on_after(seconds):
            await self.send({"type": "ping"})
            await _first_of(pong, self.ended)
        return pong.is_set()

    async def _read(self, connection: socket.socket, token: str) -> None:
        """Lets the runner in, then hands on its messages until it closes its end."""
        lines = wire.Lines(wire.HELLO_BYTES)
        messages = await runner_connection.handshake(connection, lines)
        if not messages:
            return
        runner_connection.authenticate(messages[0], token)
        self._connection, lines.most = connection, wire.LINE_BYTES
        loop = asyncio.get_running_loop()
        bucket = runner_connection.TokenBucket(wire.RATE, time.monotonic())
        while True:
            for message in messages:
                wire.check(message)
                self._receive(message)
            if pause := bucket.take(len(messages), time.monotonic()):
                await anyio.sleep(pause)
            data = await loop.sock_recv(connection, wire.RECEIVE_BYTES)
            if not data:
                return
            messages = lines.feed(data)

    def _receive(self, message: wire.Message) -> None:
        match message["type"]:
            case "ready":
                self.is_ready.set()
                _log.info("runner.ready", pid=self.pid, seconds=round(time.monotonic() - self.born, 1))
            case "pong":
                if message["heap"] > HEAP_SHARE * message["heap_max"]:
                    # A retired runner finishes its attempts and gets no more.
                    self.is_retired = True
                self._pong.set()
                self._pong = asyncio.Event()
            case "result" if message["attempt"] in self.pending:
                pending = self.pending[message["attempt"]]
                if pending.result is None:  # the first result counts
                    pending.result = message["result"]
                usage = message["result"].get("usage", {})
                if usage.get("left_threads") or usage.get("stopped_spark"):
                    self.is_retired = True
                pending.ended.set()
            case "step" | "found" | "log" | "progress" | "confirm" if message["attempt"] in self.pending:
                pending = self.pending[message["attempt"]]
                try:
                    pending.on_message(message)
                except Exception as error:  # noqa: BLE001 - the other attempts in the runner go on
                    _log.exception("attempt.unheard", attempt=message["attempt"])
                    if pending.failure is None:
                        pending.failure = error
                        pending.ended.set()
            case _:
                pass


@asynccontextmanager
async def started_alone(
    settings: Settings, spark: Mapping[str, str], variables: Mapping[str, str], *, reuse: int = 2
) -> AsyncIterator[Runner]:
    """A runner outside the pool, for one question. However the block ends, the runner is dead afterwards."""
    runner = Runner(("alone",), reuse=reuse, slots=1)
    async with owned_tasks(runner.kill) as tasks:
        runner.start(tasks, settings, spark, variables)
        yield runner


async def _first_of(*events: asyncio.Event) -> None:
    async with anyio.create_task_group() as group:

        async def wait(event: asyncio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        for event in events:
            group.start_soon(wait, event)


@contextmanager
def _place(settings: Settings) -> Iterator[tuple[Path, socket.socket]]:
    """A directory for one runner, with the socket that it connects to. Both are removed at the end."""
    directory = _directory(settings)
    try:
        with closing(_listen(directory / "socket")) as listener:
            # The directory is given away last, because its owner may replace the socket by a link.
            runner_user.give(directory / "socket", settings.runner_user)
            runner_user.give(directory, settings.runner_user)
            yield directory, listener
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _directory(settings: Settings) -> Path:
    """A new directory below the data directory, or below the temporary one if the socket's path would be too long."""
    parent = private.make_spool(settings)
    if len(os.fsencode(parent)) + len(f"/{RUNNER}-1234567-12345678901-12345678/socket") > SOCKET_PATH_BYTES:
        parent = Path(tempfile.gettempdir())
    return supervise.own_directory(parent, RUNNER)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)
    listener.setblocking(False)
    return listener


def _command(  # noqa: PLR0913, PLR0917 - all that a process is started with
    reuse: int,
    settings: Settings,
    spark: Mapping[str, str],
    variables: Mapping[str, str],
    directory: Path,
    token: str,
) -> tuple[list[str], dict[str, str]]:
    """The runner's command and environment. The daemon's own environment holds the DSN, which job code must not see."""
    conf = session.configuration(spark, settings.master, str(directory), f"dataflowd-{directory.name}")
    env = submit.environment(settings.master, spark, variables, directory, settings.runner_user)
    env |= {wire.SOCKET_VARIABLE: str(directory / "socket"), wire.TOKEN_VARIABLE: token}
    keys = lend(KeySource.of(settings), directory, settings.runner_user)
    env |= credentials.offer(keys, settings.cleartext_hosts)
    warm = [sys.executable, "-m", "dataflowd.runner"]
    if session.is_connect(settings.master):
        return warm, env | {session.CONF_VARIABLE: json.dumps(conf)}
    words = submit.words(conf, directory, settings.runner_user)
    if reuse > 1:
        return warm, env | {session.SUBMIT_VARIABLE: shlex.join([*words[1:], "pyspark-shell"])}
    return [*words, submitted.__file__], env
