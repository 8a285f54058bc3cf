"""The engine for Spark: attempts run in warm runners, keyed by flow, its code and the job's Spark configuration.

A runner takes `slots` attempts side by side and `reuse` in all, then it is replaced; also when it is old, its heap is
full, it does not answer, or job code has left threads in it. `reuse = 1` is a real spark-submit for each attempt
(a client process of its own where the master is a Connect server). An attempt that finds no place in a runner of its key
gets a new one, so that as many attempts run as the limit says, up to `runners`, or without that number up to what
`max_runners` and the host's memory allow: another key's idle runner makes room, and otherwise the attempt waits, which the
daemon is told: people should not take it for one that runs. The daemon asks how many find a place (`room`), and claims no
more: another daemon may have one.

A runner that dies takes with it only what was inside. If that was one attempt, it has failed (RUNNER_DIED). If there
were several, nobody knows which one did it: all are given back, which costs them no try, and each runs alone the next
time. Cancelling goes by tag first; what has not ended after CANCEL_SECONDS ends with its whole runner.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from dataflowd.engine import Room, class_archive, looks
from dataflowd.engine.command import log_path
from dataflowd.engine.runner import Pending, Runner
from dataflowd.flow import codehash
from dataflowd.flow.compose import environment, of_order, readable, references
from dataflowd.flow.graph import SCRIPTS
from dataflowd.host import log, memory, supervise
from dataflowd.host.embedded import java
from dataflowd.host.keyfile import KeySource
from dataflowd.model.attempt import Result, told_by
from dataflowd.model.endings import ended_by, failed, returned
from dataflowd.model.errors import DataflowError
from dataflowd.model.faults import unsupervised
from dataflowd.runner import session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dataflowd.engine.command import CommandEngine
    from dataflowd.engine.orders import Orders
    from dataflowd.flow import Flow, Job
    from dataflowd.flow.loaded import Declared
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt
    from dataflowd.model.work_order import Order

CANCEL_SECONDS = 10.0
PROBE_AFTER_SECONDS = 30.0
SWEEP_SECONDS = 5.0
TAIL_CHARACTERS = 4000
IS_STARTING = 0  # what an attempt waits for whose own application starts

_log = log.logger(__name__)


class SparkEngine:
    def __init__(
        self,
        settings: Settings,
        declared: Declared,
        orders: Orders,
        commands: CommandEngine,
        echo: supervise.Echo | None = None,
    ) -> None:
        self.on_runner: Callable[[str], None] = lambda _kind: None
        self.on_wait: Callable[[int, int | None], None] = lambda _attempt, _applications: None
        self.on_found: Callable[[int, dict[str, Any]], None] = lambda _attempt, _found: None
        self.on_room: Callable[[], None] = lambda: None
        self._told_runners: int | None = None
        self._told_slots: int | None = None
        self._stopping: set[Runner] = set()
        self._settings = settings
        self._declared = declared
        self._orders = orders
        self._commands = commands
        commands.on_found = self._tell_found
        self._echo = echo
        self._runners: list[Runner] = []
        self._submitted = 0
        self._changed = asyncio.Condition()
        self._suspects: set[tuple[str, str]] = set()
        self._java: java.Java | None = None
        self._learning: asyncio.Task[None] | None = None
        self._bare_starts = 0
        self._sweeper: asyncio.Task[None] | None = None

    async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:
        try:
            flow, job = await self._orders.job(attempt.jobid, self._declared)
            order = await self._orders.order(attempt, flow, job, self._declared)
            if job.kind not in SCRIPTS:
                return await self._run(attempt, flow, job, order, on_start)
            script = self._commands.run_ordered if job.kind == "command" else self._submit
            made = await script(attempt, job, order, on_start)
            if made.outcome != "DONE" or not looks.needed(order):
                return made
            # The script's own code has begun long ago.
            looked = await self._run(attempt, flow, job, looks.order_of(order, made), _nothing)
            return looks.combined(made, looked)
        except (DataflowError, OSError) as error:
            return ended_by(attempt, error)

    async def _run(
        self, attempt: Attempt, flow: Flow, job: Job, order: Order, on_start: Callable[[], None]
    ) -> Result:
        is_suspect = (attempt.jobid, attempt.dataid) in self._suspects
        runner = await self._acquire(attempt, flow, job, alone=is_suspect)
        try:
            result = await self._execute(runner, attempt, order, on_start)
        finally:
            await self._release(runner)
        return of_order(result, order)

    def _tell_found(self, attempt: int, found: dict[str, Any]) -> None:
        """Whoever listens comes later than the engine for scripts."""
        self.on_found(attempt, found)

    async def close(self) -> None:
        for task in (self._sweeper, self._learning):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self._sweeper = None
        async with anyio.create_task_group() as group:
            for runner in self._runners:
                group.start_soon(runner.stop)
        self._runners.clear()
        await self._commands.close()
        await self._orders.close()

    async def reload(self) -> None:
        """Changed code has another key; what is idle with the old one goes now, the rest when it is."""
        for runner in list(self._runners):
            runner.is_retired = True
        self._java = None
        await self._sweep()
        await self._commands.reload()

    def runners(self) -> list[Runner]:
        return list(self._runners)

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
        self.on_room()

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

    async def _acquire(self, attempt: Attempt, flow: Flow, job: Job, *, alone: bool) -> Runner:
        """A place in a runner of the job's key; a new one, or another's place, when there is none."""
        key = self._key(flow, job)
        reuse, slots = self._size(job)
        while True:
            chosen = None if alone or reuse == 1 else self._free(key)
            if chosen is None and self._has_room:
                chosen = Runner(key, reuse=reuse, slots=1 if alone else slots)
                chosen.is_retired = alone
                spark, variables = self._with_java(job)
                chosen.start(self._settings, spark, environment(flow, variables))
                self._runners.append(chosen)
                self.on_room()  # for more than this attempt, where it has several slots
            if chosen is not None:
                self.on_wait(attempt.attempt, None if chosen.is_ready.is_set() else IS_STARTING)
                chosen.load += 1
                chosen.served += 1
                try:
                    is_well = await self._is_well(chosen)
                except BaseException:
                    await self._release(chosen)
                    raise
                if is_well:
                    self.on_runner("cold" if chosen.served == 1 else "warm")
                    return chosen
                await self._release(chosen)
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
            if self._learning is None:
                learn = class_archive.learn(
                    self._settings, self._java, self._is_busy, lambda: self._bare_starts
                )
                self._learning = asyncio.get_running_loop().create_task(learn)
        return class_archive.applied(job.spark, path), java.environment(self._java)

    def _is_busy(self) -> bool:
        return self._submitted > 0 or any(runner.load for runner in self._runners)

    async def _submit(self, attempt: Attempt, job: Job, order: Order, on_start: Callable[[], None]) -> Result:
        """A script's application takes the place of a runner's: the host has memory for so many."""
        while not self._has_room:
            await self._make_room(attempt)
        self.on_wait(attempt.attempt, None)
        self._submitted += 1
        try:
            return await self._commands.run_ordered(attempt, job, order, on_start)
        finally:
            self._submitted -= 1
            with anyio.CancelScope(shield=True):
                await self._tell_changed()

    @property
    def _has_room(self) -> bool:
        return len(self._runners) + self._submitted < self._most

    async def _make_room(self, attempt: Attempt) -> None:
        """An idle runner goes; without one, returns when something has changed."""
        idle = [runner for runner in self._runners if runner.load == 0]
        if idle:
            await self._drop(min(idle, key=lambda runner: runner.idle_since))
            return
        self.on_wait(attempt.attempt, self._most)
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

    async def _release(self, runner: Runner) -> None:
        with anyio.CancelScope(shield=True):
            await self._give_back(runner)

    async def _give_back(self, runner: Runner) -> None:
        runner.load -= 1
        runner.idle_since = time.monotonic()
        is_used_up = runner.is_retired or runner.served >= runner.reuse or self._is_aged(runner)
        if runner.load == 0 and is_used_up:
            await self._drop(runner)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep_while_any())
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
        log.leave_attempt()
        while self._runners:
            await anyio.sleep(SWEEP_SECONDS)
            await self._sweep()

    async def _sweep(self) -> None:
        now = time.monotonic()
        for runner in list(self._runners):
            # One that is aged takes nothing any more, and would keep its place from a new one.
            is_old = now - runner.idle_since > self._settings.runner_idle or self._is_aged(runner)
            is_surplus = len(self._runners) + self._submitted > self._most
            if runner.load == 0 and (runner.is_retired or is_old or is_surplus):
                await self._drop(runner)

    async def _execute(
        self, runner: Runner, attempt: Attempt, order: Order, on_start: Callable[[], None]
    ) -> Result:
        attempt_log = supervise.Log(log_path(self._settings.effective_log_dir, attempt))
        asked: asyncio.Queue[None] = asyncio.Queue()
        # Who looks at what a script has made has no inputs: the script has told what was found.
        on_found = _unheard if order.code == looks.CODE else partial(self.on_found, attempt.attempt)
        hear = _hearing(attempt_log, self._echo, on_start, asked, on_found)
        pending = runner.pending[attempt.attempt] = Pending(hear)
        try:
            if await runner.ready():
                self.on_wait(attempt.attempt, None)
                await runner.send({"type": "order", "order": order.document()})
                async with anyio.create_task_group() as group:
                    group.start_soon(self._answer, runner, attempt, asked)
                    await pending.ended.wait()
                    group.cancel_scope.cancel()
            if pending.failure is not None and pending.result is None:
                raise unsupervised(pending.failure)  # noqa: TRY301 - it is ended as any other
        except BaseException:
            # Whatever went wrong here, it must not run on in there: its place is given away, and its run is made again.
            with anyio.CancelScope(shield=True):
                await self._cancel(runner, attempt, pending)
            raise
        finally:
            together = len(runner.pending)
            if pending.result is not None:
                runner.pending.pop(attempt.attempt, None)
                await runner.send({"type": "forget", "attempt": attempt.attempt})
            attempt_log.close()
        run = (attempt.jobid, attempt.dataid)
        if pending.result is None:
            return self._died(runner, attempt, run, together)
        self._suspects.discard(run)
        return result_of(attempt, pending.result)

    async def _answer(self, runner: Runner, attempt: Attempt, asked: asyncio.Queue[None]) -> None:
        """The runner has no credentials to ask the database itself."""
        while True:
            await asked.get()
            is_alive = await self._orders.is_alive(attempt)
            await runner.send({"type": "confirmed", "attempt": attempt.attempt, "alive": is_alive})

    async def _cancel(self, runner: Runner, attempt: Attempt, pending: Pending) -> None:
        """By tag; and if that does not end it in time, with the runner and all that is in it."""
        if not runner.is_ready.is_set():
            runner.pending.pop(attempt.attempt, None)
            return
        if pending.failure is not None and pending.result is None and not runner.ended.is_set():
            # What was set is that we did not hear it, and not that it has ended.
            pending.ended = asyncio.Event()
        await runner.send({"type": "cancel", "attempt": attempt.attempt})
        with anyio.move_on_after(CANCEL_SECONDS):
            await pending.ended.wait()
        if not pending.ended.is_set():
            _log.warning("runner.deaf", pid=runner.pid, attempt=attempt.attempt)
            await runner.kill()
        runner.pending.pop(attempt.attempt, None)

    def _died(self, runner: Runner, attempt: Attempt, run: tuple[str, str], together: int) -> Result:
        how = runner.how
        tail = runner.exit.tail[-TAIL_CHARACTERS:] if runner.exit else ""
        if together > 1:
            self._suspects.add(run)
            return returned(
                attempt, f"its runner died ({how}) with {together} attempts in it; it runs alone next"
            )
        self._suspects.discard(run)
        usage = runner.exit.usage if runner.exit else {}
        said = f"the runner died while it executed this attempt: {how}\n{tail}".rstrip()
        return failed(attempt, "RUNNER_DIED", said, usage=usage)


def _nothing() -> None:
    pass


def _unheard(_found: dict[str, Any]) -> None:
    pass


def result_of(attempt: Attempt, said: dict[str, Any]) -> Result:
    """What the runner said in the end; a preview is a trial's, and is not stored."""
    stored = {name: value for name, value in said.items() if name in told_by("runner")}
    return Result(attempt=attempt.attempt, token=attempt.token, **stored)


