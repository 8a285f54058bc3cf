"""dataflowd runs and recovers partitioned batch ETL on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataflowd.sdk import Context, job, node

__version__ = "0.1.0"
__all__ = ["Context", "__version__", "job", "node"]


def __getattr__(name: str) -> Any:
    """Imports the SDK on first use: `from dataflowd import job, node, Context`. The command line does not need it."""
    if name in {"Context", "job", "node"}:
        from dataflowd import sdk  # noqa: PLC0415

        return getattr(sdk, name)
    raise AttributeError(f"module 'dataflowd' has no attribute {name!r}")
