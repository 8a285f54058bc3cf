"""What the author of a job imports: `from dataflowd import job, node, Context`. Spark is imported when a job runs, not before.

This room knows one attempt through its work order: what it reads, where it writes, which records it sets aside. It knows
no daemon, no control database and no other attempt. Modules with an underscore are not for authors of jobs.
"""

from __future__ import annotations

from dataflowd.sdk.context import Context
from dataflowd.sdk.declare import job, node

__all__ = ["Context", "job", "node"]
