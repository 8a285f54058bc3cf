"""Why an attempt failed: the error that the SDK and the runner raise.

A fault carries one of the codes of dataflowd.model.endings; the SDK and the runner raise it, and the runner turns it into
a FAILED result. Its code says whether the run is tried again.
"""

from __future__ import annotations

from typing import Any

from dataflowd.model.endings import retry_of
from dataflowd.model.errors import EXIT, DataflowError

_NODE = "dataflow_node"


def name_node(error: BaseException, node: str) -> None:
    """Keeps the node that was named first: nodes are nested, and the innermost one raised the error."""
    if node_of(error) is None:
        setattr(error, _NODE, node)


def node_of(error: BaseException) -> str | None:
    return getattr(error, _NODE, None)


def unsupervised(error: Exception) -> AttemptError:
    """The daemon failed to hear or watch a process of the job's."""
    found = first_of(error)
    return AttemptError(
        "ENGINE_FAILED",
        f"the process could not be supervised any longer, and was stopped: {type(found).__name__}: {found}",
        "look into the daemon's log",
    )


def first_of(error: Exception) -> Exception:
    """The first error of a task group, which raises its errors as a group; any other error as it is."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


class AttemptError(DataflowError):
    def __init__(self, code: str, message: str, remedy: str = "", *, heals: bool = False) -> None:
        super().__init__(message, remedy)
        self.code = code
        self.heals = heals
        self.details: dict[str, Any] = {}  # the validation of inputs, stored with the failed attempt

    @property
    def retry(self) -> bool | None:
        return retry_of(self.code, heals=self.heals)

    @property
    def exit_code(self) -> int:
        return EXIT.get(self.code, EXIT["FAILED"])
