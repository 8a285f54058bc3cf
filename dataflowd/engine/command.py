"""Scripts: one supervised process for each attempt, with the environment that an existing script expects.

The process starts as `dataflowd.runner.script`, which prepares, opens passwords, and becomes the script. If the script exits
with status 0, the files in the attempt's directories are published. Any other status, or a signal, is FAILED as
dataflowd.model.endings says, with the last lines of the output as the error. A script reports about its work by writing to
the file that DATAFLOW_REPORT names (see report.py).

A `spark_submit` job is a script too: its program is spark-submit, with the master and the configuration that submit.py gives.
"""

from __future__ import annotations

import os
import shutil
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from dataflowd.engine import looks, submit
from dataflowd.engine.ending import ending_of
from dataflowd.engine.publish import publish
from dataflowd.engine.report import VARIABLE, Reader
from dataflowd.engine.script_process import FAULT_BYTES, Program, Said, inherited, rest, starting
from dataflowd.flow.compose import of_order, versions
from dataflowd.host import lent_key, private, runner_user, scratch, supervise
from dataflowd.host.embedded import java
from dataflowd.host.keyfile import KeySource
from dataflowd.model.endings import done, exited
from dataflowd.model.errors import DatabaseUnreachableError, DataflowError, NotAllowedError
from dataflowd.model.faults import AttemptError, unsupervised
from dataflowd.runner import session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from dataflowd.engine.orders import Orders
    from dataflowd.flow import Job
    from dataflowd.flow.loaded import Declared
    from dataflowd.host.settings import Current, Settings
    from dataflowd.model.attempt import Attempt, Result
    from dataflowd.model.work_order import Order

GRACE_SECONDS = 10.0
LOOK_SECONDS = 1.0


