"""The small process that becomes a script: `python -I -m dataflowd.runner.script ORDER STATUS`, started by the command engine.

It reads the order from one inherited file, asks the host's side of the five questions, makes the directories that the
script may write, opens the passwords that it needs, and executes the script in its own place. The key and the passwords
are seen by nobody else. What is wrong is written to the other file as JSON; that file is closed by exec, so that whoever
reads it learns that the script has begun, or why it has not. Before either stands a line with what was found
(dataflowd.storage.evidence): whether there is a second line tells the two apart.

A script that was given a password may print it. Its output therefore passes through a filter that recognises the
passwords (output_filter): a process that is nobody's child, in a session of its own, and ends when the last writer is
gone. It is begun before the key is read, as a program of its own: no copy of this process's memory outlives it.
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
LEAST_BYTES = 4  # a shorter password would mask half of every line
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
        become(document, lambda said: _tell(status_file, said))
    except DataflowError as error:
        fault = {"code": error.code, "message": error.message, "remedy": error.remedy}
        _tell(status_file, fault | {"heals": error.heals})
        sys.exit(FAILED)


def _tell(status_file: int, said: dict[str, Any]) -> None:
    left = json.dumps(said).encode() + b"\n"
    while left:
        left = left[os.write(status_file, left) :]


def become(document: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Does not return."""
    order = Order.parse(document["order"])
    seen = evidence.Evidence(order)
    try:
        prepare(order, seen)
    finally:
        tell({"found": seen.document()})
    variables = script_variables.variables(order)
    told = (
        command_words.filled(document["words"], script_variables.sayable(variables))
        if document["words"]
        else []
    )
    program = [*document["before"], *told, *document.get("after", ())]
    wanted = script_variables.password_variables(order)
    passwords = {}
    if wanted:
        output = OutputFilter()
        passwords = opened(wanted, document["key"])
        output.begin(list(passwords.values()))
    for copy in document.get("lent", ()):
        os.unlink(copy)  # noqa: PTH108 - the script gets its passwords, and not the key
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
    """Locations elsewhere than on a disk are judged by their text: the script has the means to look, we have not."""

    order: Order
    seen: evidence.Evidence

    def listing(self, dataset: Dataset, location: str) -> list[files.File] | None:
        path = allowed_roots.local_path(location)
        return (
            files.local_listing(path, digest=dataset.digest) if path is not None and path.exists() else None
        )

    def check_table(self, source: Input) -> None:
        """The script has the login."""

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
            # Spark writes into a directory that is not there, as everybody's scripts for it expect.
            _make(path, with_itself=self.order.kind != "spark_submit")


def opened(wanted: Mapping[str, Dataset], key: dict[str, Any]) -> dict[str, str]:
    """The passwords, by the variables that get them."""
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
        """Starts it, in a process that has seen no secret yet."""
        receive, self._send = os.pipe()
        self._told, theirs = socket.socketpair()
        with theirs:
            child = os.fork()
            if child == 0:
                _become_filter(receive, theirs.fileno())
            os.waitpid(child, 0)
        os.close(receive)

    def begin(self, secrets: list[str]) -> None:
        """Returns when it filters: from here on all output goes through it."""
        document = output_filter.Recogniser.of(forms(secrets)).document()
        try:
            with self._told as told:
                told.sendall(json.dumps(document).encode() + output_filter.READY)
                is_ready = told.recv(1) == output_filter.READY
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


def _become_filter(receive: int, told: int) -> NoReturn:
    try:
        # Before the filter is born: whoever kills the session of a script that ended at once must not meet it there.
        os.setsid()
        if os.fork() == 0:
            os.set_inheritable(receive, True)
            os.set_inheritable(told, True)
            program = [sys.executable, "-I", "-S", output_filter.__file__, str(receive), str(told)]
            os.execve(sys.executable, program, {})  # noqa: S606 - a program of ours; there is no shell
    finally:
        os._exit(0)


def forms(secrets: list[str]) -> list[bytes]:
    """As they are, as URLs and JSON write them, and line by line."""
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
        except FileNotFoundError:  # somebody who deletes the chunk has just removed its empty directory
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
