"""Sessions of people: transactions that stay open, some longer than a lease, and settings that no program expects.

An open transaction holds rows, advisory locks and a snapshot. Daemons must go on with all other runs. When the transaction
ends, by COMMIT or ROLLBACK, no run that was evaluated meanwhile may be forgotten.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

from dataflowd import flow
from dataflowd.model.errors import DataflowError
from tests.chaos.actor import RESUBMIT, Actor, refusable
from tests.chaos.audit import EVIL
from tests.chaos.stage import LEASE_SECONDS, REGISTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.schedule import Step

    Opened = Callable[[bool], object]  # called when the transaction has ended; True: it was committed

HOSTILE: tuple[dict[str, str], ...] = (
    {"TimeZone": "Asia/Kolkata", "DateStyle": "SQL,DMY"},
    {"TimeZone": "America/St_Johns", "IntervalStyle": "sql_standard"},
    {"default_transaction_isolation": "repeatable read"},
    {"default_transaction_isolation": "serializable"},
    {"search_path": f"{EVIL},pg_catalog,public"},
    {"bytea_output": "escape", "extra_float_digits": "-15"},
    {
        "standard_conforming_strings": "off",
        "DateStyle": "German",
        "default_transaction_isolation": "repeatable read",
    },
)
LOCK_CHUNKS = (
    "SELECT FROM dataflow.datastatus WHERE datasetid = %s AND dataid = ANY (%s::pg_catalog.text[]) FOR UPDATE"
)
LOCK_ATTEMPT = "SELECT FROM dataflow.datastatus WHERE attempt = %s AND locktype = 'OUT' FOR UPDATE"
LOCK_DATASETS = "SELECT FROM dataflow.dataset WHERE datasetid = ANY (%s::pg_catalog.text[]) FOR UPDATE"
OWN_CHUNKS = (
    "SELECT datasetid FROM dataflow.datastatus WHERE attempt = %s AND locktype = 'OUT' ORDER BY datasetid"
)


class Sessions(Actor):
    def hostile_session(self, step: Step) -> bool:
        """Gives the sessions of operators hostile settings from now on, in SQL and for dataflowctl."""
        self.stage.set_session(step.choose(HOSTILE))
        self.later(step.between(4, 15), lambda: self.stage.set_session({}))
        return True

    def open_transaction(self, step: Step) -> bool:
        """An operator types UPDATE in a transaction, and waits for a while before ending it."""
        return self._open(step, self._resubmitting, step.between(0.3, 4, 2))

    def long_transaction(self, step: Step) -> bool:
        """Keeps a transaction open for longer than a lease. Daemons must keep their leases."""
        ways = (
            self._resubmitting,
            self._arriving,
            self._applying,
            self._holding,
            self._locking_chunks,
            self._locking_datasets,
        )
        return self._open(step, step.choose(ways, 1), LEASE_SECONDS * step.between(1.2, 2.5, 2))

    def dead_daemons_chunk(self, step: Step) -> bool:
        """Holds a chunk in an open transaction, and kills the daemon that runs it. No other daemon may wait for the transaction."""
        running = self._running(step)
        daemons = {daemon.name: daemon for daemon in self.stage.daemons}
        if running is None or running[3] not in daemons:
            return False
        _, dataid, attempt, name = running

        def take(connection: psycopg.Connection, _: Step) -> Opened:
            if step.picks[1] < 0.5:
                connection.execute(LOCK_ATTEMPT, [attempt])
                return lambda _: None
            found = connection.execute(OWN_CHUNKS, [attempt]).fetchall()
            changed = [
                row
                for [dataset] in found
                for row in connection.execute(RESUBMIT, [dataset, [dataid]]).fetchall()
            ]
            return lambda is_kept: is_kept and self._note(changed)

        if not self._open(step, take, LEASE_SECONDS * step.between(1.2, 2.5, 2)):
            return False
        daemon = daemons[name]
        daemon.down_until = time.monotonic() + step.between(0, 2 * LEASE_SECONDS, 0)
        return daemon.signal(signal.SIGKILL)

    def _open(
        self, step: Step, begin: Callable[[psycopg.Connection, Step], Opened | None], seconds: float
    ) -> bool:
        connection = self.stage.connect()
        connection.autocommit = False
        try:
            ended = begin(connection, step)
        except (psycopg.Error, DataflowError):
            connection.close()
            raise
        if ended is None:
            connection.close()
            return False
        is_kept = step.picks[3] < 0.6

        def end() -> None:
            is_committed = False
            with suppress(psycopg.Error), connection:
                if is_kept:
                    connection.commit()
                    is_committed = True
                else:
                    connection.rollback()
            ended(is_committed)

        self.later(seconds, end)
        return True

    # --- the first statements of such a transaction ---

    def _resubmitting(self, connection: psycopg.Connection, step: Step) -> Opened:
        dataset, dataids = self._chunks(step, self._branch(step), 2)
        changed = connection.execute(RESUBMIT, [dataset, dataids]).fetchall()
        return lambda is_kept: is_kept and self._note(changed)

    def _arriving(self, connection: psycopg.Connection, step: Step) -> Opened:
        """Registers chunks. After a rollback, or if the end is unknown, the next feed registers them."""
        branch = self._quick_branch(step)
        branch.arrive(1)
        brought = {dataset: list(dataids) for dataset, dataids in branch.unregistered.items()}
        branch.unregistered.clear()

        def ended(is_kept: bool) -> None:
            for dataset, dataids in brought.items() if not is_kept else ():
                branch.unregistered.setdefault(dataset, []).extend(dataids)

        try:
            for dataset, dataids in brought.items():
                connection.execute(REGISTER, [dataset, dataids, dataset, True])
        except psycopg.Error:
            ended(False)
            raise
        return ended

    def _applying(self, connection: psycopg.Connection, step: Step) -> Opened:
        branch = self._quick_branch(step)
        branch.write_next_version()
        with suppress(DataflowError):
            flow.apply(connection, flow.load(branch.flow, self.stage.settings()), prune=True)
        return lambda _: None

    def _holding(self, connection: psycopg.Connection, step: Step) -> Opened:
        dataset, dataid = self._chunk(step)
        with refusable():
            connection.execute("SELECT dataflow.hold(%s, %s, 'chaos')", [dataset, dataid])
        return lambda _: self.later(step.between(0.5, 4, 0), lambda: self._release(dataset, dataid))

    def _locking_chunks(self, connection: psycopg.Connection, step: Step) -> Opened:
        running = self._running(step)
        if running is not None and step.picks[0] < 0.5:
            connection.execute(LOCK_ATTEMPT, [running[2]])
        else:
            connection.execute(LOCK_CHUNKS, list(self._chunks(step, self._branch(step), 5)))
        return lambda _: None

    def _locking_datasets(self, connection: psycopg.Connection, step: Step) -> Opened:
        branch = self._quick_branch(step)
        names = [branch.raw, f"{branch.prefix}_clock", *branch.datasets]
        connection.execute(LOCK_DATASETS, [[step.choose(names, 0), step.choose(names, 1)]])
        return lambda _: None
