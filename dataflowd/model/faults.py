"""Why an attempt failed, in the words that are stored with it.

A fault carries one of the codes below; the SDK and the runner raise it, the runner turns it into a FAILED result. A
fault that no repetition can heal says so (`retry = False`), and the run then waits for a person at once. One of such a
code that may heal by itself all the same (`heals`), as a disk that is mounted late, is left to the job's own policy.
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

# No fault of the job's: the same attempt, made again, reads what is there then.
RETRY_IN_ANY_CASE = frozenset({"INPUT_CHANGED"})

_NODE = "dataflow_node"


def name_node(error: BaseException, node: str) -> None:
    """The innermost node is where it happened."""
    if node_of(error) is None:
        setattr(error, _NODE, node)


def node_of(error: BaseException) -> str | None:
    return getattr(error, _NODE, None)


class AttemptError(DataflowError):
    def __init__(self, code: str, message: str, remedy: str = "", *, heals: bool = False) -> None:
        super().__init__(message, remedy)
        self.code = code
        self.heals = heals
        self.details: dict[str, Any] = {}  # what was judged, which is stored with a failed attempt too

    @property
    def retry(self) -> bool | None:
        if self.code in RETRY_IN_ANY_CASE:
            return True
        return False if self.code in RETRY_IS_FUTILE and not self.heals else None

    @property
    def exit_code(self) -> int:
        return EXIT.get(self.code, EXIT["FAILED"])
