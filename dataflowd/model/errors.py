"""Every error that a person meets, and the one table of exit codes.

An error says what happened, to which thing, and what to do next. `code` is the word that logs, events and JSON
carry; `EXIT` maps it to the process's exit status. Anything that is not a DataflowError is a bug and exits 70.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

EXIT: dict[str, int] = {
    "OK": 0,
    "FAILED": 1,  # a job failed, a check found something that would stop a run, or `status --exit-code` something that needs a hand
    "USAGE": 2,  # the command line is wrong, or a value in it is none that there is
    "INVALID_SETTINGS": 3,  # a setting or its file cannot be used
    "INVALID_FLOW": 4,  # a flow file has mistakes; all of them are listed
    "DATABASE_UNREACHABLE": 5,  # no answer from Postgres, or it refused the connection
    "SCHEMA_MISMATCH": 6,  # the schema is missing, older or newer than this program, or was edited
    "EMBEDDED_FAILED": 7,  # the embedded Postgres or Java cannot be started
    "NOT_ALLOWED": 8,  # the role may not do this, a rule of the database refuses it, or a question was answered no
    "NOT_FOUND": 9,  # no such job, dataset, chunk, attempt, scope or file
    "DATA_NOT_READY": 10,
    "WRONG_DATA": 11,
    "INVALID_PATH": 12,
    "NOT_VALIDATED": 13,
    "LOCKED": 14,
    "INVALID_CREDENTIAL": 15,
    "INTERNAL": 70,  # a bug of ours
    "OUTPUT_FAILED": 74,  # what a command prints cannot be written; 74 is EX_IOERR
    "INTERRUPTED": 130,  # Ctrl-C, or the end of the input at a question; as shells have it
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
    """What a person typed is no value of its kind."""

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
    code = "EMBEDDED_FAILED"


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
