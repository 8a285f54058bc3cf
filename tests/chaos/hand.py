"""The hand: does to the stage what the schedule says, and puts right later what a person or a supervisor would.

Each kind of fault is a method that takes the step and says whether it found a target. What has to be undone (a frozen
process, a silent wire, a full disk, a chunk on hold) is noted with its time. Operators' statements go through SQL, some
through dataflowctl as a process; a statement that fails because the server is away has had no effect, or has had its
effect without an answer, and nobody relies on it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg

from dataflowd.errors import DataflowError
from tests.chaos import stage as stages
from tests.chaos.pipeline import COLUMNS
from tests.chaos.stage import LEASE_SECONDS, Daemon, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.pipeline import Branch
    from tests.chaos.schedule import Step

RECENT = 120  # chunks among which an operator chooses
LOOK_SECONDS = 1.0  # for a process that may be hit
PROGRAMS_AT_ONCE = 2
GLOBAL_LIMIT = 10
BALLAST_BYTES = 65536
CLOCK_JUMPS = ("+3600", "-3600", "+86400", "-120", "+30", "+7")

RUNNING = "SELECT jobid, dataid FROM dataflow.attempt WHERE ended IS NULL ORDER BY attempt"
RESUBMIT = """
    UPDATE dataflow.datastatus SET status = 'RESUBMIT'
    WHERE datasetid = %s AND dataid = ANY (%s::text[]) AND locktype = 'OUT'
    RETURNING datasetid, dataid, old.status
