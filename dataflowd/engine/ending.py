"""How an attempt ends that met an error outside its job's code: the same for scripts and for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflowd.host import log
from dataflowd.model.endings import ended_by

if TYPE_CHECKING:
    from dataflowd.model.attempt import Attempt, Result
    from dataflowd.model.errors import DataflowError

_log = log.logger(__name__)


def ending_of(attempt: Attempt, error: DataflowError | OSError) -> Result:
    """The result. An error of the host is logged with its traceback: its text alone seldom says which file was meant."""
    if isinstance(error, OSError):
        _log.error(
            "attempt.cannot_start",
            job=attempt.jobid,
            dataid=attempt.dataid,
            attempt=attempt.attempt,
            error=str(error),
            exc_info=error,
        )
    return ended_by(attempt, error)
