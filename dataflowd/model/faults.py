"""Why an attempt failed: the error that the SDK and the runner raise, and whether a retry can help.

The runner turns an AttemptError into a FAILED result with the error's code and message. For a code of RETRY_IS_FUTILE
the run is not retried: it waits for a person at once. `heals=True` makes an exception for one error: its cause may go
away by itself, as a disk that is mounted late, so the job's own retry policy decides.
"""

from __future__ import annotations

from typing import Any

from dataflowd.model.errors import EXIT, DataflowError

RETRY_IS_FUTILE = frozenset(
    {
        "INVALID_PATH",
        "INVALID_OPTION",
        "INVALID_CODE",
        "INVALID_CREDENTIAL",
        "INVALID_ORDER",
        "INVALID_REPORT",
        "MISSING_JARS",
        "NO_OUTPUT",
    }
)

# The job is not at fault: a new attempt reads the files as they are then.
RETRY_IN_ANY_CASE = frozenset({"INPUT_CHANGED"})

_NODE = "dataflow_node"


def name_node(error: BaseException, node: str) -> None:
    """Keeps the node that was named first: nodes are nested, and the innermost one raised the error."""
    if node_of(error) is None:
        setattr(error, _NODE, node)


def node_of(error: BaseException) -> str | None:
    return getattr(error, _NODE, None)


class AttemptError(DataflowError):
    def __init__(self, code: str, message: str, remedy: str = "", *, heals: bool = False) -> None:
        super().__init__(message, remedy)
        self.code = code
        self.heals = heals
        self.details: dict[str, Any] = {}  # the validation of inputs, stored with the failed attempt

    @property
    def retry(self) -> bool | None:
        if self.code in RETRY_IN_ANY_CASE:
            return True
        return False if self.code in RETRY_IS_FUTILE and not self.heals else None

    @property
    def exit_code(self) -> int:
        return EXIT.get(self.code, EXIT["FAILED"])
