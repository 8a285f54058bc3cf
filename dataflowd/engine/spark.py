"""The engine for Spark: executes an attempt in a runner (runners.py chooses it), and a script in the command engine.

When a runner dies, only the attempts in it are lost. If there was one, it has failed (RUNNER_DIED). If there were several,
nobody knows which one killed the runner: all are given back, which costs them no try, and each runs alone the next time.
An attempt is cancelled by its tag first; if it has not ended after CANCEL_SECONDS, its whole runner is killed.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from dataflowd.engine import Room, looks
from dataflowd.engine.command import log_path
from dataflowd.engine.ending import ending_of
from dataflowd.engine.runner import Pending, Runner
from dataflowd.engine.runners import Runners
from dataflowd.flow.compose import of_order
from dataflowd.flow.graph import SCRIPTS
from dataflowd.host import log, supervise
from dataflowd.model.attempt import Result, told_by
from dataflowd.model.endings import failed, returned
from dataflowd.model.errors import DataflowError
from dataflowd.model.faults import unsupervised

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from dataflowd.engine.command import CommandEngine
    from dataflowd.engine.orders import Orders
    from dataflowd.flow import Flow, Job
    from dataflowd.flow.loaded import Declared
    from dataflowd.host.settings import Current, Settings
    from dataflowd.model.attempt import Attempt
    from dataflowd.model.work_order import Order

CANCEL_SECONDS = 10.0
TAIL_CHARACTERS = 4000

_log = log.logger(__name__)


class SparkEngine:
    def __init__(
        self,
        current: Current,
        declared: Declared,
        orders: Orders,
        commands: CommandEngine,
        echo: supervise.Echo | None = None,
    ) -> None:
        self.on_runner: Callable[[str], None] = lambda _kind: None
        self.on_wait: Callable[[int, int | None], None] = lambda _attempt, _applications: None
        self.on_found: Callable[[int, dict[str, Any]], None] = lambda _attempt, _found: None
        self.on_room: Callable[[], None] = lambda: None
        self._current = current
        self._declared = declared
        self._orders = orders
        self._commands = commands
        commands.on_found = self._tell_found
        self._runners = Runners(current, declared, self)
        self._echo = echo
        self._suspects: set[tuple[str, str]] = set()

    @property
    def _settings(self) -> Settings:
        return self._current.settings

    def take_orders(self, attempts: Sequence[Attempt]) -> AsyncIterator[Attempt]:
        return self._orders.take(attempts)

    async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:
        try:
            known = await self._orders.ordered(attempt, self._declared)
            flow, job, order = known.flow, known.job, known.order
            if job.kind not in SCRIPTS:
                return await self._run(attempt, flow, job, order, on_start)
            script = self._commands.run_ordered if job.kind == "command" else self._submit
            made = await script(attempt, job, order, on_start)
            if made.outcome != "DONE" or not looks.needed(order):
                return made
            # on_start was called when the script began, so the second pass must not call it again.
            looked = await self._run(attempt, flow, job, looks.order_of(order, made), _nothing)
            return looks.combined(made, looked)
        except (DataflowError, OSError) as error:
            return ending_of(attempt, error)

    async def _run(
        self, attempt: Attempt, flow: Flow, job: Job, order: Order, on_start: Callable[[], None]
    ) -> Result:
        is_suspect = (attempt.jobid, attempt.dataid) in self._suspects
        runner = await self._runners.acquire(attempt, flow, job, alone=is_suspect)
        try:
            result = await self._execute(runner, attempt, order, on_start)
        finally:
            await self._runners.release(runner)
        return of_order(result, order)

    async def _submit(self, attempt: Attempt, job: Job, order: Order, on_start: Callable[[], None]) -> Result:
        async with self._runners.place_of_one(attempt):
            return await self._commands.run_ordered(attempt, job, order, on_start)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with self._commands.opened(), self._runners.opened():
            yield

    async def reload(self) -> None:
        await self._runners.retire()
        await self._commands.reload()

    def _tell_found(self, attempt: int, found: dict[str, Any]) -> None:
        """Passes the call on: the daemon sets `on_found` after this engine has been given to the engine for scripts."""
        self.on_found(attempt, found)

    def runners(self) -> list[Runner]:
        return self._runners.all()

    def room(self) -> Room:
        return self._runners.room()

    async def resize(self, runners: int | None, slots: int | None) -> None:
        await self._runners.resize(runners, slots)

    async def _execute(
        self, runner: Runner, attempt: Attempt, order: Order, on_start: Callable[[], None]
    ) -> Result:
        attempt_log = supervise.Log(log_path(self._settings.effective_log_dir, attempt))
        questions: asyncio.Queue[None] = asyncio.Queue()
        # The pass that checks a script's outputs has no inputs; what was found, the script's own process has reported.
        on_found = _ignore if order.code == looks.CODE else partial(self.on_found, attempt.attempt)
        hear = _handler(attempt_log, self._echo, on_start, questions, on_found)
        pending = runner.pending[attempt.attempt] = Pending(hear)
        try:
            if await runner.ready():
                self.on_wait(attempt.attempt, None)
                await runner.send({"type": "order", "order": order.document()})
                async with anyio.create_task_group() as group:
                    group.start_soon(self._answer, runner, attempt, questions)
                    await pending.ended.wait()
                    group.cancel_scope.cancel()
            if pending.failure is not None and pending.result is None:
                raise unsupervised(pending.failure)  # noqa: TRY301 - cancelled below, as after any other error
        except BaseException:
            # After any error here the attempt must not go on in the runner: its place is given away, and its run is repeated.
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

    async def _answer(self, runner: Runner, attempt: Attempt, questions: asyncio.Queue[None]) -> None:
        """Asks the database whether the attempt holds its claim, for the runner, which has no credentials for it."""
        while True:
            await questions.get()
            is_alive = await self._orders.is_alive(attempt)
            await runner.send({"type": "confirmed", "attempt": attempt.attempt, "alive": is_alive})

    async def _cancel(self, runner: Runner, attempt: Attempt, pending: Pending) -> None:
        """Cancels by tag; if the attempt does not end in time, kills the runner with all attempts in it."""
        if not runner.is_ready.is_set():
            runner.pending.pop(attempt.attempt, None)
            return
        if pending.failure is not None and pending.result is None and not runner.ended.is_set():
            # The event was set because reading from the runner failed, and the attempt may still run.
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
        error = f"the runner died while it executed this attempt: {how}\n{tail}".rstrip()
        return failed(attempt, "RUNNER_DIED", error, usage=usage)


def _nothing() -> None:
    pass


def _ignore(_found: dict[str, Any]) -> None:
    pass


def result_of(attempt: Attempt, document: dict[str, Any]) -> Result:
    """Makes the Result of the runner's document. The preview of a trial is not stored."""
    stored = {name: value for name, value in document.items() if name in told_by("runner")}
    return Result(attempt=attempt.attempt, token=attempt.token, **stored)


def _handler(
    attempt_log: supervise.Log,
    echo: supervise.Echo | None,
    on_start: Callable[[], None],
    questions: asyncio.Queue[None],
    on_found: Callable[[dict[str, Any]], None],
) -> Callable[[dict[str, Any]], None]:
    """Returns the function that handles the messages of one attempt while it runs.

    `on_start` is called once. At most one question waits for its answer. A message `found` is ignored after the job's code
    has begun, because job code could have sent it. `echo` gets what the job prints, as with a script; steps go only to the log.
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
            case "confirm" if questions.empty():
                questions.put_nowait(None)
            case "progress":
                text = f"progress {message.get('done')} of {message.get('total')}\n"
                attempt_log.feed(text.encode(errors="backslashreplace"))

    return on_message
