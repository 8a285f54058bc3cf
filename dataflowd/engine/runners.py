"""Chooses the Spark application of an attempt: warm runners, keyed by flow, its code and the job's Spark configuration.

A runner takes `slots` attempts side by side and `reuse` attempts in all. Then it is replaced; also when it is old, its heap is
full, it does not answer, or job code has left threads in it. `reuse = 1` is a real spark-submit for each attempt (a client
process for each attempt if the master is a Connect server).

An attempt that finds no place in a runner of its key gets a new runner, up to `runners`; if that is 0, up to what
`max_runners` and the host's memory allow. At that number an idle runner of another key is stopped to make room. If none is
idle, the attempt waits, and the engine tells the daemon so, because people should not take it for one that runs. The daemon
asks how many attempts find a place (`room`) and claims no more: another daemon may have a free place.
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
    """The callbacks that the runners call; WarmEngine and SizedEngine say what they mean."""

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
        """Retires all runners: changed code has another key. Idle runners stop now, the others when they are idle."""
        for runner in list(self._runners):
            runner.is_retired = True
        self._java = None
        await self._sweep()

    @asynccontextmanager
    async def place_of_one(self, attempt: Attempt) -> AsyncIterator[None]:
        """Waits for a place for an application that a script submits. It counts like a runner, because the host's memory is limited."""
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
        # Nobody knows which job comes next, so count the fewest attempts that a new application would take.
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
        """How many attempts the runner can hold at a time from now on, including those that it holds now."""
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
        """The most runners and submitted applications at a time."""
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
        """Returns the key of the runners that a job may use. All jobs of a flow share runners, so the key has the code of all of them.

        A SQL file is not in the key, because it is read anew each time. `whole_hash` is in it because a runner loads whole modules,
        `hash` because only the parts say which modules are loaded by name. The key file is in it because a runner reads it once,
        and a rotated key needs a new runner.
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
        """Takes a place in a runner of the job's key. If there is none, starts a runner, stops an idle one to make room, or waits."""
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
                self._engine.on_room()  # a new runner with several slots has room for more attempts
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
        """Stops the runner that has been idle longest. If none is idle, waits until something has changed."""
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
        """Whether the runner can take an attempt. A runner that was idle for PROBE_AFTER_SECONDS has to answer a probe first."""
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
        # The runner keeps its place until its process is gone, because there is no memory for two applications.
        runner.load += 1
        self._stopping.add(runner)
        # Whoever needs the place may be cancelled meanwhile, and the process would live on.
        with anyio.CancelScope(shield=True):
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
            # An aged runner takes no more attempts, and would keep a new runner from its place.
            is_old = now - runner.idle_since > self._settings.runner_idle or self._is_aged(runner)
            is_surplus = len(self._runners) + self._submitted > self._most
            if runner.load == 0 and (runner.is_retired or is_old or is_surplus):
                await self._drop(runner)
