"""The hand: injects the faults of the schedule, and later repairs what a person or a supervisor would repair.

Each kind of fault is a method that takes the step and returns whether it found a target. A fault that must be undone (a
frozen process, a silent wire, a full disk, a chunk on hold) is noted with the time of its repair.
"""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg

from tests import processes
from tests.chaos import stage as stages
from tests.chaos.keepers import Keepers
from tests.chaos.operators import GLOBAL_LIMIT, Operators
from tests.chaos.sessions import Sessions
from tests.chaos.stage import LEASE_SECONDS, Daemon, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.schedule import Step

LOOK_SECONDS = 1.0  # to find a process as a target
BALLAST_BYTES = (1 << 20, 1 << 12)  # fill the disk with large pieces first, then with small ones
CLOCK_JUMPS = ("+3600", "-3600", "+86400", "-120", "+30", "+7")


class Hand(Operators, Keepers, Sessions):
    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.done: Counter[str] = Counter()
        self.without_target: Counter[str] = Counter()
        self.unanswered: Counter[str] = Counter()
        self.is_server_down = False
        self._is_server_back: Callable[[], None] = lambda: None
        self._journal = stage.directory / "hand.log"
        self._undo: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._disturbed: set[str] = set()
        self._frozen: set[int] = set()

    # --- timing ---

    def do(self, step: Step) -> None:
        began = datetime.now(UTC)
        try:
            how = "done" if getattr(self, step.kind)(step) else "no target"
        except psycopg.ProgrammingError:
            raise  # a mistake of the harness
        except (psycopg.Error, OSError):  # the server is down, or the disk is full
            how = "unanswered"
        counts = {"done": self.done, "no target": self.without_target, "unanswered": self.unanswered}
        counts[how][step.kind] += 1
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.write(f"{began.isoformat()} {step} {how}\n")

    def undo_what_is_due(self) -> None:
        while self._undo and self._undo[0][0] <= time.monotonic():
            _, _, action = heapq.heappop(self._undo)
            try:
                action()
            except psycopg.Error:
                self.later(1.0, action)

    def mend(self) -> None:
        """Ends all faults: repairs everything, and sets the limits back."""
        if self.is_server_down:
            self._start_server()
        deadline = time.monotonic() + stages.END_SECONDS
        while self._undo:
            due, number, action = heapq.heappop(self._undo)
            try:
                action()
            except psycopg.Error:
                if time.monotonic() > deadline:
                    raise
                heapq.heappush(self._undo, (due, number, action))
                time.sleep(stages.POLL_SECONDS)
        for daemon in self.stage.daemons:
            daemon.wire.resume()
        self.await_programs()
        for branch in self.stage.branches:
            self.stage.reload(branch)
        self.stage.rows("UPDATE dataflow.control SET paused = false WHERE paused")
        self.stage.between_claims("UPDATE dataflow.control SET concurrency = NULL WHERE scope <> 'global'")
        self.stage.between_claims("SELECT dataflow.set_concurrency('global', %s)", GLOBAL_LIMIT)
        self.stage.rows(
            "SELECT dataflow.release(datasetid, dataid) FROM dataflow.datastatus"
            " WHERE locktype = 'OUT' AND status IN ('HOLD', 'PENDING')"
        )
        self.vouch_for_all()

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._undo, (time.monotonic() + seconds, next(self._order), action))

    # --- daemons and runners ---

    def _daemon(self, step: Step) -> Daemon | None:
        spared = "spark" if step.spares_spark else ""
        alive = [
            daemon
            for daemon in self.stage.daemons
            if daemon.process is not None and not daemon.is_frozen and daemon.branch.engine != spared
        ]
        return step.choose(alive) if alive else None

    def daemon_kill(self, step: Step) -> bool:
        daemon = self._daemon(step)
        if daemon is None:
            return False
        daemon.down_until = time.monotonic() + step.between(0, 8)
        return daemon.signal(signal.SIGKILL)

    def daemon_restart(self, step: Step) -> bool:
        """Stops a daemon as systemd does; sometimes with a second signal, as an impatient person."""
        daemon = self._daemon(step)
        if daemon is None or not daemon.signal(signal.SIGTERM):
            return False
        if step.picks[2] < 0.3:
            self.later(0.5, lambda: daemon.signal(signal.SIGTERM))
        return True

    def daemon_freeze(self, step: Step) -> bool:
        return self._freeze(self._daemon(step), step.between(0.5, LEASE_SECONDS * 1.5))

    def daemon_zombie(self, step: Step) -> bool:
        """Freezes a daemon for longer than its lease, and ends its sessions: when it wakes, other daemons have its runs."""
        daemon = self._daemon(step)
        if daemon is None or not self._freeze(daemon, daemon.lease * step.between(1.2, 2.5)):
            return False
        daemon.wire.reset()
        return True

    def _freeze(self, daemon: Daemon | None, seconds: float) -> bool:
        if daemon is None or not daemon.signal(signal.SIGSTOP):
            return False
        frozen = daemon.process
        daemon.is_frozen = True
        is_over = daemon.disturbed(seconds)

        def thaw() -> None:
            is_over()
            if daemon.process is frozen:
                daemon.signal(signal.SIGCONT)
                daemon.is_frozen = False

        self.later(seconds, thaw)
        return True

    def _runner(self, step: Step, engines: tuple[str, ...] = ()) -> int | None:
        engines = engines or (("process",) if step.spares_spark else ("process", "spark"))
        deadline = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < deadline:
            found = [
                pid
                for daemon in self.stage.daemons
                if daemon.branch.engine in engines
                for pid in daemon.children()
            ]
            if found:
                return step.choose(found)
            time.sleep(stages.POLL_SECONDS)
        return None

    def runner_kill(self, step: Step) -> bool:
        """Kills a runner: the leader of the session alone, or the whole session."""
        leader = self._runner(step)
        if leader is None:
            return False
        for pid in [leader] if step.picks[1] < 0.5 else processes.in_session(leader):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True

    def jvm_kill(self, step: Step) -> bool:
        leader = self._runner(step, ("spark",))
        found = (
            [pid for pid in processes.in_session(leader) if "java" in processes.command(pid)]
            if leader
            else []
        )
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def runner_freeze(self, step: Step) -> bool:
        leader = self._runner(step)
        if leader is None or leader in self._frozen:
            return False
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGSTOP)
        self._frozen.add(leader)

        def thaw() -> None:
            self._frozen.discard(leader)
            # Another process may have the pid now; its session tells.
            if processes.in_session(leader):
                with suppress(ProcessLookupError):
                    os.killpg(leader, signal.SIGCONT)

        self.later(step.between(0.5, LEASE_SECONDS * 1.5), thaw)
        return True

    # --- the server ---

    def server_fast(self, step: Step) -> bool:
        return self._stop_server(signal.SIGINT, step)

    def server_immediate(self, step: Step) -> bool:
        return self._stop_server(signal.SIGQUIT, step)

    def server_kill(self, step: Step) -> bool:
        return self._stop_server(signal.SIGKILL, step)

    def _stop_server(self, number: signal.Signals, step: Step) -> bool:
        if self.is_server_down or not self.stage.stop_server(number):
            return False
        self.is_server_down = True
        seconds = step.between(0, LEASE_SECONDS)
        self._is_server_back = self.stage.disturbed(seconds)
        self.later(seconds, self._start_server)
        return True

    def _start_server(self) -> None:
        if self.is_server_down:
            self.stage.start_server()
            self.is_server_down = False
            self._is_server_back()

    def session_terminate(self, step: Step) -> bool:
        found = self.stage.rows(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'dataflowd %' ORDER BY application_name, pid"
        )
        if not found:
            return False
        [pid] = step.choose(found)
        self.stage.disturbed()
        return bool(self.stage.value("SELECT pg_terminate_backend(%s)", pid))

    # --- wires ---

    def _disturb(self, step: Step, disturb: Callable[[Daemon], None], seconds: float) -> bool:
        daemon = step.choose(self.stage.daemons)
        if daemon.name in self._disturbed:
            return False
        disturb(daemon)
        is_over = daemon.disturbed(seconds)
        self._disturbed.add(daemon.name)

        def resume() -> None:
            daemon.wire.resume()
            is_over()
            self._disturbed.discard(daemon.name)

        self.later(seconds, resume)
        return True

    def wire_blackhole(self, step: Step) -> bool:
        return self._disturb(step, lambda d: d.wire.blackhole(), step.between(0.5, LEASE_SECONDS * 1.5))

    def wire_refuse(self, step: Step) -> bool:
        return self._disturb(step, lambda d: d.wire.refuse(), step.between(0.5, LEASE_SECONDS * 1.5))

    def wire_delay(self, step: Step) -> bool:
        seconds = step.between(0.05, 0.8, 2)
        return self._disturb(step, lambda d: d.wire.delay(seconds), step.between(1, 8))

    def wire_deaf(self, step: Step) -> bool:
        return self._disturb(step, lambda d: d.wire.deafen(), step.between(1, 8))

    def wire_reset(self, step: Step) -> bool:
        daemon = step.choose(self.stage.daemons)
        daemon.disturbed()
        daemon.wire.reset()
        return True

    # --- the host ---

    def disk_full(self, step: Step) -> bool:
        ballast = self.stage.data / "ballast"
        if not self.stage.has_small_disk or ballast.exists():
            return False
        with ballast.open("wb") as file:
            for piece in BALLAST_BYTES:
                with suppress(OSError):
                    for start in itertools.count(os.fstat(file.fileno()).st_size, piece):
                        os.posix_fallocate(file.fileno(), start, piece)
        self.later(step.between(1, 6), lambda: ballast.unlink(missing_ok=True))
        return True

    def clock_jump(self, step: Step) -> bool:
        [*faked] = [daemon for daemon in self.stage.daemons if daemon.clock is not None]
        if not faked:
            return False
        daemon = step.choose(faked)
        assert daemon.clock is not None
        clock = daemon.clock
        clock.write_text(step.choose(CLOCK_JUMPS, 2), encoding="ascii")
        self.later(step.between(2, 15), lambda: clock.write_text("+0", encoding="ascii"))
        return True
