"""Attempts that write tables, with a real engine: what a kill -9, a lost result and a dead token leave behind."""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from psycopg.types.json import Jsonb

import dataflowd.flow
from dataflowd.engine.command import CommandEngine
from dataflowd.engine.orders import Orders
from dataflowd.engine.spark import SparkEngine
from dataflowd.flow.loaded import Declared
from dataflowd.host.settings import Current
from dataflowd.model.attempt import Attempt, Result
from tests.attempts import claimed, ordered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dataflowd.host.settings import Settings
    from tests.fix_tables import Warehouse
    from tests.fix_world import Daemon, World

FLOW = """
[flow]
name = "load"
[dataset.raw]
format = "csv"
location = "{{root}}/raw/{{dataid}}.csv"
schema = "id bigint, name string"
[dataset.loaded]
format = "postgres"
hostname = "{hostname}"
port = {port}
database = "{database}"
username = "{username}"
tablename = "loaded"
options = {{ dataid_column = "shard" }}
[job.load]
python = "load:load"
inputs = ["raw"]
outputs = ["loaded"]
max_attempts = 5
retry_delay = "1s"
[job.load.spark]
"spark.driver.memory" = "512m"
"""

LOAD = """
import pathlib, time
from dataflowd import job

HERE = pathlib.Path(__file__).parent

@job
def load(ctx):
    ctx.write("loaded", ctx.read("raw"))
    if (HERE / "wait").exists():
        (HERE / "staged").touch()
        while (HERE / "wait").exists():
            time.sleep(0.01)
"""


class Loading:
    def __init__(self, world: World, engine: SparkEngine, daemon: Daemon, directory: Path) -> None:
        self.world = world
        self.engine = engine
        self.daemon = daemon
        self.wait, self.staged = directory / "wait", directory / "staged"

    def claim(self) -> Attempt:
        self.world.later()
        return claimed(self.daemon.claim_one())

    async def run(self, attempt: Attempt) -> Result:
        return await self.engine.run(await ordered(self.engine, attempt), lambda: None)

    def finish(self, result: Result) -> str:
        """Finishes the attempt as a daemon does, and returns the verdict."""
        [[verdict]] = self.daemon.connection.execute(
            "SELECT verdict FROM dataflow.finish(%s)", [Jsonb([result.document()])]
        ).fetchall()
        return str(verdict)

    @asynccontextmanager
    async def staged_attempt(self, attempt: Attempt, results: list[Result]) -> AsyncIterator[None]:
        """Runs the attempt; inside the block it has written its rows, and has not published them."""
        self.wait.touch()
        self.staged.unlink(missing_ok=True)

        async def run() -> None:
            results.append(await self.run(attempt))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while not self.staged.exists():  # noqa: ASYNC110 - another process has no event for us
                await anyio.sleep(0.02)
            yield
            self.wait.unlink()


@pytest.fixture
def load_settings(settings: Settings, warehouse: Warehouse, tmp_path: Path) -> Settings:
    directory = tmp_path / "flow"
    directory.mkdir()
    (directory / "flow.toml").write_text(FLOW.format(**warehouse.there))
    (directory / "load.py").write_text(LOAD)
    known = {
        "flows": [directory / "flow.toml"],
        "master": "local[2]",
        "runners": 1,
        "allowed_hosts": [warehouse.host],
    }
    return settings.model_copy(update={"data_dir": tmp_path / "data", **known})


@asynccontextmanager
async def loading(world: World, settings: Settings) -> AsyncIterator[Loading]:
    declared = Declared(settings)
    dataflowd.flow.apply(world.connection, declared.flows["load"])
    raw = Path(settings.effective_root) / "raw"
    raw.mkdir(parents=True)
    (raw / "s1.csv").write_text("1,ann\n2,bob\n")
    current = Current(settings)
    orders = Orders(current)
    engine = SparkEngine(current, declared, orders, CommandEngine(current, declared, orders))
    async with engine.opened():
        world.ready("raw", "s1")
        yield Loading(world, engine, world.daemon(), settings.flows[0].parent)


async def test_after_kills_and_a_lost_result_the_rows_are_there_once(
    world: World, warehouse: Warehouse, load_settings: Settings
) -> None:
    async with loading(world, load_settings) as here:
        killed, results = here.claim(), list[Result]()
        async with here.staged_attempt(killed, results):
            [runner] = here.engine.runners()
            os.kill(runner.pid or 0, signal.SIGKILL)
        assert results[0].code == "RUNNER_DIED"
        assert here.finish(results[0]) == "accepted"
        assert warehouse.do("SELECT count(*) FROM loaded") == [(0,)]
        assert f"loaded__attempt_{killed.attempt}" in warehouse.tables()

        lost = here.claim()
        assert (await here.run(lost)).outcome == "DONE"
        # The test does not call finish(), as if the daemon had died here.
        assert warehouse.do("SELECT id, name, shard FROM loaded ORDER BY id") == [
            (1, "ann", "s1"),
            (2, "bob", "s1"),
        ]
        assert world.status("loaded", "s1") == "RUNNING"
        here.daemon.crash()
        here.daemon = world.daemon("beta")
        world.do("SELECT dataflow.rescue()")

        cancelled, results = here.claim(), []
        async with here.staged_attempt(cancelled, results):
            world.set_status("loaded", "s1", "RESUBMIT")
        assert (results[0].outcome, results[0].code) == ("FAILED", "LOCKED")
        assert here.finish(results[0]) == "fenced"
        [[published]] = warehouse.do("SELECT attempt FROM dataflow_published")
        assert published == lost.attempt

        last = here.claim()
        done = await here.run(last)
        assert done.outcome == "DONE", done.error
        assert here.finish(done) == "accepted"
    assert world.status("loaded", "s1") == "READY"
    assert warehouse.do("SELECT id, name FROM loaded ORDER BY id") == [(1, "ann"), (2, "bob")]
    assert warehouse.do("SELECT fence, attempt, rows FROM dataflow_published") == [
        (last.attempt, last.attempt, 2)
    ]
    assert warehouse.tables() == {"loaded", "dataflow_published"}
    [[location, rows]] = world.rows("SELECT location, rows FROM dataflow.manifest WHERE datasetid = 'loaded'")
    assert location.startswith("postgres://")
    assert location.endswith("/public.loaded")
    assert rows == 2
