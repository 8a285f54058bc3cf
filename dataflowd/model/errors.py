"""Every error that a person sees, and the one table of exit codes.

An error says what happened, to which thing, and what to do next. Logs, events and JSON carry its `code`; `EXIT` maps
the code to the exit status of the process. Any exception that is not a DataflowError is a bug and exits with 70.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

EXIT: dict[str, int] = {
    "OK": 0,
    "FAILED": 1,  # a job failed, a check found what would stop a run, or `status --exit-code` found what needs a person
    "USAGE": 2,  # the command line is wrong, or one of its values does not exist
    "INVALID_SETTINGS": 3,  # a setting or its file cannot be used
    "INVALID_FLOW": 4,  # a flow file has mistakes; all of them are listed
    "DATABASE_UNREACHABLE": 5,  # Postgres did not answer, or refused the connection
    "SCHEMA_MISMATCH": 6,  # the schema is missing, edited, or of an older or newer release than this program
    "EMBEDDED_FAILED": 7,  # the embedded Postgres or Java cannot be started
    "NOT_ALLOWED": 8,  # the role may not do this, a rule of the database refuses it, or a person answered no
    "NOT_FOUND": 9,  # no such job, dataset, chunk, attempt, scope or file
    "DATA_NOT_READY": 10,
    "WRONG_DATA": 11,
    "INVALID_PATH": 12,
    "NOT_VALIDATED": 13,
    "LOCKED": 14,
    "INVALID_CREDENTIAL": 15,
    "INTERNAL": 70,  # a bug of ours
    "OUTPUT_FAILED": 74,  # the command's output cannot be written; 74 is EX_IOERR
    "INTERRUPTED": 130,  # Ctrl-C, or the input ended at a question; shells use 130 too
}


class DataflowError(Exception):
    """What happened, and what to do about it."""

    code = "INTERNAL"
    heals = False  # True: it may be gone by itself, also where its code says that a retry is futile
    details: Mapping[str, Any] = MappingProxyType({})  # fields of a result that are stored with it

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    @property
    def exit_code(self) -> int:
        return EXIT[self.code]

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}" if self.remedy else self.message


class InvalidValueError(DataflowError):
    """A person typed a value that is not of the expected kind."""

    code = "USAGE"


class InvalidSettingsError(DataflowError):
    code = "INVALID_SETTINGS"


class InvalidFlowError(DataflowError):
    code = "INVALID_FLOW"


class DatabaseUnreachableError(DataflowError):
    code = "DATABASE_UNREACHABLE"


class SchemaMismatchError(DataflowError):
    code = "SCHEMA_MISMATCH"


class EmbeddedError(DataflowError):
    """`remedy_here` keeps the directory; `can_move`: another one helps, too; `can_leave`: a database of one's own does."""

    code = "EMBEDDED_FAILED"

    def __init__(
        self, message: str, remedy: str = "", *, can_move: bool = False, can_leave: bool = False
    ) -> None:
        elsewhere = "choose another data_dir" if can_move else ""
        super().__init__(message, either(remedy, elsewhere, "set DATAFLOW_DSN" if can_leave else ""))
        self.remedy_here = remedy
        self.can_move = can_move


def either(*ways: str) -> str:
    """The ways that are not empty, as alternatives: `a, b, or c`."""
    *others, last = [way for way in ways if way] or [""]
    return f"{', '.join(others)}, or {last}" if others else last


class NotAllowedError(DataflowError):
    code = "NOT_ALLOWED"


class NotFoundError(DataflowError):
    code = "NOT_FOUND"


class InvalidCredentialError(DataflowError):
    code = "INVALID_CREDENTIAL"


class InvalidPathError(DataflowError):
    code = "INVALID_PATH"


class LockedError(DataflowError):
    code = "LOCKED"
