"""How an attempt can end: one table for Python jobs, SQL jobs, scripts and spark-submit.

Each row says what happened, the outcome and code that are stored, and whether the run is tried again. docs/reference.md shows
the table to users; a test compares the two, and walks the engines through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dataflowd.model.attempt import Result
from dataflowd.model.errors import DatabaseUnreachableError, DataflowError

if TYPE_CHECKING:
    from dataflowd.model.attempt import Outcome

AGAIN, BY_TRIES, NEVER = True, None, False
EX_TEMPFAIL = 75


@dataclass(frozen=True)
class Ending:
    what: str
    outcome: Outcome
    code: str | None = None  # None: nothing is at fault
    retry: bool | None = BY_TRIES  # AGAIN: whatever the job's tries; BY_TRIES: while max_attempts allows it


def _failed(code: str, what: str, retry: bool | None = BY_TRIES) -> Ending:
    return Ending(what, "FAILED", code, retry)


ENDINGS: tuple[Ending, ...] = (
    Ending("the function returned, or the program exited with status 0, and all checks passed", "DONE"),
    Ending("the daemon stopped the attempt: it shuts down, or cannot prove its claim in time", "RETURNED"),
    Ending("the control database did not answer before the job began", "RETURNED"),
    Ending(
        "the attempt had lost its claim before the job began; the database keeps what took the claim away, and drops this result",
        "RETURNED",
    ),
    Ending("a runner died with several attempts in it: nobody knows which one did it", "RETURNED"),
    _failed("JOB_FAILED", "the job's code raised an exception, or called sys.exit"),
    _failed("EXIT_n", "the program exited with status n"),
    _failed("SIGxxx", "the program was ended by this signal"),
    _failed(
        "RETRY_LATER", "the program exited with status 75 (EX_TEMPFAIL): later, without spending a try", AGAIN
    ),
    _failed("TIMEOUT", "the job's code ran longer than its timeout"),
    _failed("RUNNER_DIED", "the Spark application died with this attempt alone in it"),
    _failed("CANCELLED", "the job's code was stopped by its runner"),
    _failed("CANNOT_START", "the process of the job cannot be started"),
    _failed("ENGINE_FAILED", "the daemon could not supervise the attempt any longer, and stopped it"),
    _failed("INVALID_CODE", "the job's code cannot be read or imported", NEVER),
    _failed("INVALID_ORDER", "the work order is malformed, or is not what this host's flow file says", NEVER),
    _failed("INVALID_OPTION", "an option of a dataset is not allowed, or has a wrong value", NEVER),
    _failed("INVALID_PARAMS", "the parameters are not those that the job's code declares"),
    _failed("INVALID_PATH", "a location is not there, not allowed or not writable", NEVER),
    _failed("INVALID_CREDENTIAL", "a password cannot be opened, or a server refuses the login", NEVER),
    _failed("INVALID_REPORT", "a line that the script wrote to DATAFLOW_REPORT cannot be read", NEVER),
    _failed("MISSING_JARS", "Spark has no jars for the format or the location of a dataset", NEVER),
    _failed("NOT_FOUND", "this host's flow files declare no such job", NEVER),
    _failed("EMBEDDED_FAILED", "this host has no Java that Spark can use"),
    _failed("INVALID_SETTINGS", "a setting of this host cannot be used", NEVER),
    _failed("INVALID_FLOW", "a flow file of this host has mistakes", NEVER),
    _failed("NOT_ALLOWED", "a role, a server or the kind of this daemon does not allow it"),
    _failed("DATABASE_UNREACHABLE", "the server of a table does not answer"),
    _failed("DATA_NOT_READY", "an input is not there yet"),
    _failed("WRONG_DATA", "an input is not what its manifest says, or an output is not what was observed"),
    _failed("NOT_VALIDATED", "an input has not passed its checks"),
    _failed("LOCKED", "somebody else holds the directory or the table"),
    _failed("INPUT_CHANGED", "the rows of an input table were replaced while the job read them", AGAIN),
    _failed("NO_OUTPUT", "the job ended and has not written an output", NEVER),
    _failed("CHECK_FAILED", "a declared check of severity error failed"),
    _failed("QUARANTINE_LIMIT", "more records are bad than the job's quarantine allows"),
    _failed("RESULT_TOO_LARGE", "the result is longer than a message may be", NEVER),
    _failed("RESULT_REFUSED", "the database can never store the result"),
    _failed("NOOP_FAILED", "the noop engine was told to fail a share of the attempts"),
)
_RETRY = {ending.code: ending.retry for ending in ENDINGS if ending.code is not None}


class Fence(Protocol):
    """An Attempt or a Result: whatever knows the attempt and its token."""

    @property
    def attempt(self) -> int: ...
    @property
    def token(self) -> str: ...


class ClaimLostError(DataflowError):
    """The attempt is no longer ours."""

    code = "LOCKED"


def retry_of(code: str, *, heals: bool = False) -> bool | None:
    """`heals`: this one may be gone by itself, as a disk that is mounted late, so that the job's tries decide."""
    retry = _RETRY.get(code, BY_TRIES)
    return BY_TRIES if heals and retry is NEVER else retry


def done(attempt: Fence, **details: Any) -> Result:
    return Result(attempt=attempt.attempt, token=attempt.token, outcome="DONE", **details)


def failed(attempt: Fence, code: str, error: str, **details: Any) -> Result:
    return Result(attempt=attempt.attempt, token=attempt.token, **told_failed(code, error), **details)


def returned(attempt: Fence, error: str) -> Result:
    return Result(attempt=attempt.attempt, token=attempt.token, outcome="RETURNED", error=error)


def told_failed(code: str, error: str) -> dict[str, Any]:
    """A failure as a runner tells it, which does not know the token."""
    return {"outcome": "FAILED", "code": code, "error": error, "retry": retry_of(code)}


def told_error(error: DataflowError) -> dict[str, Any]:
    """The same of an error, with what was judged before it was raised."""
    retry = retry_of(error.code, heals=error.heals)
    told = {"remedy": error.remedy or None, "retry": retry}
    return told_failed(error.code, str(error)) | told | dict(error.details)


def ended_by(attempt: Fence, error: DataflowError | OSError) -> Result:
    """How an attempt ends that met this error outside its job's code."""
    match error:
        case DatabaseUnreachableError() | ClaimLostError():
            return returned(attempt, error.message)
        case DataflowError():
            return Result(attempt=attempt.attempt, token=attempt.token, **told_error(error))
        case _:
            return failed(attempt, "CANNOT_START", f"the process cannot be started: {error}")


def exited(attempt: Fence, status: int | None, signal: str | None, said: str, **details: Any) -> Result:
    """How an attempt ends whose program exited with another status than 0, or was ended by a signal."""
    code = "RETRY_LATER" if status == EX_TEMPFAIL else signal or f"EXIT_{status}"
    return failed(attempt, code, said, **details)
