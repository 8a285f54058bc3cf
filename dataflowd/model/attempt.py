"""What passes between the daemon and its engines: an Attempt goes in, a Result comes out.

An Attempt is a claim as `dataflow.claim` returned it. A Result says how it ended, and `document` writes it as
`dataflow.finish` reads it; what is empty is left out, because thousands a second go over the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dataflowd.model.errors import DataflowError

Outcome = Literal["DONE", "FAILED", "RETURNED"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a run. The token is the fence: it goes with everything that is said about the attempt."""

    attempt: int
    token: str
    jobid: str
    dataid: str
    number: int
    tag: str
    inputs: dict[str, int] = field(default_factory=dict)  # {"raw_orders/2026-01-01": 3}
    params: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How an attempt ended. RETURNED: it was stopped without a fault of its own, and may run again."""

    attempt: int
    token: str
    outcome: Outcome
    code: str | None = None
    error: str | None = None
    remedy: str | None = (
        None  # what to do before the run is resubmitted; the last line of `error` says it, too
    )
    retry: bool | None = None  # False: failed for good; True: again in any case; None: as the job's tries say
    started: str | None = None  # ISO 8601
    code_hash: str | None = None
    config_hash: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    judged: list[dict[str, Any]] = field(
        default_factory=list
    )  # inputs from outside: dataset, dataid, passed, said
    applied: bool | None = None  # True: the resolved records of the run were given to it
    found: dict[str, Any] = field(default_factory=dict)  # see dataflowd.storage.evidence
    replayed: bool | None = None  # True: these alone were run, and their rows added to the published ones

    def document(self) -> dict[str, Any]:
        """The element of the list that dataflow.finish takes."""
        document: dict[str, Any] = {"attempt": self.attempt, "token": self.token, "outcome": self.outcome}
        for name in _OPTIONAL:
            value = getattr(self, name)
            # False and 0 say something; what is empty does not.
            if value or not (value is None or isinstance(value, dict | list)):
                document[name] = value
        return document


_OPTIONAL = (
    "code",
    "error",
    "remedy",
    "retry",
    "started",
    "code_hash",
    "config_hash",
    "usage",
    "outputs",
    "checks",
    "nodes",
    "quarantine",
    "judged",
    "applied",
    "found",
    "replayed",
)


def done(attempt: Attempt, **details: Any) -> Result:
    return Result(attempt=attempt.attempt, token=attempt.token, outcome="DONE", **details)


def failed(attempt: Attempt, code: str, error: str, **details: Any) -> Result:
    return Result(
        attempt=attempt.attempt, token=attempt.token, outcome="FAILED", code=code, error=error, **details
    )


def failed_by(attempt: Attempt, error: DataflowError, *, retry: bool | None, **details: Any) -> Result:
    return failed(attempt, error.code, str(error), remedy=error.remedy or None, retry=retry, **details)


def returned(attempt: Attempt, error: str) -> Result:
    return Result(attempt=attempt.attempt, token=attempt.token, outcome="RETURNED", error=error)
