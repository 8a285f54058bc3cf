"""The processes of a demo: the commands that a person would type, and the daemon.

Each is the real program in a process of its own. The daemon has a session of its own, so that Ctrl-C reaches only this
process, which then ends the daemon in order. If this process is killed, the kernel kills the daemon (host/exec_child.py), and
the daemon's runners die with it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataflowd.host import exec_child, private
from dataflowd.model.errors import DataflowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# -P: modules in the working directory are not imported.
PYTHON = [sys.executable, "-P"]
DATAFLOWCTL = [*PYTHON, "-c", "from dataflowd.cli import dataflowctl; dataflowctl.main()"]
DATAFLOWD = [*PYTHON, "-c", "from dataflowd.cli import dataflowd; dataflowd.main()"]
DRAIN_SECONDS = 30.0
STOP_SECONDS = 30.0
LOG_LINES = 5


class StoryError(DataflowError):
    """The story did not go as it should: what happened instead, and where to look."""

    code = "FAILED"


@dataclass(frozen=True)
class Command:
    """A command, as a person types it and as it is executed."""

    shown: str
    argv: Sequence[str]

    def read(self) -> str:
        """Runs the command and returns its output. Raises StoryError if it fails."""
        return self.started().text()

    def show(self) -> None:
        """Runs the command; its output goes straight to the terminal, if there is one."""
        sys.stdout.flush()
        ended = subprocess.run(self.argv, stdin=subprocess.DEVNULL, check=False)  # noqa: S603 - our own programs
        if ended.returncode:
            raise StoryError(f"`{self.shown}` ended with status {ended.returncode}", "see what it says above")

    def started(self) -> Started:
        process = subprocess.Popen(  # noqa: S603 - our own programs, no shell
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return Started(self, process)


@dataclass(frozen=True)
class Started:
    """A command that runs in the background. Its few lines of output fit into the pipe, which is read after its end."""

    command: Command
    process: subprocess.Popen[str]

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def text(self) -> str:
        try:
            output, _ = self.process.communicate()
        except BaseException:
            self.stop()
            raise
        if self.process.returncode:
            raise StoryError(
                f"`{self.command.shown}` ended with status {self.process.returncode}: {output.strip()}",
                "type the command yourself, in the directory that the demo names after cd",
            )
        return output.strip()

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def dataflowctl(*arguments: str) -> Command:
    return Command(shlex.join(["dataflowctl", *arguments]), [*DATAFLOWCTL, *arguments])


def script(path: str, *arguments: str) -> Command:
    return Command(shlex.join(["python", path, *arguments]), [*PYTHON, path, *arguments])


class Daemon:
    """The process of `dataflowd run`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def require_alive(self) -> None:
        if self._process.poll() is not None:
            raise StoryError(
                f"the daemon has ended with status {self._process.returncode}: {self._last_words()}",
                f"its log is {self._log}",
            )

    def stop(self) -> None:
        """Ends an idle daemon with SIGTERM, and waits for its end."""
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DRAIN_SECONDS)
        self.give_up()

    def give_up(self) -> None:
        """Ends the daemon at once; it gives back what runs. The second signal is of another kind, because two equal ones may arrive as one."""
        for number in (signal.SIGTERM, signal.SIGINT):
            if self._process.poll() is None:
                self._process.send_signal(number)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n    ".join(["", *lines[-LOG_LINES:]])


@contextmanager
def daemon(log: Path) -> Iterator[Daemon]:
    log.unlink(missing_ok=True)
    with private.open_append(log) as output:
        process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            [sys.executable, "-I", "-S", exec_child.__file__, str(os.getpid()), "", *DATAFLOWD, "run"],
            # Nobody asks for its health here, and another program may use the port.
            env=os.environ | {"DATAFLOW_HTTP_PORT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = Daemon(process, log)
    try:
        yield started
    finally:
        started.give_up()
