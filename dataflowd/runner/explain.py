"""Turns an error in job code into what its author reads: the message, and the frames of the author's own code alone."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import dataflowd
from dataflowd.model.errors import DataflowError
from dataflowd.model.faults import AttemptError, node_of
from dataflowd.model.masking import mask
from dataflowd.storage import foreign_types

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE_CHARACTERS = 4000
_OURS = str(Path(dataflowd.__file__).parent) + "/"
_INSIDE = ("/pyspark/", "/py4j/", "/importlib/", "<frozen")
_LIBRARY = sysconfig.get_path("stdlib") + "/"
# These lie below the library's directory, and may hold the author's own code.
_INSTALLED = ("site-packages", "dist-packages")


class CancelledError(BaseException):
    """Raised inside job code when its attempt is cancelled; a BaseException, so that `except Exception` does not catch it."""


def fault(error: BaseException) -> AttemptError:
    """Returns the error as it is stored: code, message, remedy, and the author's own frames."""
    if foreign := foreign_types.behind(error):
        return _with_frames(error, foreign.message, foreign.remedy, foreign.code)
    if isinstance(error, AttemptError):
        framed = _with_frames(error, error.message, error.remedy, error.code)
        framed.details, framed.heals = dict(error.details), error.heals
        return framed
    if isinstance(error, DataflowError):
        return AttemptError(error.code, error.message, error.remedy)
    if isinstance(error, CancelledError):
        return AttemptError("CANCELLED", "the attempt was cancelled while the job's code ran")
    if isinstance(error, SystemExit):
        message = f"the job called sys.exit({error.code!r})"
        return _with_frames(
            error, message, "return from the function, or raise an error that says what is wrong"
        )
    return _with_frames(error, message_of(error), "")


def is_of_spark(error: BaseException) -> bool:
    """Whether Spark itself broke down, as when a worker or the JVM dies. An error of job code in a worker is a PythonException."""
    from py4j.protocol import Py4JError  # noqa: PLC0415

    return isinstance(error, Py4JError | ConnectionError)


def line_of(error: BaseException) -> str:
    """Returns file and line of the author's code that raised the error, to be put behind the message."""
    frames = list(_author_frames(error))
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _with_frames(error: BaseException, message: str, remedy: str, code: str = "JOB_FAILED") -> AttemptError:
    node = node_of(error)
    text = message if node is None else f"in node {node}: {message}"
    frames = "".join(traceback.format_list(list(_author_frames(error)))).rstrip()
    return AttemptError(code, mask(f"{text}\n{frames}".rstrip()), remedy)


def message_of(error: BaseException) -> str:
    """Returns type and message of the error, without the stack of the JVM that Spark adds to its messages."""
    text = "".join(traceback.format_exception_only(error)).strip().split("\n\nJVM stacktrace:")[0]
    return text if len(text) <= MESSAGE_CHARACTERS else text[:MESSAGE_CHARACTERS] + " ..."


def _author_frames(error: BaseException) -> Iterator[traceback.FrameSummary]:
    for frame in traceback.extract_tb(error.__traceback__):
        if not _is_foreign(frame.filename):
            yield frame


def _is_foreign(path: str) -> bool:
    """Whether the file belongs to dataflowd, to Spark or to Python's own library."""
    if path.startswith(_OURS) or any(part in path for part in _INSIDE):
        return True
    return path.startswith(_LIBRARY) and not path.removeprefix(_LIBRARY).startswith(_INSTALLED)
