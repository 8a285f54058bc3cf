"""Which Spark application takes an attempt: warm runners, keyed by flow, its code and the job's Spark configuration.

A runner takes `slots` attempts side by side and `reuse` in all, then it is replaced; also when it is old, its heap is
full, it does not answer, or job code has left threads in it. `reuse = 1` is a real spark-submit for each attempt
(a client process of its own where the master is a Connect server). An attempt that finds no place in a runner of its key
gets a new one, so that as many attempts run as the limit says, up to `runners`, or without that number up to what
`max_runners` and the host's memory allow: another key's idle runner makes room, and otherwise the attempt waits, which the
daemon is told: people should not take it for one that runs. The daemon asks how many find a place (`room`), and claims no
more: another daemon may have one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from dataflowd.engine import Room, class_archive
from dataflowd.engine.owned_tasks import owned_tasks
from dataflowd.engine.runner import Runner
from dataflowd.flow import codehash
from dataflowd.flow.compose import environment, readable, references
from dataflowd.flow.graph import SCRIPTS
from dataflowd.host import log, memory
from dataflowd.host.embedded import java
from dataflowd.host.keyfile import KeySource
from dataflowd.runner import session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from anyio.abc import TaskGroup

    from dataflowd.flow import Flow, Job
    from dataflowd.flow.loaded import Declared
    from dataflowd.host.settings import Current, Settings
    from dataflowd.model.attempt import Attempt

PROBE_AFTER_SECONDS = 30.0
SWEEP_SECONDS = 5.0
IS_STARTING = 0  # what an attempt waits for whose own application starts

_log = log.logger(__name__)


class Told(Protocol):
    """Whom the runners tell; for the meaning see WarmEngine and SizedEngine."""

    on_runner: Callable[[str], None]
    on_wait: Callable[[int, int | None], None]
    on_room: Callable[[], None]


class Runners:
    def __init__(
        self,
        current: Current,
        declared: Declared,
        engine: Told,
    ) -> None:
        self._engine = engine
        self._current = current
        self._declared = declared
        self._told_runners: int | None = None
        self._told_slots: int | None = None
        self._stopping: set[Runner] = set()
        self._runners: list[Runner] = []
        self._submitted = 0
        self._changed = asyncio.Condition()
        self._java: java.Java | None = None
        self._is_learning = False
        self._bare_starts = 0
        self._tasks: TaskGroup  # of `opened`

    @property
    def _settings(self) -> Settings:
        return self._current.settings

    def all(self) -> list[Runner]:
        return list(self._runners)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Owns the tasks of all runners. At the end every runner is dead."""
        async with owned_tasks(self._stop_all) as self._tasks:
            self._tasks.start_soon(self._sweep_while_any)
            yield

    async def _stop_all(self) -> None:
        async with anyio.create_task_group() as group:
            for runner in self._runners:
                group.start_soon(runner.stop)
        self._runners.clear()

    async def retire(self) -> None:
        """Changed code has another key; what is idle with the old one goes now, the rest when it is."""
        for runner in list(self._runners):
            runner.is_retired = True
        self._java = None
        await self._sweep()

    @asynccontextmanager
    async def place_of_one(self, attempt: Attempt) -> AsyncIterator[None]:
        """For an application that a script submits, in the place of a runner: the host has memory for so many."""
        while not self._has_room:
            await self._make_room(attempt)
        self._engine.on_wait(attempt.attempt, None)
        self._submitted += 1
        try:
            yield
        finally:
            self._submitted -= 1
            with anyio.CancelScope(shield=True):
                await self._tell_changed()

    def room(self) -> Room:
        jobs = self._spark_jobs()
        inside = sum(self._places(runner) for runner in self._runners if runner not in self._stopping)
        free = max(0, self._most - len(self._runners) - self._submitted)
        # Nobody knows which job comes next: the least that a new application would take.
        least = min((self._size(job)[1] for job in jobs.values()), default=1)
        return Room(
            frozenset(jobs), inside + self._submitted + free * least, self._declared.likes_of(frozenset(jobs))
        )

    async def resize(self, runners: int | None, slots: int | None) -> None:
        if (runners, slots) == (self._told_runners, self._told_slots):
            return
        self._told_runners, self._told_slots = runners, slots
        _log.info(
            "runners.changed", runners=runners or "as the settings say", slots=slots or "as the settings say"
        )
        await self._sweep()
        await self._tell_changed()

    def _places(self, runner: Runner) -> int:
        """How many attempts can be in it at a time from now on, those that are in it among them."""
        if runner.is_retired or self._is_aged(runner):
            return runner.load
        return min(runner.slots, runner.load + runner.reuse - runner.served)

    def _is_aged(self, runner: Runner) -> bool:
        return time.monotonic() - runner.born >= self._settings.runner_age

    def _spark_jobs(self) -> dict[str, Job]:
        flows = self._declared.flows.values()
        return {name: job for flow in flows for name, job in flow.jobs.items() if job.kind != "command"}

    @property
    def _most(self) -> int:
        """Runners and submitted applications at a time."""
        if fixed := self._told_runners or self._settings.runners:
            return fixed
        has_jvm = not session.is_connect(self._settings.master)
        fit = memory.applications((job.spark for job in self._spark_jobs().values()), has_jvm=has_jvm)
        return min(fit, self._settings.max_runners or fit)

    def _size(self, job: Job) -> tuple[int, int]:
        """How many attempts a runner of this job takes in all, and side by side."""
        if job.kind in SCRIPTS:
            return 1, 1
        reuse = job.reuse or self._settings.reuse
        return reuse, 1 if reuse == 1 else job.slots or self._told_slots or self._settings.slots

    async def _tell_changed(self) -> None:
        async with self._changed:
            self._changed.notify_all()
        self._engine.on_room()

    def _key(self, flow: Flow, job: Job) -> tuple[Any, ...]:
        """All jobs of a flow share its runners, so the code is that of all of them. A SQL file is read anew each time.

        A runner has loaded modules as a whole; which of them it loads by name, only the parts know. It reads the key file
        once, and that of a rotated key is another one.
        """
        named = [name for one in flow.jobs.values() for name in references(flow, one)]
        with readable():
            code = codehash.of_python(named, flow.directory)
        keys = KeySource.of(self._settings).mark()
        return (
            flow.name,
            str(flow.directory),
            code.hash,
            code.whole_hash,
            keys,
            tuple(sorted(job.spark.items())),
        )

    async def acquire(self, attempt: Attempt, flow: Flow, job: Job, *, alone: bool) -> Runner:
        """A place in a runner of the job's key; a new one, or another's place, when there is none."""
        key = self._key(flow, job)
        reuse, slots = self._size(job)
        while True:
            chosen = None if alone or reuse == 1 else self._free(key)
            if chosen is None and self._has_room:
                chosen = Runner(key, reuse=reuse, slots=1 if alone else slots)
                chosen.is_retired = alone
                spark, variables = self._with_java(job)
                chosen.start(self._tasks, self._settings, spark, environment(flow, variables))
                self._runners.append(chosen)
                self._engine.on_room()  # for more than this attempt, where it has several slots
            if chosen is not None:
                self._engine.on_wait(attempt.attempt, None if chosen.is_ready.is_set() else IS_STARTING)
                chosen.load += 1
                chosen.served += 1
                try:
                    is_well = await self._is_well(chosen)
                except BaseException:
                    await self.release(chosen)
                    raise
                if is_well:
                    self._engine.on_runner("cold" if chosen.served == 1 else "warm")
                    return chosen
                await self.release(chosen)
                continue
            await self._make_room(attempt)

    def _with_java(self, job: Job) -> tuple[Mapping[str, str], dict[str, str]]:
        """A runner's Spark configuration, and the variables by which it finds its Java."""
        if session.is_connect(self._settings.master):
            return job.spark, {}
        if self._java is None:
            self._java = java.find(self._settings)
        path = class_archive.archive(self._settings, self._java)
        if not path.exists():
            self._bare_starts += 1
            if not self._is_learning:
                self._is_learning = True
                self._tasks.start_soon(
                    class_archive.learn, self._settings, self._java, self._is_busy, lambda: self._bare_starts
                )
        return class_archive.applied(job.spark, path), java.environment(self._java)

    def _is_busy(self) -> bool:
        return self._submitted > 0 or any(runner.load for runner in self._runners)

    @property
    def _has_room(self) -> bool:
        return len(self._runners) + self._submitted < self._most

    async def _make_room(self, attempt: Attempt) -> None:
        """An idle runner goes; without one, returns when something has changed."""
        idle = [runner for runner in self._runners if runner.load == 0]
        if idle:
            await self._drop(min(idle, key=lambda runner: runner.idle_since))
            return
        self._engine.on_wait(attempt.attempt, self._most)
        async with self._changed:
            await self._changed.wait()

    def _free(self, key: tuple[Any, ...]) -> Runner | None:
        able = [
            runner
            for runner in self._runners
            if runner.key == key
            and not runner.is_retired
            and runner.load < runner.slots
            and runner.served < runner.reuse
            and not self._is_aged(runner)
        ]
        return min(able, key=lambda runner: runner.load, default=None)

    async def _is_well(self, runner: Runner) -> bool:
        """One that has been silent for long is asked before it is trusted with an attempt."""
        if runner.load > 1 or time.monotonic() - runner.idle_since < PROBE_AFTER_SECONDS:
            return True
        if not runner.is_ready.is_set() or await runner.probe():
            return True
        _log.warning("runner.silent", pid=runner.pid)
        runner.is_retired = True
        return False

    async def release(self, runner: Runner) -> None:
        with anyio.CancelScope(shield=True):
            await self._give_back(runner)

    async def _give_back(self, runner: Runner) -> None:
        runner.load -= 1
        runner.idle_since = time.monotonic()
        is_used_up = runner.is_retired or runner.served >= runner.reuse or self._is_aged(runner)
        if runner.load == 0 and is_used_up:
            await self._drop(runner)
        await self._tell_changed()

    async def _drop(self, runner: Runner) -> None:
        runner.is_retired = True
        # It keeps its place until it is gone: two applications must not share the memory of one.
        runner.load += 1
        self._stopping.add(runner)
        try:
            await runner.stop()
        finally:
            self._stopping.discard(runner)
            if runner in self._runners:
                self._runners.remove(runner)
            await self._tell_changed()

    async def _sweep_while_any(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._runners))
            await anyio.sleep(SWEEP_SECONDS)
            try:
                await self._sweep()
            except Exception:  # noqa: BLE001 - an error here must not end the attempts in the other runners
                _log.exception("runners.unswept")

    async def _sweep(self) -> None:
        now = time.monotonic()
        for runner in list(self._runners):
            # One that is aged takes nothing any more, and would keep its place from a new one.
            is_old = now - runner.idle_since > self._settings.runner_idle or self._is_aged(runner)
            is_surplus = len(self._runners) + self._submitted > self._most
            if runner.load == 0 and (runner.is_retired or is_old or is_surplus):
                await self._drop(runner)
