"""The daemon's HTTP server: /health/live, /health/ready, /metrics. Read only, GET only, one request a connection.

Live means that the event loop answers. Ready means that the claiming session and the listener are connected; a daemon whose
notifications do not arrive is ready too, and says that it polls. The server is bound to localhost unless the settings say
otherwise.

A client may open connections and send nothing, or one byte a second. So:
- A connection has REQUEST_SECONDS from its accept to the last byte of the answer, and may send REQUEST_BYTES.
- There are at most CONNECTIONS, fewer where the process may open few files. A new connection takes the place of the oldest
  one that has not sent its request.
- When the process has no file left, the server closes its reserve file, accepts and closes the waiting connections, closes
  every connection without a request, and rests: files are for sessions of the database and for jobs.
- All requests for metrics share one call to the database.
After a failure the server logs the error and begins again, because no work depends on it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import psycopg
from anyio.abc import SocketAttribute

from dataflowd import __version__
from dataflowd.daemon.listener import ListenerState
from dataflowd.database import calls
from dataflowd.database.session import LostLinkError, backoff
from dataflowd.host import log
from dataflowd.model.errors import InvalidSettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.daemon.state import State
    from dataflowd.database.session import Row

REQUEST_SECONDS = 5.0
REQUEST_BYTES = 8192
CONNECTIONS = 32
FILES_SHARE = 8  # connections are at most this part of the files that the process may open
BACKLOG = 128
DATABASE_SECONDS = 3.0
METRICS_SECONDS = 1.0  # for so long an answer of the database is used again
SAY_SECONDS = 60.0
REST_MOST_SECONDS = 1.0
NO_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# Faults of the client or of the network: the server accepts the next connection at once.
BROKEN_OFF = {errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH}
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

Response = tuple[int, str, bytes]

_log = log.logger(__name__)


async def run(state: State) -> None:
    """Serves for ever. Raises InvalidSettingsError when it cannot listen at its start."""
    settings = state.settings
    try:
        listeners = await _listen(state)
    except OSError as error:
        raise InvalidSettingsError(
            f"http cannot listen on {settings.http_host}:{settings.http_port}: {error.strerror or error}",
            "set DATAFLOW_HTTP_PORT to a free port, or to 0 for none",
        ) from None
    failures = 0
    while True:
        began = time.monotonic()
        try:
            listeners = listeners or await _listen(state)
            _log.info("http.listening", host=settings.http_host, port=settings.http_port)
            await Server(state).serve(listeners)
        except Exception as error:  # noqa: BLE001 - the daemon's work goes on without its HTTP server
            failures = failures + 1 if time.monotonic() - began < SAY_SECONDS else 0
            _log.error("http.failed", error=f"{type(error).__name__}: {error}", note="it begins again")
        finally:
            for listener in listeners:
                listener.close()
            listeners = []
        await anyio.sleep(backoff(failures, most=SAY_SECONDS))


async def _listen(state: State) -> list[socket.socket]:
    """One socket for each address that the host name stands for."""
    settings = state.settings
    made = await anyio.create_tcp_listener(
        local_host=settings.http_host, local_port=settings.http_port, backlog=BACKLOG, reuse_port=False
    )
    return [each.extra(SocketAttribute.raw_socket) for each in made.listeners]  # noqa: S610 - no Django here


@dataclass(eq=False)
class Connection:
    socket: socket.socket
    scope: anyio.CancelScope
    ended: anyio.Event = field(default_factory=anyio.Event)
    is_answered: bool = False  # it has sent its request


class Server:
    def __init__(self, state: State) -> None:
        self._state = state
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = CONNECTIONS if files == resource.RLIM_INFINITY else files // FILES_SHARE
        self._most = max(1, min(CONNECTIONS, most))
        self._open: dict[Connection, None] = {}  # an ordered set, the oldest connection first
        self._reserve: int | None = None
        self._said = -SAY_SECONDS
        self._metrics = Metrics(state)

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Serves until it is cancelled, or raises."""
        try:
            async with anyio.create_task_group() as group:
                for listener in listeners:
                    group.start_soon(self._accept, listener, group)
        finally:
            if self._reserve is not None:
                os.close(self._reserve)

    async def _accept(self, listener: socket.socket, group: anyio.abc.TaskGroup) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            if self._reserve is None:
                self._keep_reserve()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in BROKEN_OFF:
                    continue
                if error.errno not in NO_FILES:
                    raise
                await self._shed(listener, error)
                await anyio.sleep(backoff(failures, most=REST_MOST_SECONDS))
                failures += 1
                continue
            failures = 0
            try:
                while len(self._open) >= self._most:
                    await self._make_room()
            except BaseException:
                accepted.close()
                raise
            connection = Connection(accepted, anyio.CancelScope())
            connection.scope.deadline = anyio.current_time() + REQUEST_SECONDS
            self._open[connection] = None
            group.start_soon(self._serve, connection)

    async def _make_room(self) -> None:
        """Ends the oldest connection without a request, or the oldest one if all have sent theirs."""
        silent = [connection for connection in self._open if not connection.is_answered]
        await _end((silent or list(self._open))[0])
        self._say("http.crowded", most=self._most)

    async def _shed(self, listener: socket.socket, error: OSError) -> None:
        """Closes waiting and silent connections. Without a free file they would wake the accept loop for ever."""
        self._say("http.no_files", error=error.strerror, connections=len(self._open))
        for connection in [each for each in self._open if not each.is_answered]:
            await _end(connection)
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            os.close(reserve)
            with suppress(OSError):  # no connection waits any more, or another task has taken the file
                for _ in range(BACKLOG):
                    accepted, _address = listener.accept()
                    accepted.close()
            self._keep_reserve()

    def _keep_reserve(self) -> None:
        try:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._reserve = None  # the accept loop tries again

    async def _serve(self, connection: Connection) -> None:
        try:
            with connection.scope:
                await self._answer(connection)
        except OSError:
            pass  # the client has gone
        except Exception as error:  # noqa: BLE001 - a failed request must not end the server
            self._say("http.request_failed", error=f"{type(error).__name__}: {error}"[:REQUEST_BYTES])
        finally:
            connection.socket.close()
            del self._open[connection]
            connection.ended.set()

    async def _answer(self, connection: Connection) -> None:
        head = await _head(connection.socket)
        if head is None:
            return
        connection.is_answered = True
        try:
            response = await self._respond(head)
        except Exception as error:  # noqa: BLE001 - a database may answer anything
            self._say("http.request_failed", error=f"{type(error).__name__}: {error}"[:REQUEST_BYTES])
            response = 500, TEXT, b"the daemon's log says why\n"
        await asyncio.get_running_loop().sock_sendall(connection.socket, _message(response))
        connection.socket.shutdown(socket.SHUT_WR)

    async def _respond(self, head: bytes) -> Response:
        words = head.split(b"\r\n", 1)[0].split()
        if len(head) > REQUEST_BYTES or len(words) != 3 or not words[2].startswith(b"HTTP/1."):  # noqa: PLR2004 - method, path, version
            return 400, TEXT, b"not a short request in HTTP/1\n"
        if words[0] != b"GET":
            return 405, TEXT, b"only GET\n"
        match words[1].split(b"?")[0]:
            case b"/health/live":
                return 200, JSON, _json(health(self._state))
            case b"/health/ready" | b"/health":
                found = health(self._state)
                return (200 if found["ready"] else 503), JSON, _json(found)
            case b"/metrics":
                return 200, TEXT, await self._metrics.text()
        return 404, TEXT, b"there are /health/live, /health/ready and /metrics\n"

    def _say(self, event: str, **details: object) -> None:
        """Logs at most once in SAY_SECONDS, so that clients cannot fill the log."""
        now = time.monotonic()
        if now - self._said >= SAY_SECONDS:
            self._said = now
            _log.warning(event, **details, note=f"not said again for {SAY_SECONDS:.0f} s")