def _hearing(
    attempt_log: supervise.Log,
    echo: supervise.Echo | None,
    on_start: Callable[[], None],
    asked: asyncio.Queue[None],
    on_found: Callable[[dict[str, Any]], None],
) -> Callable[[dict[str, Any]], None]:
    """What becomes of the words of an attempt while it runs. It begins once, and has one question open at a time.

    Once the job's code has begun, it could say itself what was found: that is not heard. A person who reads along sees what
    the job prints, as with a script; the steps are the log's.
    """
    has_begun = False

    def on_message(message: dict[str, Any]) -> None:
        nonlocal has_begun
        match message["type"]:
            case "log":
                line = message["line"].encode(errors="backslashreplace") + b"\n"
                attempt_log.feed(line)
                if echo is not None:
                    with suppress(OSError, ValueError):  # nobody reads along any more
                        echo.write(line)
                        echo.flush()
            case "step":
                attempt_log.feed(f"step {message['step']}\n".encode(errors="backslashreplace"))
                if message["step"] == "run" and not has_begun:
                    has_begun = True
                    on_start()
            case "found" if not has_begun:
                on_found(message["found"])
            case "confirm" if asked.empty():
                asked.put_nowait(None)
            case "progress":
                said = f"progress {message.get('done')} of {message.get('total')}\n"
                attempt_log.feed(said.encode(errors="backslashreplace"))

    return on_message
