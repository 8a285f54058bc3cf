"""A small test session for test_interrupted_session.py: it starts servers, reports it in a file, and waits for the interruption."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fix_postgres import TEST_SERVER_SETTINGS, running_server

if TYPE_CHECKING:
    from tests.fix_daemon import Shop, StartDaemon

STARTED = "SESSION_TO_INTERRUPT"  # the variable that names the file for the session's temporary directory


def test_starts_servers_and_waits(shop: Shop, start_daemon: StartDaemon, temporary_directory: Path) -> None:
    shop.job("true")
    start_daemon()
    with running_server(TEST_SERVER_SETTINGS):
        unfinished = Path(os.environ[STARTED]).with_suffix(".new")
        unfinished.write_text(str(temporary_directory), encoding="utf-8")
        unfinished.rename(os.environ[STARTED])
        time.sleep(600)
