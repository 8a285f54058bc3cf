"""Commits a row again and again over a wire of its own, as a daemon does to renew its lease.

No fault affects this wire, and no other session locks this row. If such a commit takes long, the machine is overloaded, and a
daemon that could not renew its lease then is excused. While the server is down, the pulse pauses: that fault excuses the
daemons already.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing

import psycopg

from tests.fix_proxy import Relay

BEAT_SECONDS = 0.25
LATE_SECONDS = 1.0
CONNECT_SECONDS = 5

TABLE = "CREATE TABLE IF NOT EXISTS public.pulse (beat bigint NOT NULL)"
FIRST = "INSERT INTO public.pulse SELECT 0 WHERE NOT EXISTS (SELECT FROM public.pulse)"
BEAT = "UPDATE public.pulse SET beat = beat + 1"


class Pulse:
    def __init__(self, dsn: str) -> None:
        self.late: list[tuple[float, float]] = []  # start and end of each slow commit
        self._stop = threading.Event()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute(FIRST)
        self._thread = threading.Thread(target=self._run, args=(dsn,))
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self, dsn: str) -> None:
        with closing(Relay(dsn)) as wire:
            while not self._stop.is_set():
                try:
                    with psycopg.connect(
                        wire.dsn, autocommit=True, connect_timeout=CONNECT_SECONDS, application_name="pulse"
                    ) as connection:
                        self._beat(connection)
                except psycopg.Error:
                    self._stop.wait(BEAT_SECONDS)

    def _beat(self, connection: psycopg.Connection) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            began = time.time()
            connection.execute(BEAT)
            if time.time() - began > LATE_SECONDS:
                self.late.append((began, time.time()))
