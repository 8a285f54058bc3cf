"""The daemon. Start reading at service.py; each other module is one service, with its protocol at the top."""

from __future__ import annotations

from dataflowd.daemon.service import NameTakenError, run

__all__ = ["NameTakenError", "run"]
