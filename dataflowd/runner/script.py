"""The small process that becomes a script: `python -I -m dataflowd.runner.script ORDER STATUS`, started by the command engine.

The process reads the order from one inherited file (ORDER), asks the host's side of the five questions, makes the directories
that the script may write, opens the passwords that the script needs, and executes the script in its own place. No other
process sees the key and the passwords.

To the other inherited file (STATUS) the process writes one JSON line with what prepare found (dataflowd.storage.evidence). If
something is wrong, it writes a second line with the fault. Exec closes the file. So the reader, at the end of the file, knows
that the script has begun if there is one line, and why it has not begun if there are two.

A script that was given a password may print it. Its output therefore passes through a filter that recognises the
passwords (output_filter). The filter runs in a session of its own, is no child of the script, and ends when the last writer
is gone. It starts as a program of its own before the key is read, so that it holds no copy of this process's memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from dataflowd.flow import command_words, script_variables
from dataflowd.host import allowed_roots
from dataflowd.model.errors import DataflowError
from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import Order
from dataflowd.runner import output_filter
from dataflowd.runner import prepare as preparing
from dataflowd.storage import evidence, files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dataflowd.model.work_order import Dataset, Input, Output
    from dataflowd.storage import manifest_check

FAILED = 70
LEAST_BYTES = 4  # masking a shorter password would make most lines unreadable
REMEDIES = {
    OSError: "check the program, its first line (#!...) and its permissions",
    PermissionError: "run chmod +x on it, and see that its user may read it",
    FileNotFoundError: "check its name, and the program that its first line (#!...) names",
}


def main() -> None:
    order_file, status_file = map(int, sys.argv[1:3])
    os.set_inheritable(order_file, False)
    os.set_inheritable(status_file, False)
    ctypes.CDLL(None).prctl(output_filter.PR_SET_DUMPABLE, 0)
    try:
        with os.fdopen(order_file, "rb") as file:
            document = json.load(file)
        become(document, lambda message: _tell(status_file, message))
    except DataflowError as error:
        fault = {"code": error.code, "message": error.message, "remedy": error.remedy}
        _tell(status_file, fault | {"heals": error.heals})
        sys.exit(FAILED)


def _tell(status_file: int, message: dict[str, Any]) -> None:
    left = json.dumps(message).encode() + b"\n"
    while left:
        left = left[os.write(status_file, left) :]


def become(document: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Executes the script in the place of this process. Returns only by raising a fault."""
    order = Order.parse(document["order"])
    seen = evidence.Evidence(order)
    try:
        prepare(order, seen)
    finally:
        tell({"found": seen.document()})
    variables = script_variables.variables(order)
    words = (
        command_words.filled(document["words"], script_variables.sayable(variables))
        if document["words"]
        else []
    )
    program = [*document["before"], *words, *document.get("after", ())]
    wanted = script_variables.password_variables(order)
    passwords = {}
    if wanted:
        output = OutputFilter()
        passwords = opened(wanted, document["key"])
        output.begin(list(passwords.values()))
    for copy in document.get("lent", ()):
        os.unlink(copy)  # noqa: PTH108 - the script gets its passwords, but never the key
    env = document["env"] | variables | passwords
    try:
        os.execvpe(program[0], program, {key.encode(): value.encode() for key, value in env.items()})  # noqa: S606
    except OSError as error:
        remedy = REMEDIES.get(type(error), REMEDIES[OSError])
        raise AttemptError(
            "CANNOT_START", f"{program[0]} cannot be executed: {error.strerror}", remedy
        ) from None


def prepare(order: Order, seen: evidence.Evidence) -> None:
    preparing.prepare(order, seen, _LocalEyes(order, seen))


