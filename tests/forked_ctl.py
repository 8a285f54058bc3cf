"""`dataflowctl` without the half second of CPU in which Python imports it.

`python -m tests.forked_ctl SOCKET` imports the modules of the command line once. For each connection it forks a process that calls
the installed program's `main`, with the arguments, variables, directory, umask and files of the caller, and answers with
the exit status. The tests of README, of examples, of the wheel and of what other processes see start the program itself.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.metadata
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).parents[1]
FILES = 4  # the request; standard input, output and error
ANSWER_BYTES = 16
# Packages that commands import when they run. No others: importing them might start threads before a fork.
ROOMS = ("cli", "database", "flow", "host", "model")
STREAMS = (
    ("r", "strict"),
    ("w", "strict"),
    ("w", "backslashreplace"),
)  # modes and error handlers, as the interpreter opens them
# Read once by the interpreter, when it starts.
OF_THE_INTERPRETER = ("LANG", "LC_", "PYTHON")


_places: list[Path] = []  # the socket, while there is one


@contextmanager
def serving(place: Path, env: dict[str, str]) -> Iterator[None]:
    words = [sys.executable, "-m", "tests.forked_ctl", str(place)]
    with subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        _places.append(place)
        try:
            yield
        finally:
            _places.remove(place)
            process.kill()
            place.unlink()


def can_run(env: Mapping[str, str | None]) -> bool:
    return bool(_places) and not any(name.startswith(OF_THE_INTERPRETER) for name in env)


def run(arguments: list[str], env: dict[str, str], stdin: str) -> subprocess.CompletedProcess[str]:
    """Runs the program `arguments[0]` as subprocess.run would."""
    mask = os.umask(0)
    os.umask(mask)
    request = {"arguments": arguments, "env": env, "directory": str(Path.cwd()), "umask": mask}
    with ExitStack() as stack:
        told, given, said, complained = (
            stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(FILES)
        )
        told.write(json.dumps(request))
        given.write(stdin)
        for each in (told, given):
            each.flush()
            each.seek(0)
        link = stack.enter_context(socket.socket(socket.AF_UNIX))
        link.connect(str(_places[0]))
        socket.send_fds(link, [b"."], [each.fileno() for each in (told, given, said, complained)])
        answer = link.recv(ANSWER_BYTES)
        assert answer, "the process that forks has ended"
        said.seek(0)
        complained.seek(0)
        return subprocess.CompletedProcess(arguments, int(answer), said.read(), complained.read())


def serve(place: Path) -> None:
    program = _program()
    gc.freeze()  # later collections skip all present objects, so that their pages stay shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        print(flush=True)  # noqa: T201 - it is ready
        while True:
            link, _ = listener.accept()
            with link:
                if os.fork() == 0:
                    listener.close()
                    _answer(link, program)


def _program() -> Callable[[], None]:
    for room in ROOMS:
        package = importlib.import_module(f"dataflowd.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.ispkg:
                importlib.import_module(module.name)
    [entry] = importlib.metadata.entry_points(group="console_scripts", name="dataflowctl")
    found: Callable[[], None] = entry.load()
    return found


def _answer(link: socket.socket, program: Callable[[], None]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, [told, *files], _, _ = socket.recv_fds(link, 1, FILES)
    child = os.fork()
    if child == 0:
        link.close()
        with os.fdopen(told, encoding="utf-8") as request:
            _become(program, json.load(request), files)
    _, status = os.waitpid(child, 0)
    with suppress(BrokenPipeError):  # the caller has been interrupted
        link.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(program: Callable[[], None], request: dict[str, Any], files: list[int]) -> NoReturn:
    status = 1
    try:
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", errors=errors)  # noqa: SIM115, PTH123 - until the process ends
            for number, (mode, errors) in enumerate(STREAMS)
        )
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["directory"])
        os.umask(request["umask"])
        sys.argv = request["arguments"]
        program()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
