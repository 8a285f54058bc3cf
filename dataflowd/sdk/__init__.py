"""What a job's author imports: `from dataflowd import job, node, Context`. Spark is imported when a job runs, not before."""

from __future__ import annotations

from dataflowd.sdk.context import Context
from dataflowd.sdk.declare import job, node

__all__ = ["Context", "job", "node"]
