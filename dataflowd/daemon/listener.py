"""Hears notifications on a connection of its own. A notification is a hint: it wakes a service, which then looks.

The channel `dataflow` carries `work`, `control` and `cancel`; each wakes the service concerned. After every connect the
listener wakes all three, because it may have missed notifications. A socket may be half open, and a pooler may swallow
LISTEN. So the listener notifies itself every ECHO_EVERY_SECONDS:
- No answer within ANSWER_SECONDS means that the connection is dead. The listener makes another one, with capped backoff.
- An answer without the echo means that notifications do not arrive. The daemon relies on its poll, and says so in the log
  and in /health. The listener repeats LISTEN each time, because a pooler may have given it another session. The first echo
  ends this state.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import anyio
import psycopg

from dataflowd.database import db
from dataflowd.database import session as links
from dataflowd.host import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataflowd.daemon.state import State

# The listener finds a dead socket within ECHO_EVERY + ANSWER seconds; the documentation promises 15.
ECHO_EVERY_SECONDS = 5.0
ANSWER_SECONDS = 5.0
ECHO = "echo "

_log = log.logger(__name__)


class ListenerState(StrEnum):
    CONNECTING = "connecting"
    LISTENING = "listening"
    POLLING = "polling"


@dataclass(eq=False)
class Hearing:
    state: ListenerState = ListenerState.CONNECTING


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
            _say(state, ListenerState.CONNECTING, error=str(error).strip() or "no answer")
            # The same fault may have cut the other connections, which are idle and do not notice it.
            state.claims.link.suspect()
            state.link.suspect()
            state.lease.wake.set()
            state.limits.wake.set()
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
            _say(state, ListenerState.POLLING, poll=state.settings.poll)
            await _ask_for_notices(connection)


async def _ask_for_notices(connection: psycopg.AsyncConnection[links.Row]) -> None:
    with anyio.fail_after(ANSWER_SECONDS):
        await connection.execute(db.query("daemon_listen"))


def _hears(state: State) -> None:
    if state.hearing.state is ListenerState.POLLING:
        wake_all(state)
    _say(state, ListenerState.LISTENING)


def wake(state: State, payload: str) -> None:
    match payload:
        case "work":
            state.turns.wake.set()
        case "control":
            state.limits.wake.set()
            state.turns.wake.set()  # somebody may have resumed a job, which changes no limit of the daemon
        case "cancel":
            state.watch.wake.set()


def wake_all(state: State) -> None:
    for owned in (state.turns, state.limits, state.watch):
        owned.wake.set()


def _say(state: State, now: ListenerState, **details: object) -> None:
    if state.hearing.state is now:
        return
    state.hearing.state = now
    if now is ListenerState.LISTENING:
        _log.info("listener.listening")
    else:
        _log.warning(f"listener.{now}", **details)
