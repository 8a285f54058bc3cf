"""One supervised process for each attempt: command jobs, and whatever else is a program with arguments.

What to run is asked of a callable, which reads the flow file and never the database. The environment is given
whole: nothing of the daemon's own is inherited. Exit status 0 is DONE; anything else is FAILED, with the status or the
signal as the code and the last lines of the log as the error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from dataflowd import supervise
from dataflowd.attempt import done, failed
from dataflowd.errors import DataflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from dataflowd.attempt import Attempt, Result

GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Program:
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None


@dataclass(frozen=True)
class ProcessEngine:
    program: Callable[[Attempt], Program]
    log_dir: Path
    grace: float = GRACE_SECONDS
    log_bytes: int = field(default=supervise.LOG_BYTES)

    async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:
        try:
            program = self.program(attempt)
            child = supervise.spawn(
                program.argv,
                env=program.env,
                cwd=program.cwd,
                log_path=log_path(self.log_dir, attempt),
                log_bytes=self.log_bytes,
            )
        except DataflowError as error:
            return failed(attempt, error.code, str(error), retry=False)
        except OSError as error:
            return failed(attempt, "CANNOT_START", f"the process cannot be started: {error}")
        on_start()
        try:
            ended = await child.wait()
        except anyio.get_cancelled_exc_class():
            await child.terminate(self.grace)
            raise
        if ended.code == 0:
            return done(attempt, usage=ended.usage)
        code = ended.signal or f"EXIT_{ended.code}"
        return failed(attempt, code, f"{ended}\n{ended.tail}".rstrip(), usage=ended.usage)

    async def close(self) -> None:
        """Nothing is warm."""

    async def reload(self) -> None:
        """Each attempt asks for its program anew."""


def log_path(log_dir: Path, attempt: Attempt) -> Path:
    return log_dir / attempt.jobid / attempt.dataid / f"{attempt.attempt}.log"
