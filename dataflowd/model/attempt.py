"""What the daemon and its engines exchange: the daemon gives an Attempt to an engine, and the engine returns a Result.

An Attempt is a claim as `dataflow.claim` returned it, with the database's half of its work order for an engine that needs
one. A Result says how the attempt ended, and `document` writes it as `dataflow.finish` reads it. Empty values are left out,
because thousands of results a second go to the database.

The fields of a Result are declared here and nowhere else. Their types say what the wire accepts from a runner
(dataflowd.runner.wire). `by` says who may set a field: job code runs in the runner's process and could send anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Outcome = Literal["DONE", "FAILED", "RETURNED"]
Teller = Literal["daemon", "runner", "outside"]  # outside: `result` of dataflow.end_run

_DAEMON: dict[str, Any] = {"by": {"daemon"}}
_RUNNER: dict[str, Any] = {"by": {"daemon", "runner"}}
_OUTSIDE: dict[str, Any] = {"by": {"daemon", "outside"}}
_ALL: dict[str, Any] = {"by": {"daemon", "runner", "outside"}}


@dataclass(frozen=True, slots=True)
class HalfOrder:
    """The database's half of a work order, as it answered right after the claim. dataflowd.flow.compose adds this host's half."""

    document: dict[str, Any] | None = None  # None: the attempt is fenced
    base: str = ""  # the job whose code it runs: usually its own
    applied: str | None = None  # the configuration of that job that was applied last
    failure: Exception | None = None  # why there is no answer


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a run. The token is the fence: every write about the attempt names it."""

    attempt: int
    token: str
    jobid: str
    dataid: str
    number: int
    tag: str
    params: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    order: HalfOrder | None = None  # None: its engine needs no order


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How an attempt ended. RETURNED: the attempt was stopped without a fault of its own, and its run may start again."""

    attempt: int = field(metadata=_DAEMON)
    token: str = field(metadata=_DAEMON)
    outcome: Outcome = field(metadata=_RUNNER)
    code: str | None = field(default=None, metadata=_ALL)
    error: str | None = field(default=None, metadata=_RUNNER)
    # what to do before the run is resubmitted; it is also the last line of `error`
    remedy: str | None = field(default=None, metadata=_ALL)
    # False: no further try; True: a further try in any case; None: the job's max_attempts decides
    retry: bool | None = field(default=None, metadata=_ALL)
    code_hash: str | None = field(default=None, metadata=_ALL)
    config_hash: str | None = field(default=None, metadata=_ALL)
    usage: dict[str, Any] = field(default_factory=dict, metadata=_ALL)
    outputs: dict[str, Any] = field(default_factory=dict, metadata=_ALL)  # the Manifest of each output
    checks: list[dict[str, Any]] = field(default_factory=list, metadata=_ALL)
    nodes: list[dict[str, Any]] = field(default_factory=list, metadata=_ALL)
    quarantine: list[dict[str, Any]] = field(default_factory=list, metadata=_ALL)
    # inputs from outside: dataset, dataid, passed, said
    judged: list[dict[str, Any]] = field(default_factory=list, metadata=_RUNNER)
    # True: the run's resolved records were given to the job
    applied: bool | None = field(default=None, metadata=_ALL)
    # see dataflowd.storage.evidence; a runner sends it in a separate message, before the job's code begins
    found: dict[str, Any] = field(default_factory=dict, metadata=_OUTSIDE)
    # True: only the repaired records were run, and their rows were added to the published rows
    replayed: bool | None = field(default=None, metadata=_RUNNER)

    def document(self) -> dict[str, Any]:
        """The element of the list that dataflow.finish takes."""
        document: dict[str, Any] = {"attempt": self.attempt, "token": self.token, "outcome": self.outcome}
        for name in _OPTIONAL:
            value = getattr(self, name)
            # False and 0 are values; None and empty collections are left out.
            if value or not (value is None or isinstance(value, dict | list)):
                document[name] = value
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an attempt has written for one output. Readers find the chunk through its manifest."""

    location: str | None
    files: list[dict[str, Any]] | None
    bytes: int | None
    rows: int | None
    columns: str | None = None
    fingerprint: str | None = None

    def document(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def told_by(teller: Teller) -> frozenset[str]:
    """The fields of a Result that this teller may set."""
    return frozenset(each.name for each in fields(Result) if teller in each.metadata["by"])


def kinds_of(declared: type) -> dict[str, tuple[type, ...]]:
    """The types that the value of each field of a dataclass may have in a JSON document."""
    return {name: _kinds(hint) for name, hint in get_type_hints(declared).items()}


def _kinds(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is Literal:
        return (str,)
    if get_origin(hint) in {Union, UnionType}:
        return tuple(kind for each in get_args(hint) for kind in _kinds(each))
    return (get_origin(hint) or hint,)


_OPTIONAL = tuple(each.name for each in fields(Result) if each.name not in {"attempt", "token", "outcome"})
