"""Runs every command of dataflowctl with known and unknown options, and with good, random and hostile arguments.

Every call ends with an exit status of the table in docs/reference.md other than 70. It prints at most one error, no traceback
and no control character, and a refused call has changed nothing. The program runs inside this process, including its
outermost error handler.
"""

from __future__ import annotations

import io
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import typer

from dataflowd.cli.app import app
from dataflowd.cli.output import run
from dataflowd.host.settings import ENV_PREFIX
from dataflowd.model.errors import EXIT
from tests.fuzz.words import DATAIDS, Speaker, cases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_world import World

COMMANDS = 1500
# These commands become another program, search for Java, or do not end.
OTHERS = {("psql",), ("doctor",), ("exec",)}
GROUPS = {"embedded"}
ENDLESS = {"--watch", "--follow", "-f"}
WRITES = {"--output"}
# An argument cannot hold a NUL. Bytes that are no UTF-8 arrive as surrogates of one range.
UNSAYABLE = "[\x00\ud800-\udc7f\udd00-\udfff]"
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")
FLOW = """
[flow]
name = "fuzz"
[dataset.arrivals]
format = "none"
[dataset.loaded]
format = "none"
[job.load]
command = ["true"]
inputs = ["arrivals"]
outputs = ["loaded"]
"""


@dataclass(frozen=True)
class Command:
    path: tuple[str, ...]
    flags: list[str]
    options: list[str]
    arguments: int

    def said(self, speaker: Speaker) -> list[str]:
        count = self.arguments if speaker.chance(0.7) else speaker.random.randint(0, 3)
        words = [speaker.text() for _ in range(count)]
        for option in self.options:
            if speaker.chance(0.3):
                value = (
                    speaker.one(("-", "out.csv", "no/such/directory/x"))
                    if option in WRITES
                    else speaker.text()
                )
                words += [option, value] if speaker.chance(0.7) else [f"{option}={value}"]
        words += [flag for flag in self.flags if speaker.chance(0.25)]
        if speaker.chance(0.05):
            words.append(speaker.text())
        if speaker.chance(0.3):
            speaker.random.shuffle(words)
        return [*self.path, *words]


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[Command]:
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from _commands(command.get_command(None, name), (*path, name))
    elif path not in OTHERS and path[0] not in GROUPS:
        named = [
            each for each in command.params if each.opts[0].startswith("-") and not ENDLESS & set(each.opts)
        ]
        yield Command(
            path,
            [each.opts[0] for each in named if each.is_flag],
            [each.opts[0] for each in named if not each.is_flag],
            sum(not each.opts[0].startswith("-") for each in command.params),
        )


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    error: str


@pytest.fixture
def ctl(pipeline: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A host with runs in every state, and a flow file to name."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DATAFLOW_DSN", pipeline.dsn)
    monkeypatch.setenv("DATAFLOW_DATA_DIR", str(tmp_path / "dataflowd"))
    monkeypatch.setenv("DATAFLOW_STATEMENT_TIMEOUT", "20")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").write_text(FLOW, encoding="utf-8")  # `raw` is a word that the fuzzer uses
    (tmp_path / "clean").write_bytes(bytes(range(256)))
    pipeline.ready("raw", *DATAIDS, "done", "failed")
    daemon = pipeline.daemon()
    attempts = {attempt.run: attempt for attempt in daemon.claim(100)}
    daemon.finish(attempts["clean_orders", "done"], quarantine=[{"item": "4711", "reason": "no date"}])
    daemon.fail(attempts["clean_orders", "failed"])
    return pipeline


def test_any_command_line_ends_with_a_documented_exit_status(
    ctl: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = list(_commands(typer.main.get_command(app), ()))
    state, wrong = ctl.everything(), dict[tuple[str, str], str]()

    def try_one(number: int) -> None:
        nonlocal state
        speaker = Speaker(number, UNSAYABLE)
        command: Command = speaker.one(commands)
        words = command.said(speaker)
        ended = _ended(words, monkeypatch)
        now = ctl.everything()
        for what in _mistakes(ended, changed=now != state):
            wrong.setdefault((" ".join(command.path), what), f"{what}: {words!r}: {ended} of {number}")
        state = now

    cases(COMMANDS, try_one)
    assert list(wrong.values()) == []


def _mistakes(ended: Ended, *, changed: bool) -> Iterator[str]:
    if ended.status not in EXIT.values() or ended.status == EXIT["INTERNAL"]:
        yield f"status {ended.status}"
    if "Traceback" in ended.error or len(re.findall(r"^error \[", ended.error, re.MULTILINE)) > 1:
        yield "traceback or two errors"
    if UNPRINTABLE.search(ended.out + ended.error):
        yield "control characters"
    if ended.status and changed:
        yield "refused, and changed"


def _ended(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Ended:
    out, error = _stream(), _stream()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["dataflowctl", *words])
        patch.setattr(sys, "stdin", _stream())
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", error)
        try:
            status = run(app, "dataflowctl")
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Ended(status, *(_read(stream) for stream in (out, error)))


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _read(stream: io.TextIOWrapper) -> str:
    stream.flush()
    data: bytes = stream.buffer.getvalue()  # type: ignore[attr-defined]  # a BytesIO
    return data.decode()
