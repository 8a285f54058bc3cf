"""Scripts: one supervised process for each attempt, with the environment that an existing script expects.

The process is `dataflowd.runner.script` first: it prepares, opens passwords, and becomes the script. Exit status 0 publishes
what lies in the attempt's directories; any other status, or a signal, is FAILED as dataflowd.model.endings says, with the
last lines of the output as the error. What a script tells about its work, it writes to the file that DATAFLOW_REPORT names (see report.py).

A `spark_submit` job is such a script for spark-submit: it gets its master and its configuration from there.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from dataflowd.engine import looks, submit
from dataflowd.engine.publish import publish
from dataflowd.engine.report import VARIABLE, Reader
from dataflowd.engine.script_process import FAULT_BYTES, INHERITED, Program, Said, rest, starting
from dataflowd.flow.compose import of_order, versions
from dataflowd.host import lent_key, private, runner_user, scratch, supervise
from dataflowd.host.embedded import java
from dataflowd.host.keyfile import KeySource
from dataflowd.model.endings import done, ended_by, exited
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
        """`is_looked_at`: somebody asks the checks that need a look at what a script has written, when it has ended."""
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
            return ended_by(attempt, error)
        return await self.run_ordered(attempt, known.job, known.order, on_start)

    async def run_ordered(
        self, attempt: Attempt, job: Job, order: Order, on_start: Callable[[], None]
    ) -> Result:
        """Runs a script whose order is there already."""
        said = Said(on_start, lambda found: self.on_found(attempt.attempt, found))
        with _scratch(self._settings) as directory:
            try:
                program = replace(self._program(job, attempt.tag, directory), after=job.words)
                result = await self._execute(attempt, order, program, directory, said)
            except (DataflowError, OSError) as error:
                result = ended_by(attempt, error)
        return of_order(result, order)

    async def close(self) -> None:
        await self._orders.close()

    async def reload(self) -> None:
        """Each attempt reads its program anew; that what other code has made is stale is known before."""
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
            inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
            return Program(
                (), tuple(job.code), inherited | runner_user.environment(self._settings.runner_user)
            )
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
        told = replace(program, env={**program.env, VARIABLE: str(reader.path)})
        document = told.document(order, key, lent_key.copies_in(directory))
        log = log_path(self._settings.effective_log_dir, attempt)
        ended = await self._become(document, Path(order.directory), log, reader, said)
        if ended.code != 0:
            return exited(attempt, ended.code, ended.signal, _said(ended), usage=ended.usage)
        report = await anyio.to_thread.run_sync(lambda: reader.look(is_last=True))
        made = await anyio.to_thread.run_sync(publish, order, report)
        return done(attempt, usage=ended.usage, **made)

    async def _become(
        self, document: dict[str, Any], cwd: Path, log: Path, reader: Reader, said: Said
    ) -> supervise.Exit:
        """Raises the fault that the process tells instead of becoming the script."""
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
                # Whatever went wrong beside it, it must not run on: its scratch directory goes, and its run is made again.
                await child.terminate(GRACE_SECONDS)
                # It may have begun without our having heard of it, and written.
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


def _said(ended: supervise.Exit) -> str:
    """Lists show the first line: how it ended, and what it said last, which mostly is why."""
    lines = ended.tail.splitlines()
    first = ": ".join([str(ended), *(line.strip() for line in lines[-1:])])
    return "\n".join([first, *(lines if len(lines) > 1 else [])])


async def _watch(reader: Reader, child: supervise.Child) -> None:
    """Shows progress while the script runs; what is wrong with its report is said at the end."""
    shown = None
    while True:
        await anyio.sleep(LOOK_SECONDS)
        with suppress(AttemptError, OSError):
            progress = (await anyio.to_thread.run_sync(reader.look)).progress
            if progress is not None and progress != shown:
                shown = progress
                child.log.feed(f"progress {progress[0]} of {progress[1]}\n".encode())


async def _beginning(receive: int, said: Said) -> None:
    """The end of the file, with no fault in it, is the moment when the process becomes the script."""
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
    """A directory of the attempt's own, gone with it."""
    directory = supervise.own_directory(private.make_spool(settings), scratch.COMMAND)
    try:
        runner_user.give(directory, settings.runner_user)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def log_path(log_dir: Path, attempt: Attempt) -> Path:
    return log_dir / attempt.jobid / attempt.dataid / f"{attempt.attempt}.log"
