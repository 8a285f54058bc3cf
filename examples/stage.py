"""The stage of the examples: a directory of its own, an embedded Postgres in it, and dataflowd's programs.

An example is a story of steps. Each command is printed as a person would type it, followed by its output. Nothing outside
the directory is changed, and no setting of the user is read. When the story ends in any way, none of its processes is left:
background programs ask the kernel to die with it. The directory is temporary and is removed, unless --directory names one or
the story fails; then a message says how to look into it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

try:
    import psycopg
    from psycopg import conninfo, sql

    from dataflowd.cli.output import bold, say
    from dataflowd.host import exec_child
    from dataflowd.host.embedded import postgres, programs
    from dataflowd.model.errors import DataflowError
except ModuleNotFoundError as error:
    sys.exit(
        f"{error}: run it with the Python that has dataflowd, as `make example NAME=...` does (.venv/bin/python)"
    )

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

PROGRAMS = Path(sys.executable).parent
INHERITED = (
    *("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    # How Spark starts on this host.
    *("JAVA_HOME", "SPARK_CONF_DIR", "DATAFLOW_CLASS_ARCHIVES"),
)
INTERRUPTED = 130
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 900.0
STOP_SECONDS = 180.0
KILL_SECONDS = 20.0
SHOWN_LINES = 14
TOLD_LINES = 20


class StoryError(Exception):
    """A step of the story did not have the expected result."""


@dataclass
class Background:
    """A program that runs beside the story."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    is_expected_to_end: bool = False

    def said(self, words: str) -> bool:
        return words in self.log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kills the program without notice, as a power failure would."""
        self.is_expected_to_end = True
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Stops the program in order: a daemon lets its attempts end."""
        self.is_expected_to_end = True
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise StoryError(f"{self.name} did not stop within {seconds:.0f} s{_tail(self.log)}") from None

    def end(self) -> None:
        """Stops the program quickly: after a second SIGTERM a daemon gives back its attempts."""
        self.is_expected_to_end = True
        for _ in range(2):
            self.process.terminate()
            time.sleep(POLL_SECONDS)
        try:
            self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Stage:
    directory: Path
    dsn: str
    env: dict[str, str]
    steps: int = 0
    began: float = field(default_factory=time.monotonic)
    backgrounds: list[Background] = field(default_factory=list)
    connection: psycopg.Connection | None = None

    # --- printing ---

    def step(self, title: str) -> None:
        self.steps += 1
        say()
        say(bold(f"{self.steps}. {title}"))
        sys.stdout.flush()

    def tell(self, text: str) -> None:
        say(text)
        sys.stdout.flush()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    # --- running programs ---

    def ctl(
        self, *words: str, stdin: str = "", status: int = 0, lines: int = SHOWN_LINES, only: str = ""
    ) -> str:
        """Runs dataflowctl and prints its first and last lines. Another exit status than expected ends the story."""
        return self.run(["dataflowctl", *words], stdin=stdin, status=status, lines=lines, only=only)

    def run(
        self,
        words: Sequence[str],
        *,
        stdin: str = "",
        status: int = 0,
        lines: int = SHOWN_LINES,
        only: str = "",
    ) -> str:
        self.tell(f"$ {typed(words)}" + (f" | grep {only}" if only else ""))
        ended = subprocess.run(  # noqa: S603 - the words are the example's own, and there is no shell
            [_program(words[0]), *words[1:]],
            env=self.env,
            cwd=self.directory,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        output = [line for line in ended.stdout.splitlines() if only in line]
        is_cut = len(output) > lines and ended.returncode == status
        self.tell("\n".join([*output[: lines - 1], "...", output[-1]] if is_cut else output))
        if ended.returncode != status:
            raise StoryError(f"{typed(words)} ended with status {ended.returncode}, not {status}")
        return ended.stdout

    def psql(self, statement: str, *, lines: int = SHOWN_LINES) -> str:
        """Runs plain SQL on the control database, as from any client."""
        return self.ctl("psql", "-c", statement, lines=lines)

    def background(self, name: str, words: Sequence[str], env: Mapping[str, str] | None = None) -> Background:
        """Starts a program that dies with this process. Ctrl-C does not reach it, because the story ends it in order."""
        log = self.directory / f"{name}.log"
        with log.open("ab") as output, _undisturbed():
            process = subprocess.Popen(  # noqa: S603 - see above
                [
                    *(sys.executable, "-I", "-S", exec_child.__file__, str(os.getpid()), ""),
                    *(_program(words[0]), *words[1:]),
                ],
                env=self.env | dict(env or {}),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            started = Background(name, process, log)
            self.backgrounds.append(started)
        return started

    def daemon(self, name: str = "daemon", *words: str, env: Mapping[str, str] | None = None) -> Background:
        command = ["dataflowd", "run", "--name", name, *words]
        self.tell(f"$ {typed(command)} &")
        return self.background(name, command, env)

    # --- waiting and checking ---

    def rows(self, statement: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
        """Queries the control database without printing."""
        if self.connection is None:
            self.connection = psycopg.connect(self.dsn, autocommit=True)
        return self.connection.execute(statement, parameters or None).fetchall()

    def value(self, statement: LiteralString, *parameters: Any) -> Any:
        return self.rows(statement, *parameters)[0][0]

    def until(self, look: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
        """Calls `look` until its result is true, and returns it. Fails at once if a background program ends unexpectedly."""
        deadline = time.monotonic() + seconds
        while not (found := look()):
            for one in self.backgrounds:
                if one.process.poll() is not None and not one.is_expected_to_end:
                    raise StoryError(
                        f"{one.name} has ended, and there is still no sign of {what}{_tail(one.log)}"
                    )
            if time.monotonic() > deadline:
                raise StoryError(f"no sign of {what} within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)
        return found

    def until_said(self, one: Background, words: str, seconds: float = PATIENCE_SECONDS) -> None:
        self.until(lambda: one.said(words), f"{words!r} in {one.log}", seconds)

    def require(self, is_so: object, what: str) -> None:
        if not is_so:
            raise StoryError(f"this is not true: {what}")

    # --- databases, flows and settings ---

    def database(self, name: str) -> str:
        """Creates another database on the same server, and returns its DSN."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return conninfo.make_conninfo(self.dsn, dbname=name)

    @property
    def socket(self) -> str:
        """The directory of the server's socket, which a flow can use as a hostname."""
        return str(conninfo.conninfo_to_dict(self.dsn)["host"])

    def flow(self, example: Path, exchange: Mapping[str, str] | None = None) -> Path:
        """Copies the example's flow, and replaces words in it by values of this stage (a host, a port)."""
        copy = self.directory / "flow"
        shutil.copytree(example, copy, ignore=shutil.ignore_patterns("run.py", "README.md", "__pycache__"))
        text = (copy / "flow.toml").read_text(encoding="utf-8")
        for words, others in (exchange or {}).items():
            if words not in text:
                raise StoryError(f"there is no {words!r} in {example / 'flow.toml'}")
            text = text.replace(words, others)
        (copy / "flow.toml").write_text(text, encoding="utf-8")
        return copy / "flow.toml"

    def configure(self, **settings: Any) -> None:
        """Writes the settings file of the story; its programs find it by DATAFLOW_CONFIG."""
        known = {"data_dir": ".", "http_port": 0, **settings}
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in known.items()]
        (self.directory / "config.toml").write_text("".join(lines), encoding="utf-8")


def typed(words: Sequence[str]) -> str:
    """The words as a person would type them. A word with single quotes, as SQL has, gets double quotes."""
    return " ".join(
        f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word) for word in words
    )


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="directory for all files, which stay there; default: a temporary one, removed at the end",
    )
    return parser


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number within bounds."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {least:,} to {most:,}")
        return int(text)

    return parse


def play(story: Callable[[Stage], None], directory: Path | None) -> int:
    """Plays a story and returns its exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        place, is_ours = _place(directory)
    except OSError as error:
        sys.stderr.write(f"error: {error.filename}: {error.strerror}\n")
        return 1
    is_kept = not is_ours
    try:
        with _staged(place) as stage:
            story(stage)
            stage.tell(f"\nDone in {stage.seconds:.0f} s.")
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, such as `| head`, has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (StoryError, DataflowError) as error:
        sys.stderr.write(f"\nerror: {error}\n")
        is_kept = True
        return 1
    except Exception:
        is_kept = True
        raise
    finally:
        if is_kept:
            sys.stderr.write(
                f"All files are in {place}; these commands start its Postgres again, and remove it:\n"
                f"  export DATAFLOW_CONFIG={shlex.quote(str(place / 'config.toml'))}\n"
                "  dataflowctl status\n"
                f"  dataflowctl embedded stop; rm -r {shlex.quote(str(place))}\n"
            )
        else:
            shutil.rmtree(place)
    return 0


def _place(directory: Path | None) -> tuple[Path, bool]:
    """The directory of the story, and whether it is temporary."""
    if directory is None:
        place = Path(tempfile.mkdtemp(prefix="dataflowd-example-"))
    else:
        place = directory.absolute()
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise OSError(0, "it is not empty; name another directory, or remove it", str(place))
    if os.geteuid() == 0:
        # Postgres refuses root, so it runs under another account, which must be able to enter the directory.
        place.chmod(0o755)
    return place, directory is None


@contextmanager
def _staged(directory: Path) -> Iterator[Stage]:
    env = {name: os.environ[name] for name in INHERITED if name in os.environ}
    # As in an activated environment. If the host has no psql, the embedded Postgres has one.
    tools = str(programs.binary("psql").parent)
    env["PATH"] = os.pathsep.join([str(PROGRAMS), env.get("PATH", os.defpath), tools])
    env |= {"HOME": str(directory), "DATAFLOW_CONFIG": str(directory / "config.toml")}
    # Datasets of a story may be tables of its own server, which demands the password.
    env["PGPASSFILE"] = str(directory / "postgres" / "password")
    with ExitStack() as stack:
        stack.callback(postgres.stop, directory)
        stage = Stage(directory, "", env)
        stage.configure()
        stack.callback(_end_all, stage)
        stage.dsn = postgres.ensure_running(directory)
        yield stage


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delivers a Ctrl-C after the block: an interrupt inside Popen would leave a daemon that no list names.

    Such a daemon would start the story's Postgres again after _staged() has stopped it.
    """
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda number, _frame: arrived.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
    if arrived:
        raise KeyboardInterrupt


def _end_all(stage: Stage) -> None:
    # A second Ctrl-C would interrupt the clean-up, which takes only a moment.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if stage.connection is not None:
        stage.connection.close()
    for one in reversed(stage.backgrounds):
        if one.process.poll() is None:
            one.end()


def _program(name: str) -> str:
    """The path of a program. Popen would search the PATH of this process, not the PATH of the child."""
    own = PROGRAMS / name
    found = own if own.exists() else shutil.which(name) or programs.binary(name)
    return str(found)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TOLD_LINES:]
    return "\n" + "\n".join(lines) if lines else ""
