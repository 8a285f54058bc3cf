"""Hears notifications on a connection of its own. A notification is a hint: it says look, never what to do.

Channel `dataflow` carries `work`, `control` and `cancel`; each sets the flag of the service concerned. Whatever was said
while nobody listened is made up for by setting all flags after every (re)connect. A socket may be half open, and a
pooler may swallow LISTEN: every few seconds the listener notifies itself and expects to hear it. No answer at all
within bounds means that the connection is dead, and another is made, with capped backoff; an answer but no echo means
that notifications do not arrive here, and the daemon is on polling, which it says in its log and in /health. It says
LISTEN again each time, for a pooler may have given it another session; the first echo ends the polling.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import psycopg

from dataflowd.database import db
from dataflowd.database import session as links
from dataflowd.host import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataflowd.daemon.state import ListenerState, State

# A dead socket is found within ECHO_EVERY + ANSWER seconds, which is less than the 15 that are promised.
ECHO_EVERY_SECONDS = 5.0
ANSWER_SECONDS = 5.0
ECHO = "echo "

_log = log.logger(__name__)


async def run(state: State, address: Callable[[], str]) -> None:
    failures = 0
    while True:
        try:
            connection = await links.connect(
                state.settings, address, f"dataflowd {state.name} listener", seconds=ANSWER_SECONDS
            )
            try:
                await _ask_for_notices(connection)
                failures = 0
                await _listen(state, connection)
            finally:
                connection.pgconn.finish()
                await connection.close()
        except (psycopg.Error, TimeoutError) as error:
            _say(state, "connecting", error=str(error).strip() or "no answer")
            # What has cut this connection may have cut the others, which are idle and do not notice.
            state.claims.link.suspect()
            state.link.suspect()
            state.lease.set()
            state.control.set()
            await anyio.sleep(links.backoff(failures))
            failures += 1


async def _listen(state: State, connection: psycopg.AsyncConnection[links.Row]) -> None:
    own = f"{ECHO}{state.claims.incarnation}"
    wake_all(state)
    while True:
        with anyio.fail_after(ANSWER_SECONDS):
            await connection.execute(db.query("daemon_echo"), {"payload": own})
        asked, heard = time.monotonic(), False
        while (left := asked + ECHO_EVERY_SECONDS - time.monotonic()) > 0:
            async for notice in connection.notifies(timeout=left, stop_after=1):
                if notice.payload == own:
                    heard = True
                    _hears(state)
                else:
                    wake(state, notice.payload)
        if not heard:
            _say(state, "polling", poll=state.settings.poll)
            await _ask_for_notices(connection)


async def _ask_for_notices(connection: psycopg.AsyncConnection[links.Row]) -> None:
    with anyio.fail_after(ANSWER_SECONDS):
        await connection.execute(db.query("daemon_listen"))


def _hears(state: State) -> None:
    if state.listener == "polling":
        wake_all(state)
    _say(state, "listening")


def wake(state: State, payload: str) -> None:
    match payload:
        case "work":
            state.work.set()
        case "control":
            state.control.set()
            state.work.set()  # a job may have been resumed, which no limit of the daemon tells
        case "cancel":
            state.cancel.set()


def wake_all(state: State) -> None:
    for flag in (state.work, state.control, state.cancel):
        flag.set()


def _say(state: State, now: ListenerState, **details: object) -> None:
    if state.listener == now:
        return
    state.listener = now
    if now == "listening":
        _log.info("listener.listening")
    else:
        _log.warning(f"listener.{now}", **details)
