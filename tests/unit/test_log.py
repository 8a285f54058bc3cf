"""Logs: one event is one line, whatever its values are, in a file, the journal and a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import structlog

from dataflowd.host import log
from dataflowd.host.settings import Settings
from tests.terminals import open_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTILE = "x\r\n2026-01-01T00:00:00Z info     attempt.finished job=forged \x1b[2J\x9b31m\u2028\u202e\x00\x7f"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restores pytest's log handlers after the test: logging is global to the process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def configured(log_format: str = "json", level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    log.configure(Settings.model_validate({"log_format": log_format, "log_level": level}), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail(message: str) -> NoReturn:
    raise ValueError(message)


def test_an_event_is_one_line_of_json_with_its_context() -> None:
    stream = configured()
    with log.context(daemon="d1", job="clean", dataid="2026-01-01", attempt=7):
        log.logger("dataflowd.pool").info("attempt.finished", rows=3)
    log.logger("dataflowd.pool").info("idle")
    finished, idle = lines(stream)
    assert list(finished)[:4] == ["timestamp", "level", "event", "logger"]
    expected = {
        "event": "attempt.finished",
        "daemon": "d1",
        "job": "clean",
        "dataid": "2026-01-01",
        "attempt": 7,
    }
    assert expected.items() <= finished.items()
    assert finished["rows"] == 3
    assert "job" not in idle


def test_what_libraries_log_and_warn_takes_the_same_way() -> None:
    stream = configured()
    with log.context(job="clean"):
        logging.getLogger("library").warning("took %d s", 3)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    took, old = lines(stream)
    assert (took["event"], took["level"], took["job"]) == ("took 3 s", "warning", "clean")
    assert "DeprecationWarning: old" in old["event"]


def test_events_below_the_level_are_not_logged() -> None:
    stream = configured(level="warning")
    log.logger("dataflowd").info("quiet")
    logging.getLogger("library").info("quiet")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_hostile_value_cannot_forge_a_line(log_format: str) -> None:
    stream = configured(log_format)
    log.logger("dataflowd").info(HOSTILE, value=HOSTILE, nested={"key": [HOSTILE]}, **{HOSTILE: 1})
    logging.getLogger("library").warning(HOSTILE)
    text = stream.getvalue()
    assert text.count("\n") == 2
    assert all(character == "\n" or character.isprintable() for character in text)


def test_a_traceback_cannot_forge_a_line_either() -> None:
    stream = configured("console")
    try:
        fail(HOSTILE)
    except ValueError:
        log.logger("dataflowd").exception("attempt.failed")
    first, *rest = stream.getvalue().rstrip("\n").split("\n")
    assert "attempt.failed" in first
    assert rest
    assert all(line.startswith("  | ") for line in rest)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_secrets_are_masked_by_name_and_by_shape(log_format: str) -> None:
    stream = configured(log_format)
    secret = "hunter2"  # noqa: S105
    address = f"postgresql://me:{secret}@host/flow"
    log.logger("dataflowd").info(
        f"connect {address}",
        password=secret,
        token=secret,
        dsn=address,
        detail={"db_secret": secret, "list": [address]},
    )
    logging.getLogger("library").error("failed: password=%s", secret)
    try:
        fail(address)
    except ValueError:
        log.logger("dataflowd").exception("failed")
    assert secret not in stream.getvalue()
    assert "me:***@host" in stream.getvalue()


def test_any_value_can_be_logged() -> None:
    stream = configured()
    log.logger("dataflowd").info("odd", raw=b"\xff", broken="\ud800", value=object(), pairs={(1, 2): {3}})
    assert lines(stream)[0]["raw"] == "\\xff"


def test_the_journal_gets_priorities_and_no_second_timestamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "journal").open("w+", encoding="utf-8") as stream:
        about = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{about.st_dev}:{about.st_ino}")
        log.configure(Settings(log_format="json"), stream)
        log.logger("dataflowd").error("attempt.failed")
        log.logger("dataflowd").info("idle")
        stream.seek(0)
        failed, idle = stream.read().splitlines()
    assert failed.startswith('<3>{"level": "error", "event": "attempt.failed"')
    assert idle.startswith("<6>")
    assert "timestamp" not in failed


def test_a_redirected_stream_is_not_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    with (tmp_path / "file").open("w", encoding="utf-8") as stream:
        assert not log.is_journal(stream)


def test_a_terminal_gets_readable_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = open_terminal()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, os.fdopen(ours, "rb", buffering=0) as screen:
        log.configure(Settings(log_format="auto"), terminal)
        log.logger("dataflowd").info("attempt.finished", job="clean", note="two words")
        shown = screen.read(4096).decode()
    assert "\x1b[32minfo" in shown
    assert 'attempt.finished job=clean note="two words"' in shown


async def test_events_of_a_task_that_outlives_its_attempt_do_not_name_the_attempt() -> None:
    async def keep_warm() -> dict[str, object]:
        log.leave_attempt()
        return structlog.contextvars.get_contextvars()

    with log.context(daemon="alpha"), log.context(job="clean", dataid="2026-01-01", attempt=7):
        outliving = await asyncio.create_task(keep_warm())
        assert structlog.contextvars.get_contextvars()["attempt"] == 7
    assert outliving == {"daemon": "alpha"}
