"""The daemon. Start reading at service.py; each other module is one service, with its protocol at the top.

This room knows when: it claims, renews, finishes, rescues and wakes, by calling functions of the database. It does not
know how a job is executed, nor what Spark is.
"""

from __future__ import annotations

from dataflowd.daemon.service import NameTakenError, run

__all__ = ["NameTakenError", "run"]