@dataclass(frozen=True)
class _LocalEyes:
    """Looks at local files. Of other locations only the text is checked: the script can reach them, this process cannot."""

    order: Order
    seen: evidence.Evidence

    def listing(self, dataset: Dataset, location: str) -> list[files.File] | None:
        path = allowed_roots.local_path(location)
        return (
            files.local_listing(path, digest=dataset.digest) if path is not None and path.exists() else None
        )

    def check_table(self, source: Input) -> None:
        """Checks nothing: only the script logs in to the table's database."""

    def check_files(self, source: Input, places: manifest_check.Places) -> None:
        for chunk in source.chunks:
            if chunk.location is not None and allowed_roots.local_path(chunk.location) is None:
                self.seen.measured(source.name, chunk, None)
            elif chunk.location is not None:
                places.check(source, chunk, chunk.location)

    def take_place(self, output: Output) -> None:
        location = script_variables.output_location(self.order, output)
        path = allowed_roots.local_path(location) if location is not None else None
        if path is not None:
            # By default Spark's writers refuse a directory that exists already.
            _make(path, with_itself=self.order.kind != "spark_submit")


def opened(wanted: Mapping[str, Dataset], key: dict[str, Any]) -> dict[str, str]:
    """Opens the passwords; returns them by the names of the variables that get them."""
    # Most scripts need no password, and start sooner without cryptography.
    from dataflowd.host.keyfile import KeySource  # noqa: PLC0415
    from dataflowd.host.seal import Binding, unseal  # noqa: PLC0415

    ring = KeySource.parse(key).ring()
    return {
        name: unseal(str(dataset.connection.encryptedpass), ring, Binding.of(dataset))
        for name, dataset in wanted.items()
    }


class OutputFilter:
    """The process between the script's output and its reader."""

    def __init__(self) -> None:
        """Starts the filter. Call it before this process opens a secret, because the filter is forked from it."""
        receive, self._send = os.pipe()
        self._channel, theirs = socket.socketpair()
        with theirs:
            child = os.fork()
            if child == 0:
                _become_filter(receive, theirs.fileno())
            os.waitpid(child, 0)
        os.close(receive)

    def begin(self, secrets: list[str]) -> None:
        """Sends the recogniser to the filter, and directs all further output of this process through the filter."""
        document = output_filter.Recogniser.of(forms(secrets)).document()
        try:
            with self._channel as channel:
                channel.sendall(json.dumps(document).encode() + output_filter.READY)
                is_ready = channel.recv(1) == output_filter.READY
        except OSError:
            is_ready = False
        if not is_ready:
            raise AttemptError(
                "CANNOT_START",
                "the process that keeps passwords out of the log cannot be started",
                "see whether this host has room for one more process, and whether its user may start one",
            )
        os.dup2(self._send, sys.stdout.fileno())
        os.dup2(self._send, sys.stderr.fileno())
        os.close(self._send)


def _become_filter(receive: int, channel: int) -> NoReturn:
    try:
        # Leave the script's session before the second fork: the daemon kills that session as soon as the script ends, and
        # the filter must still pass on the last lines.
        os.setsid()
        if os.fork() == 0:
            os.set_inheritable(receive, True)
            os.set_inheritable(channel, True)
            program = [sys.executable, "-I", "-S", output_filter.__file__, str(receive), str(channel)]
            os.execve(sys.executable, program, {})  # noqa: S606 - a program of ours; there is no shell
    finally:
        os._exit(0)


def forms(secrets: list[str]) -> list[bytes]:
    """Returns the secrets as they may be printed: unchanged, quoted for a URL, escaped for JSON, and line by line."""
    written = {
        form.encode()
        for secret in secrets
        for one in {secret, *secret.splitlines()}
        for form in (one, quote(one, safe=""), json.dumps(one)[1:-1])
    }
    return [form for form in written if len(form) >= LEAST_BYTES]


def _make(path: Path, *, with_itself: bool) -> None:
    try:
        try:
            path.mkdir(parents=True)
        except FileNotFoundError:  # a deletion of the chunk has just removed its empty parent directory
            path.mkdir(parents=True)
        if not with_itself:
            path.rmdir()
    except FileExistsError:
        raise preparing.occupied(path) from None
    except OSError as error:
        raise AttemptError(
            "INVALID_PATH",
            f"the directory {path} cannot be made: {error.strerror}",
            "let the user who runs the jobs write there",
        ) from None


if __name__ == "__main__":
    main()
