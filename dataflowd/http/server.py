"""The daemon's HTTP: /health/live, /health/ready, /metrics. Read only, GET only, one request a connection.

Live: the event loop answers. Ready: the claiming session is connected and the listener too; a daemon on polling is ready
and says so. A request has a few seconds and a few kilobytes, and only so many are served at once: whoever opens
connections and says nothing costs little. It is bound to localhost unless the settings say otherwise.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import anyio
import psycopg
from anyio.streams.buffered import BufferedByteReceiveStream

from dataflowd import __version__, log
from dataflowd.daemon import calls
from dataflowd.daemon.link import LostLinkError
from dataflowd.errors import InvalidSettingsError

if TYPE_CHECKING:
    from anyio.abc import SocketAttribute, SocketStream  # noqa: F401

    from dataflowd.daemon.state import State

REQUEST_SECONDS = 5.0
REQUEST_BYTES = 8192
CONNECTIONS = 32
DATABASE_SECONDS = 3.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}

Response = tuple[int, str, bytes]

_log = log.logger(__name__)


async def run(state: State) -> None:
    settings = state.settings
    try:
        listener = await anyio.create_tcp_listener(
            local_host=settings.http_host, local_port=settings.http_port, reuse_port=False
        )
    except OSError as error:
        raise InvalidSettingsError(
            f"http cannot listen on {settings.http_host}:{settings.http_port}: {error.strerror or error}",
            "set DATAFLOW_HTTP_PORT to a free port, or to 0 for none",
        ) from None
    places = anyio.Semaphore(CONNECTIONS)

    async def serve(stream: SocketStream) -> None:
        async with stream, places:
            with anyio.move_on_after(REQUEST_SECONDS):
                await _serve(state, stream)

    async with listener:
        _log.info("http.listening", host=settings.http_host, port=settings.http_port)
        await listener.serve(serve)


async def _serve(state: State, stream: SocketStream) -> None:
    try:
        head = await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", REQUEST_BYTES)
        status, kind, body = await respond(state, head)
    except anyio.DelimiterNotFound:
        status, kind, body = 400, TEXT, b"too long\n"
    except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return
    lines = [
        f"HTTP/1.1 {status} {REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    try:
        await stream.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await stream.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        return


async def respond(state: State, head: bytes) -> Response:
    words = head.split(b"\r\n", 1)[0].split()
    if len(head) > REQUEST_BYTES or len(words) != 3 or not words[2].startswith(b"HTTP/1."):  # noqa: PLR2004 - method, path, version
        return 400, TEXT, b"not a short request in HTTP/1\n"
    if words[0] != b"GET":
        return 405, TEXT, b"only GET\n"
    match words[1].split(b"?")[0]:
        case b"/health/live":
            return 200, JSON, _json(health(state))
        case b"/health/ready" | b"/health":
            found = health(state)
            return (200 if found["ready"] else 503), JSON, _json(found)
        case b"/metrics":
            return 200, TEXT, await _metrics(state)
    return 404, TEXT, b"there are /health/live, /health/ready and /metrics\n"


def health(state: State) -> dict[str, object]:
    database_up = state.claims.link.is_up
    return {
        "ready": database_up and state.listener != "connecting" and not state.draining,
        "daemon": state.name,
        "version": __version__,
        "database": "up" if database_up else "down",
        "listener": state.listener,
        "running": len(state.running),
        "limit": state.limit,
        "paused": state.paused,
        "draining": state.draining,
        "lease_seconds": round(state.lease_proven - time.monotonic(), 1),
    }


async def _metrics(state: State) -> bytes:
    try:
        with anyio.fail_after(DATABASE_SECONDS):
            jobs = await calls.status(state.link)
    except (psycopg.Error, LostLinkError, TimeoutError):
        jobs = []
    return state.metrics.expose(state, time.monotonic(), jobs)


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