class CommandEngine:
    def __init__(
        self,
        current: Current,
        declared: Declared,
        orders: Orders,
        echo: supervise.Echo | None = None,
        *,
        is_looked_at: bool = False,
    ) -> None:
        """`is_looked_at`: the caller judges the checks that need to read what a script has written, after the script has ended."""
        self.on_found: Callable[[int, dict[str, Any]], None] = lambda _attempt, _found: None
        self._echo = echo
        self._is_looked_at = is_looked_at
        self._current = current
        self._declared = declared
        self._orders = orders
        scratch.remove(current.settings)

    @property
    def _settings(self) -> Settings:
        return self._current.settings

    def take_orders(self, attempts: Sequence[Attempt]) -> AsyncIterator[Attempt]:
        return self._orders.take(attempts)

    async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:
        try:
            known = await self._orders.ordered(attempt, self._declared)
            self._require_script(known.job)
            if not self._is_looked_at:
                looks.require_none(known.order)
        except DataflowError as error:
            return ending_of(attempt, error)
        return await self.run_ordered(attempt, known.job, known.order, on_start)

    async def run_ordered(
        self, attempt: Attempt, job: Job, order: Order, on_start: Callable[[], None]
    ) -> Result:
        """Runs a script whose order the caller has composed already."""
        said = Said(on_start, lambda found: self.on_found(attempt.attempt, found))
        try:
            with _scratch(self._settings) as directory:
                program = replace(self._program(job, attempt.tag, directory), after=job.words)
                result = await self._execute(attempt, order, program, directory, said)
        except (DataflowError, OSError) as error:
            result = ending_of(attempt, error)
        return of_order(result, order)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._orders.close()

    async def reload(self) -> None:
        """Tells the database the new versions of the code, so that it knows at once which chunks are stale.

        The engine itself has nothing to reload: each attempt reads its program anew.
        """
        with suppress(DatabaseUnreachableError):
            for flow in self._declared.flows.values():
                await self._orders.tell(versions(flow))

    def _require_script(self, job: Job) -> None:
        if isinstance(job.code, str):
            raise NotAllowedError(
                f"the job {job.name} is of kind {job.kind}, and this daemon runs only commands",
                "run the daemon with --engine spark",
            )

    def _program(self, job: Job, tag: str, directory: Path) -> Program:
        if job.kind == "command":
            env = inherited() | runner_user.environment(self._settings.runner_user)
            return Program((), tuple(job.code), env)
        user, master = self._settings.runner_user, self._settings.master
        if session.is_connect(master):
            env = submit.environment(master, job.spark, {}, directory, user)
            before = submit.client_words(job.code)[: -len(job.code)]
            return Program(before, tuple(job.code), env | {"SPARK_REMOTE": master})
        conf = session.configuration(job.spark, master, str(directory), tag)
        found = java.environment(java.find(self._settings))
        return Program(
            submit.words(conf | {"spark.app.name": job.name}, directory, user),
            tuple(job.code),
            submit.environment(master, job.spark, found, directory, user),
        )

    async def _execute(
        self, attempt: Attempt, order: Order, program: Program, directory: Path, said: Said
    ) -> Result:
        reader = Reader(directory / "report", order.outputs)
        key = lent_key.lend(KeySource.of(self._settings), directory, self._settings.runner_user)
        reporting = replace(program, env={**program.env, VARIABLE: str(reader.path)})
        document = reporting.document(order, key, lent_key.copies_in(directory))
        log = log_path(self._settings.effective_log_dir, attempt)
        ended = await self._become(document, Path(order.directory), log, reader, said)
        if ended.code != 0:
            return exited(attempt, ended.code, ended.signal, _error_text(ended), usage=ended.usage)
        report = await anyio.to_thread.run_sync(lambda: reader.look(is_last=True))
        made = await anyio.to_thread.run_sync(publish, order, report)
        return done(attempt, usage=ended.usage, **made)

    async def _become(
        self, document: dict[str, Any], cwd: Path, log: Path, reader: Reader, said: Said
    ) -> supervise.Exit:
        """Starts the process and waits for its end. Raises the fault that the process reports instead of becoming the script."""
        with starting(document) as start:
            child = supervise.spawn(
                start.argv,
                env=start.env,
                cwd=cwd,
                log_path=log,
                echo=self._echo,
                user=self._settings.runner_user,
                pass_fds=start.pass_fds,
            )
            start.close_send()
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(_watch, reader, child)
                    group.start_soon(_beginning, start.receive, said)
                    ended = await child.wait()
                    group.cancel_scope.cancel()
            except BaseException as error:
                # After any error here the script must not go on: its scratch directory is removed, and its run is repeated.
                await child.terminate(GRACE_SECONDS)
                # The script may have begun, and written, before we read that it has.
                said.hear(rest(start.receive))
                if said.fault is None:
                    said.begin()
                if isinstance(error, Exception):
                    raise unsupervised(error) from error
                raise
            said.hear(rest(start.receive))
        said.require_none()
        said.begin()
        return ended


def _error_text(ended: supervise.Exit) -> str:
    """Returns how the script ended and its last lines. Lists show only the first line, so it has the last line, too."""
    lines = ended.tail.splitlines()
    first = ": ".join([str(ended), *(line.strip() for line in lines[-1:])])
    return "\n".join([first, *(lines if len(lines) > 1 else [])])


async def _watch(reader: Reader, child: supervise.Child) -> None:
    """Writes progress to the log while the script runs. Errors in its report are raised after its end, in _execute."""
    shown = None
    while True:
        await anyio.sleep(LOOK_SECONDS)
        with suppress(AttemptError, OSError):
            progress = (await anyio.to_thread.run_sync(reader.look)).progress
            if progress is not None and progress != shown:
                shown = progress
                child.log.feed(f"progress {progress[0]} of {progress[1]}\n".encode())


async def _beginning(receive: int, said: Said) -> None:
    """Reads until the pipe ends. If no fault came by then, the process has just become the script."""
    while True:
        await anyio.wait_readable(receive)
        more = os.read(receive, FAULT_BYTES)
        said.hear(more)
        if not more:
            break
    if said.fault is None:
        said.begin()


@contextmanager
def _scratch(settings: Settings) -> Iterator[Path]:
    """Makes a directory for one attempt; removes it after the block."""
    directory = supervise.own_directory(private.make_spool(settings), scratch.COMMAND)
    try:
        runner_user.give(directory, settings.runner_user)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def log_path(log_dir: Path, attempt: Attempt) -> Path:
    return log_dir / attempt.jobid / attempt.dataid / f"{attempt.attempt}.log"
