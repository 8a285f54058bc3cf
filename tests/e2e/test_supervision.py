"""When something fails around a script, the script is dead before its attempt ends: it never runs beside its own retry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from dataflowd.daemon import service
from dataflowd.daemon.state import Assignment
from dataflowd.engine.command import CommandEngine
from dataflowd.engine.orders import Orders
from dataflowd.flow.loaded import Declared
from dataflowd.host import supervise
from dataflowd.host.settings import Current
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt, Result
    from tests.fix_daemon import Shop, StartDaemon


def test_a_script_whose_start_cannot_be_reported_is_dead_when_its_attempt_ends(
    shop: Shop, settings: Settings, tmp_path: Path
) -> None:
    alive: list[bool] = []

    class FaultyEngine(CommandEngine):
        async def run(self, attempt: Attempt, on_start: Callable[[], None]) -> Result:  # noqa: ARG002 - the fault is in its place
            def fail() -> None:
                while not (tmp_path / "pid").exists():
                    pass
                raise RuntimeError("no metrics today")

            try:
                return await super().run(attempt, fail)
            finally:
                pid = int((tmp_path / "pid").read_text(encoding="ascii"))
                alive.append(supervise.started_at(pid) is not None)

    shop.job(f"echo $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid; exec sleep 600")
    shop.ready(1)
    current = settings.model_copy(update={"flows": [shop.flow], "daemon_name": "d1"})
    engine = FaultyEngine(Current(current), Declared(current), Orders(Current(current)))
    assert anyio.run(partial(service.run, Current(current), engine, Assignment(once=True))) == 1
    assert alive == [False]
    assert shop.value("SELECT code FROM dataflow.attempt") == "ENGINE_FAILED"
    assert "no metrics today" in shop.value("SELECT error FROM dataflow.attempt")


def test_a_script_goes_on_when_its_log_and_its_report_are_removed(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """A report that cannot be read fails the attempt only after the script has ended."""
    logs = tmp_path / "dataflowd" / "log" / "work"
    shop.job(
        f"touch {tmp_path}/begun-$dataid; until [ -e {tmp_path}/begun-1 -a -e {tmp_path}/begun-2 ]; do sleep 0.05; done;"
        f' rm -rf {logs}; touch {logs}; [ $dataid = 1 ] || mkdir "$DATAFLOW_REPORT"; echo hello; sleep 2;'
        f" echo done > {tmp_path}/$dataid"
    )
    start_daemon()
    shop.ready(1, 2)
    eventually(lambda: (shop.count("READY"), shop.count("FAILED")) == (1, 1))
    assert (tmp_path / "1").exists()
    assert (tmp_path / "2").exists()
    assert shop.value("SELECT code FROM dataflow.attempt WHERE dataid = '2'") == "INVALID_REPORT"
