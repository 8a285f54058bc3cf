"""Logs: events with keys, on stderr, one line each.

A program calls `configure` once. A module takes `log = logger(__name__)` and calls `log.info("attempt.finished",
rows=3)`. Keys that `context` binds (daemon, job, dataid, attempt) stand in every line of that task, also in lines of
libraries, because stdlib logging runs through the same processors. A terminal gets readable lines, everything else JSON.
For journald a line begins with the priority `<N>` and has no timestamp of its own. Secrets are masked and control
characters are escaped, so that no value can forge a line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

import structlog

from dataflowd.model.masking import MASK, is_secret_name, mask, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from structlog.typing import EventDict, Processor, WrappedLogger

    from dataflowd.host.settings import Settings

FIRST_KEYS = ("timestamp", "level", "event", "logger", "daemon", "job", "dataid", "attempt")
TRACEBACK_KEYS = ("exception", "stack")
# syslog(3) priorities: journald reads them at the start of a line.
PRIORITIES = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
COLOURS = {
    "critical": "\x1b[31m",
    "error": "\x1b[31m",
    "warning": "\x1b[33m",
    "info": "\x1b[32m",
    "debug": "\x1b[2m",
}
NO_COLOUR = "\x1b[0m"
# py4j logs every call into the JVM at debug level, with its arguments.
TALKATIVE = ("py4j",)
CONTAINER_DEPTH = 8


# A program that has not called `configure`, as a bench, keeps its stdout for its answer. At each line, because tests replace stderr.
structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def logger(name: str) -> structlog.stdlib.BoundLogger:
    return cast("structlog.stdlib.BoundLogger", structlog.get_logger(name))


def context(**names: str | int) -> AbstractContextManager[None]:
    """Binds the names to every line that is logged inside, by this task and by the tasks that it starts."""
    return structlog.contextvars.bound_contextvars(**names)


def leave_attempt() -> None:
    """Called by a task that outlives the attempt for which it was started: its later lines do not name the attempt."""
    structlog.contextvars.unbind_contextvars("job", "dataid", "attempt")


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    stream = stream or sys.stderr
    journal = is_journal(stream)
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _masked,
    ]
    if not journal:
        before.insert(0, structlog.processors.TimeStamper(fmt="iso", utc=True))
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *before],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _renderer(settings.log_format, stream, journal=journal),
            ],
            keep_exc_info=False,
            use_get_message=True,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def is_journal(stream: TextIO) -> bool:
    """Whether systemd connected this stream to the journal. JOURNAL_STREAM alone does not prove it after a redirection."""
    announced = os.environ.get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return announced == f"{found.st_dev}:{found.st_ino}"


def _renderer(log_format: str, stream: TextIO, *, journal: bool) -> Processor:
    terminal = stream.isatty()
    render: Callable[[EventDict], str] = json_line
    if log_format == "console" or (log_format == "auto" and terminal):
        colours = terminal and not os.environ.get("NO_COLOR")

        def render(event: EventDict) -> str:
            return console_lines(event, colours=colours)

    def rendered(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
        if not journal:
            return render(event)
        prefix = f"<{PRIORITIES.get(event.get('level', 'info'), PRIORITIES['info'])}>"
        return "\n".join(prefix + line for line in render(event).split("\n"))

    return rendered


def json_line(event: Mapping[str, Any]) -> str:
    """JSON in ASCII: control characters, separators and broken surrogates are escaped."""
    return json.dumps(_in_order(event), default=_as_text)


def console_lines(event: Mapping[str, Any], *, colours: bool) -> str:
    """One readable line. A traceback follows, indented, so that no line of the traceback looks like an event."""
    values = _in_order(event)
    tracebacks = [str(values.pop(key)) for key in TRACEBACK_KEYS if values.get(key)]
    level = str(values.pop("level", "info"))
    values.pop("logger", None)
    painted = f"{COLOURS.get(level, '')}{level:<8}{NO_COLOUR}" if colours else f"{level:<8}"
    head = [str(values.pop("timestamp"))] if "timestamp" in values else []
    head += [painted, printable(str(values.pop("event", "")))]
    pairs = [f"{printable(str(key))}={_console_value(value)}" for key, value in values.items()]
    lines = [" ".join(head + pairs)]
    for text in tracebacks:
        lines += ["  | " + printable(line) for line in text.split("\n")]
    return "\n".join(lines)


def _in_order(event: Mapping[str, Any]) -> dict[str, Any]:
    first = {key: event[key] for key in FIRST_KEYS if key in event}
    return first | {key: value for key, value in event.items() if key not in first}


def _console_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=_as_text, ensure_ascii=False)
    if isinstance(value, str) and (not text or any(character in text for character in " =\"'\\")):
        text = json.dumps(text, ensure_ascii=False)
    return printable(text)


def _masked(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {
        key: value if key in {"_record", "_from_structlog"} else _without_secrets(key, value)
        for key, value in event.items()
    }


def _without_secrets(name: str, value: Any, depth: int = CONTAINER_DEPTH) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return MASK if is_secret_name(name) and value is not None else value
    if is_secret_name(name):
        return MASK
    if isinstance(value, dict) and depth:
        return {
            _as_text(key): _without_secrets(_as_text(key), item, depth - 1) for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [_without_secrets("", item, depth - 1) for item in value]
    return mask(_as_text(value))


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