class Metrics:
    """Uses an answer of the database for METRICS_SECONDS, so that many scrapes cost no more than one."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = anyio.Lock()
        self._jobs: list[Row] = []
        self._asked = -METRICS_SECONDS

    async def text(self) -> bytes:
        async with self._lock:
            if time.monotonic() - self._asked >= METRICS_SECONDS:
                self._jobs = await self._ask()
                self._asked = time.monotonic()
        return self._state.metrics.expose(self._state, time.monotonic(), self._jobs)

    async def _ask(self) -> list[Row]:
        try:
            with anyio.fail_after(DATABASE_SECONDS):
                return await calls.status(self._state.link)
        except (psycopg.Error, LostLinkError, TimeoutError):
            return []


async def _head(connection: socket.socket) -> bytes | None:
    """A request up to its empty line, cut off soon after REQUEST_BYTES. None: the client went away before."""
    loop, head = asyncio.get_running_loop(), b""
    while b"\r\n\r\n" not in head and len(head) <= REQUEST_BYTES:
        more = await loop.sock_recv(connection, REQUEST_BYTES)
        if not more:
            return None
        head += more
    return head


async def _end(connection: Connection) -> None:
    """Cancels the connection's task; returns when its file is closed."""
    connection.scope.cancel()
    await connection.ended.wait()


def _message(response: Response) -> bytes:
    status, kind, body = response
    lines = [
        f"HTTP/1.1 {status} {REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def health(state: State) -> dict[str, object]:
    database_up = state.claims.link.is_up
    return {
        "ready": database_up
        and state.hearing.state is not ListenerState.CONNECTING
        and not state.ending.is_stopping,
        "daemon": state.name,
        "version": __version__,
        "database": "up" if database_up else "down",
        "listener": state.hearing.state,
        "running": len(state.attempts.running),
        "limit": state.limits.limit,
        "paused": state.limits.paused,
        "draining": state.ending.is_stopping,
        "lease_seconds": round(state.lease.proven - time.monotonic(), 1),
    }


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
