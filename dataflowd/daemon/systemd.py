"""Speaks with systemd: ready, reloading, stopping, status, and alive. Without systemd all of it is silent.

The watchdog is not fed by a timer. Each time the scheduler is woken and asked for a turn, and only a turn that was made
feeds it: a loop that hangs, or a database call that does not return, is a reason to be restarted.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from dataflowd.daemon.state import State

FEEDS_PER_TIMEOUT = 3
STATUS_SECONDS = 5.0
MICROSECONDS = 1_000_000
NANOSECONDS_PER_MICROSECOND = 1000


def notify(**fields: str | int) -> None:
    """sd_notify(3) in a few lines."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    message = "\n".join(f"{name}={value}" for name, value in fields.items())
    # Nobody has to listen: a manager that went away is no reason to stop.
    with (
        suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_manager,
    ):
        to_manager.connect("\0" + address[1:] if address.startswith("@") else address)
        to_manager.send(message.encode())


def notify_reloading() -> None:
    notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // NANOSECONDS_PER_MICROSECOND)


def watchdog_seconds() -> float | None:
    """How often systemd wants to hear of us; None: it does not watch this process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / MICROSECONDS if microseconds.isdigit() and int(microseconds) else None


def status(state: State) -> str:
    doing = "draining, " if state.draining else "paused, " if state.paused else ""
    return f"{doing}running {len(state.running)} of {state.limit}, queued {state.queued}, {state.listener}"


async def run(state: State) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_report, state)
        seconds = watchdog_seconds()
        if seconds is not None:
            group.start_soon(_feed, state, seconds / FEEDS_PER_TIMEOUT)


async def _report(state: State) -> None:
    while True:
        notify(STATUS=status(state))
        await anyio.sleep(STATUS_SECONDS)


async def _feed(state: State, seconds: float) -> None:
    while True:
        turns = state.turns
        while state.turns == turns:
            state.turned.clear()
            state.work.set()
            await state.turned.wait()
        notify(WATCHDOG=1)
        await anyio.sleep(seconds)