"""


class Hand:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.done: Counter[str] = Counter()
        self.without_target: Counter[str] = Counter()
        self.unanswered: Counter[str] = Counter()
        self.acknowledged: Counter[tuple[str, str]] = Counter()  # RESUBMIT by hand, confirmed by the server
        self.is_server_down = False
        self._undo: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._disturbed: set[str] = set()
        self._frozen: set[int] = set()

    # --- in time ---

    def do(self, step: Step) -> None:
        try:
            found = getattr(self, step.kind)(step)
        except psycopg.Error:
            self.unanswered[step.kind] += 1
            return
        if found:
            self.done[step.kind] += 1
        else:
            self.without_target[step.kind] += 1

    def undo_what_is_due(self) -> None:
        while self._undo and self._undo[0][0] <= time.monotonic():
            _, _, action = heapq.heappop(self._undo)
            try:
                action()
            except psycopg.Error:
                self._later(1.0, action)

    def mend(self) -> None:
        """Faults are over: everything is put right, and the limits are wide again."""
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
        self.stage.rows("UPDATE dataflow.control SET paused = false WHERE paused")
        self.stage.between_claims("UPDATE dataflow.control SET concurrency = NULL WHERE scope <> 'global'")
        self.stage.between_claims("SELECT dataflow.set_concurrency('global', %s)", GLOBAL_LIMIT)
        self.stage.rows(
            "SELECT dataflow.release(datasetid, dataid) FROM dataflow.datastatus"
            " WHERE locktype = 'OUT' AND status IN ('HOLD', 'PENDING')"
        )

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._undo, (time.monotonic() + seconds, next(self._order), action))

    # --- daemons and runners ---

    def _daemon(self, step: Step) -> Daemon | None:
        alive = [
            daemon for daemon in self.stage.daemons if daemon.process is not None and not daemon.is_frozen
        ]
        return step.choose(alive) if alive else None

    def daemon_kill(self, step: Step) -> bool:
        daemon = self._daemon(step)
        if daemon is None:
            return False
        daemon.down_until = time.monotonic() + step.between(0, 8)
        return daemon.signal(signal.SIGKILL)

    def daemon_restart(self, step: Step) -> bool:
        """As systemd stops it; now and then by somebody in a hurry."""
        daemon = self._daemon(step)
        if daemon is None or not daemon.signal(signal.SIGTERM):
            return False
        if step.picks[2] < 0.3:
            self._later(0.5, lambda: daemon.signal(signal.SIGTERM))
        return True

    def daemon_freeze(self, step: Step) -> bool:
        return self._freeze(self._daemon(step), step.between(0.5, LEASE_SECONDS * 1.5))

    def daemon_zombie(self, step: Step) -> bool:
        """Longer than its lease, and its sessions die meanwhile: when it wakes, others have its runs."""
        daemon = self._daemon(step)
        if not self._freeze(daemon, LEASE_SECONDS * step.between(1.2, 2.5)):
            return False
        assert daemon is not None
        daemon.wire.reset()
        return True

    def _freeze(self, daemon: Daemon | None, seconds: float) -> bool:
        if daemon is None or not daemon.signal(signal.SIGSTOP):
            return False
        frozen = daemon.process
        daemon.is_frozen = True

        def thaw() -> None:
            if daemon.process is frozen:
                daemon.signal(signal.SIGCONT)
                daemon.is_frozen = False

        self._later(seconds, thaw)
        return True

    def _runner(self, step: Step, engines: tuple[str, ...] = ("process", "spark")) -> int | None:
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
        """The leader alone, or all of its session."""
        leader = self._runner(step)
        if leader is None:
            return False
        for pid in [leader] if step.picks[1] < 0.5 else stages.in_session(leader):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True

    def jvm_kill(self, step: Step) -> bool:
        leader = self._runner(step, ("spark",))
        found = [pid for pid in stages.in_session(leader) if "java" in stages.command(pid)] if leader else []
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
            # The number may be another's by now; its session tells.
            if stages.in_session(leader):
                with suppress(ProcessLookupError):
                    os.killpg(leader, signal.SIGCONT)

        self._later(step.between(0.5, LEASE_SECONDS * 1.5), thaw)
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
        self._later(step.between(0, LEASE_SECONDS), self._start_server)
        return True

    def _start_server(self) -> None:
        if self.is_server_down:
            self.stage.start_server()
            self.is_server_down = False

    def session_terminate(self, step: Step) -> bool:
        found = self.stage.rows(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'dataflowd %' ORDER BY application_name, pid"
        )
        if not found:
            return False
        [pid] = step.choose(found)
        return bool(self.stage.value("SELECT pg_terminate_backend(%s)", pid))

    # --- wires ---

    def _disturb(self, step: Step, disturb: Callable[[Daemon], None], seconds: float) -> bool:
        daemon = step.choose(self.stage.daemons)
        if daemon.name in self._disturbed:
            return False
        disturb(daemon)
        self._disturbed.add(daemon.name)

        def resume() -> None:
            daemon.wire.resume()
            self._disturbed.discard(daemon.name)

        self._later(seconds, resume)
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
        step.choose(self.stage.daemons).wire.reset()
        return True

    # --- the host ---

    def disk_full(self, step: Step) -> bool:
        ballast = self.stage.data / "ballast"
        if not self.stage.has_small_disk or ballast.exists():
            return False
        with ballast.open("wb") as file, suppress(OSError):
            for start in itertools.count(0, BALLAST_BYTES):  # others write meanwhile
                os.posix_fallocate(file.fileno(), start, BALLAST_BYTES)
        self._later(step.between(1, 6), lambda: ballast.unlink(missing_ok=True))
        return True

    def clock_jump(self, step: Step) -> bool:
        [*faked] = [daemon for daemon in self.stage.daemons if daemon.clock is not None]
        if not faked:
            return False
        daemon = step.choose(faked)
        assert daemon.clock is not None
        clock = daemon.clock
        clock.write_text(step.choose(CLOCK_JUMPS, 2), encoding="ascii")
        self._later(step.between(2, 15), lambda: clock.write_text("+0", encoding="ascii"))
        return True

    # --- operators ---

    def _branch(self, step: Step, pick: int = 2) -> Branch:
        return step.choose(self.stage.branches, pick)

    def _chunk(self, step: Step) -> tuple[str, int]:
        """A recent one, of any dataset of any flow, whether it is there or not."""
        branch = self._branch(step)
        name = step.choose([name for name in COLUMNS if name != "raw"])
        fed = branch.fed // 5 if name == "total" else branch.fed
        return f"{branch.prefix}_{name}", max(0, fed - 1 - int(step.picks[1] * min(fed, RECENT)))

    def concurrency(self, step: Step) -> bool:
        """Between claims, so that history is exact; now and then at any moment, and what is too much is cancelled."""
        jobs = [f"job:{job}" for branch in self.stage.branches for job in branch.jobs]
        scopes = ["global", *jobs, *(f"daemon:{daemon.name}" for daemon in self.stage.daemons)]
        scope = step.choose(scopes) if step.picks[2] < 0.5 else "global"
        value = step.whole(1, GLOBAL_LIMIT * 2 if scope == "global" else 6)
        if step.picks[3] < 0.2:
            self.stage.between_claims("SELECT * FROM dataflow.shed(%s, %s)", scope, value)
        else:
            self.stage.between_claims("SELECT dataflow.set_concurrency(%s, %s)", scope, value)
        if scope != "global":
            self._later(step.between(5, 30), lambda: self._unlimit(scope))
        return True

    def _unlimit(self, scope: str) -> None:
        self.stage.between_claims("SELECT dataflow.set_concurrency(%s, NULL)", scope)

    def pause(self, step: Step) -> bool:
        scopes = ["global", *(f"job:{job}" for branch in self.stage.branches for job in branch.jobs)]
        scope = step.choose(scopes)
        self.stage.between_claims("SELECT dataflow.pause(%s)", scope)
        self._later(step.between(0.5, 5), lambda: self.stage.rows("SELECT dataflow.pause(%s, false)", scope))
        return True

    def hold(self, step: Step) -> bool:
        dataset, number = self._chunk(step)
        self.stage.rows("SELECT dataflow.hold(%s, %s, 'chaos')", dataset, str(number))
        self._later(step.between(0.5, 6), lambda: self._release(dataset, str(number)))
        return True

    def _release(self, dataset: str, dataid: str) -> None:
        with suppress(psycopg.errors.RaiseException, psycopg.errors.InternalError):
            self.stage.rows(
                "SELECT dataflow.release(datasetid, dataid) FROM dataflow.datastatus"
                " WHERE datasetid = %s AND dataid = %s AND locktype = 'OUT' AND held_from IS NOT NULL",
                *(dataset, dataid),
            )

    def resubmit(self, step: Step) -> bool:
        dataset, number = self._chunk(step)
        selector = psycopg.types.json.Jsonb({"dataset": dataset, "dataid": str(number)})
        return bool(self.stage.rows("SELECT * FROM dataflow.resubmit(%s, %s)", selector, step.picks[3] < 0.5))

    def cancel(self, step: Step) -> bool:
        running = self.stage.rows(RUNNING)
        if not running:
            return False
        return bool(self.stage.value("SELECT dataflow.cancel(%s, %s)", *step.choose(running)))

    def sql_update(self, step: Step) -> bool:
        """In the middle of everything: chunks that are READY, FAILED, or being written at this moment."""
        dataset, number = self._chunk(step)
        dataids = [str(number + more) for more in range(step.whole(1, 5, 3))]
        if step.picks[3] < 0.5 and (running := self.stage.rows(RUNNING)):
            jobid, dataid = step.choose(running)
            [[dataset]] = self.stage.rows(
                "SELECT datasetid FROM dataflow.job_output WHERE jobid = %s ORDER BY datasetid LIMIT 1", jobid
            )
            dataids = [dataid]
        return self._note(self.stage.rows(RESUBMIT, dataset, dataids))

    def _note(self, changed: list[tuple[Any, ...]]) -> bool:
        for dataset, dataid, was in changed:
            if was != "RESUBMIT":
                self.acknowledged[dataset, dataid] += 1
        return bool(changed)

    def open_transaction(self, step: Step) -> bool:
        """An operator who types UPDATE in a transaction, and thinks for a while before he ends it."""
        dataset, number = self._chunk(step)
        connection = self.stage.connect()
        connection.autocommit = False
        try:
            changed = connection.execute(RESUBMIT, [dataset, [str(number), str(number + 1)]]).fetchall()
        except psycopg.Error:
            connection.close()
            raise
        is_kept = step.picks[3] < 0.6

        def end() -> None:
            with suppress(psycopg.Error), connection:
                if is_kept:
                    connection.commit()
                    self._note(changed)
                else:
                    connection.rollback()

        self._later(step.between(0.3, 4, 2), end)
        return True

    def new_code(self, step: Step) -> bool:
        """A new version is applied, and some daemons hear of it at once; others go on with the old one for a while."""
        branch = self._branch(step)
        branch.write_next_version()
        if step.picks[3] < 0.4:
            self._program("apply", str(branch.flow))
        else:
            with suppress(DataflowError):
                self.stage.apply(branch)
        for place, daemon in enumerate(each for each in self.stage.daemons if each.branch is branch):
            if step.picks[place % 2] < 0.7:
                daemon.signal(signal.SIGHUP)
        return True

    def operator_program(self, step: Step) -> bool:
        dataset, number = self._chunk(step)
        job = step.choose(self._branch(step).jobs)
        programs = [
            ("status",),
            ("resubmit", job, "--yes"),
            ("resubmit", job, "--stale", "--dataid", str(number), "--downstream", "--yes"),
            ("hold", "--dataset", dataset, "--dataid", str(number), "--reason", "chaos", "--yes"),
            ("cancel", job, "--dataid", str(number), "--yes"),
            ("concurrency", str(step.whole(2, GLOBAL_LIMIT, 1)), "--yes"),
            ("why", job, str(number)),
            ("gc", "--grace", "5s", "--yes"),
        ]
        chosen = step.choose(programs, 3)
        if not self._program(*chosen):
            return False
        if chosen[0] == "hold":
            self._later(step.between(4, 8), lambda: self._release(dataset, str(number)))
        return True

    def _program(self, *arguments: str) -> bool:
        alive = [process for _, process in self.stage.commands if process.poll() is None]
        if len(alive) >= PROGRAMS_AT_ONCE:
            return False
        self.stage.ctl(*arguments)
        return True

    def await_programs(self) -> list[str]:
        """Those that do not end."""
        stuck = []
        for words, process in self.stage.commands:
            try:
                process.wait(stages.END_SECONDS)
            except subprocess.TimeoutExpired:
                stuck.append(f"dataflowctl {' '.join(words)} does not end")
        return stuck
