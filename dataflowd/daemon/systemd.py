"""Tells systemd that the daemon is ready, reloads, stops, what it does, and that it is alive. Does nothing without systemd.

No timer feeds the watchdog. The service wakes the scheduler, and feeds the watchdog when the scheduler has made a turn. So
systemd restarts a daemon whose event loop hangs, or whose database call does not return.
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
    """Sends what sd_notify(3) sends."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    message = "\n".join(f"{name}={value}" for name, value in fields.items())
    # A service manager that is gone is no reason to stop.
    with (
        suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_manager,
    ):
        to_manager.connect("\0" + address[1:] if address.startswith("@") else address)
        to_manager.send(message.encode())


def notify_reloading() -> None:
    notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // NANOSECONDS_PER_MICROSECOND)


def watchdog_seconds() -> float | None:
    """Within how many seconds systemd expects a sign of life. None: it does not watch this process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / MICROSECONDS if microseconds.isdigit() and int(microseconds) else None


def status(state: State) -> str:
    limits, running = state.limits, len(state.attempts.running)
    doing = "draining, " if state.ending.is_stopping else "paused, " if limits.paused else ""
    return f"{doing}running {running} of {limits.limit}, queued {limits.queued}, {state.hearing.state}"


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
        made = state.turns.made
        while state.turns.made == made:
            state.turns.ended.clear()
            state.turns.wake.set()
            await state.turns.ended.wait()
        notify(WATCHDOG=1)
        await anyio.sleep(seconds)
