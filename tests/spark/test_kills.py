"""Kills the driver, its JVM or a Python worker with SIGKILL in each of the four steps; and wakes a runner too late.

One engine serves all cases, and nothing is cleaned up between two of them: a killed attempt is retried, and published once.
"""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from psycopg.types.json import Jsonb
from pyarrow import parquet

import dataflowd.flow
from dataflowd.engine.command import CommandEngine
from dataflowd.engine.orders import Orders
from dataflowd.engine.spark import SparkEngine
from dataflowd.flow.loaded import Declared
from dataflowd.host.settings import Current
from tests.attempts import claimed, ordered
from tests.e2e.ctl_flow import ok
from tests.processes import children_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dataflowd.engine.runner import Runner
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt, Result
    from tests.fix_postgres import RunCtl
    from tests.fix_world import Daemon, World

FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
schema = "id bigint"
[dataset.out]
location = "{root}/out"
[dataset.out.checks]
custom = ["shop:look"]
[job.work]
python = "shop:work"
inputs = ["raw"]
outputs = ["out"]
max_attempts = 5
retry_delay = "0s"
slots = 1
[job.work.spark]
"spark.driver.memory" = "512m"
"""

# Where the file hold-STEP-DATAID exists, the process writes its pid into it, and waits until it is removed.
SHOP = """
import os, time
from dataflowd import job

HERE = os.path.dirname(__file__)

def hold(step, dataid):
    path = os.path.join(HERE, f"hold-{step}-{dataid}")
    if os.path.exists(path):
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        while os.path.exists(path):
            time.sleep(0.02)

def in_a_worker(frame, step, dataid):
    def each(rows):
        hold(step, dataid)
        yield from rows
    return frame.mapInPandas(each, frame.schema)

@job
def work(ctx):
    ctx.write("out", in_a_worker(ctx.read("raw"), "run", ctx.dataid))

def look(frame):
    dataid = frame.inputFiles()[0].split("dataid=")[1].split("/")[0]
    return in_a_worker(frame, "validate", dataid).count() == 3
"""

# Which process is killed in which step. Only `run` kills both the driver and the JVM, because each costs the start of a runner.
CASES = {
    "run": ("driver", "jvm", "worker"),
    "validate": ("jvm", "worker"),
    "prepare": ("driver", "worker"),
    "publish": ("jvm",),
}


@dataclass
class Shop:
    world: World
    settings: Settings
    engine: SparkEngine

    @property
    def directory(self) -> Path:
        return self.settings.flows[0].parent

    def claim(self, daemon: Daemon) -> dict[str, Attempt]:
        return {found.dataid: claimed(found) for found in daemon.claim()}

    def arrive(self, *dataids: str) -> None:
        raw = Path(self.settings.effective_root) / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for dataid in dataids:
            (raw / f"{dataid}.csv").write_text("1\n2\n3\n")
        self.world.ready("raw", *dataids)

    def hold(self, step: str, dataid: str) -> Path:
        path = self.directory / f"hold-{step}-{dataid}"
        path.touch()
        return path

    async def runner_of(self, attempt: Attempt) -> Runner:
        while True:
            for runner in self.engine.runners():
                if attempt.attempt in runner.pending:
                    return runner
            await anyio.sleep(0.02)

    async def run(self, attempt: Attempt) -> Result:
        """Runs the attempt, and reports its start as a daemon does: without it, nothing can have been written."""

        def tell() -> None:
            self.world.do("SELECT dataflow.began(%s, %s, 0, NULL)", attempt.attempt, attempt.token)

        return await self.engine.run(await ordered(self.engine, attempt), tell)

    def visible(self, dataid: str) -> list[list[int]]:
        """The rows of each published version, as a reader finds them."""
        found = self.world.rows("SELECT location FROM dataflow.manifest WHERE dataid = %s", dataid)
        return [sorted(parquet.read_table(location)["id"].to_pylist()) for [location] in found]


@pytest.fixture
def shop_settings(settings: Settings, tmp_path: Path) -> Settings:
    (tmp_path / "flow").mkdir()
    (tmp_path / "flow" / "flow.toml").write_text(FLOW)
    (tmp_path / "flow" / "shop.py").write_text(SHOP)
    changes = {"flows": [tmp_path / "flow" / "flow.toml"], "master": "local[1]", "runners": 2}
    return settings.model_copy(update=changes)


@asynccontextmanager
async def shop(world: World, settings: Settings) -> AsyncIterator[Shop]:
    declared = Declared(settings)
    dataflowd.flow.apply(world.connection, declared.flows["shop"])
    current = Current(settings)
    orders = Orders(current)
    engine = SparkEngine(current, declared, orders, CommandEngine(current, declared, orders))
    async with engine.opened():
        yield Shop(world, settings, engine)


def processes(runner: Runner) -> dict[str, list[int]]:
    assert runner.pid is not None
    [jvm] = children_of(runner.pid)
    workers = [worker for parent in children_of(jvm) for worker in children_of(parent)]
    return {"driver": [runner.pid], "jvm": [jvm], "worker": workers}


async def held(path: Path) -> None:
    while not path.stat().st_size:  # noqa: ASYNC110, ASYNC240 - another process has no event for us
        await anyio.sleep(0.02)


def directories(settings: Settings) -> set[str]:
    return {str(path) for path in Path(settings.effective_root).glob(".attempts/out/*/*")}


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


async def killed_in_job_code(here: Shop, attempt: Attempt, step: str, victim: str) -> Result:
    path = here.hold(step, attempt.dataid)
    results: list[Result] = []
    async with anyio.create_task_group() as group:
        group.start_soon(_into, results, here, attempt)
        await held(path)
        kill(processes(await here.runner_of(attempt))[victim])
        path.unlink()
    return results[0]


async def killed_before_job_code(here: Shop, attempt: Attempt, victim: str) -> Result:
    """Stops the driver with SIGSTOP as soon as it has its order, so that the kill comes before job code begins."""
    results: list[Result] = []
    async with anyio.create_task_group() as group:
        group.start_soon(_into, results, here, attempt)
        runner = await here.runner_of(attempt)
        await runner.is_ready.wait()
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGSTOP)
        found = processes(runner)
        kill(found[victim])
        os.kill(runner.pid, signal.SIGCONT)
    return results[0]


async def killed_after_job_code(here: Shop, attempt: Attempt, victim: str) -> Result:
    """Kills the victim after the attempt has ended: the daemon publishes, and the runner takes no part in it."""
    result = await here.run(attempt)
    runner = next(each for each in here.engine.runners() if not each.ended.is_set())
    kill(processes(runner)[victim])
    if victim != "worker":
        await runner.ended.wait()
    return result


async def _into(results: list[Result], here: Shop, attempt: Attempt) -> None:
    results.append(await here.run(attempt))


def finish(daemon: Daemon, result: Result) -> str:
    found = daemon.connection.execute("SELECT verdict FROM dataflow.finish(%s)", [Jsonb([result.document()])])
    [[verdict]] = found.fetchall()
    return str(verdict)


async def killed(here: Shop, daemon: Daemon, attempt: Attempt) -> None:
    """Plays the case of the attempt's dataid, VICTIM-STEP. Until finish() a reader sees nothing of it."""
    victim, step = attempt.dataid.split("-")
    match step:
        case "prepare":
            result = await killed_before_job_code(here, attempt, victim)
        case "publish":
            result = await killed_after_job_code(here, attempt, victim)
        case _:
            result = await killed_in_job_code(here, attempt, step, victim)
    wanted: set[str | None] = {"JOB_FAILED" if victim == "worker" else "RUNNER_DIED"}
    if step == "publish":
        wanted = {None}
    elif attempt.dataid == "worker-prepare":
        wanted.add(None)  # Spark replaces an idle worker silently
    assert result.code in wanted, (attempt.dataid, result.error)
    assert here.visible(attempt.dataid) == []
    assert finish(daemon, result) == "accepted"


async def test_after_a_kill_in_any_step_the_retry_publishes_once(
    world: World, shop_settings: Settings, run_ctl: RunCtl
) -> None:
    async with shop(world, shop_settings) as here:
        daemon = world.daemon()
        for step in ("run", "validate", "prepare"):
            here.arrive(*(f"{victim}-{step}" for victim in CASES[step]))
            async with anyio.create_task_group() as group:
                for attempt in here.claim(daemon).values():
                    group.start_soon(killed if attempt.number == 1 else published, here, daemon, attempt)
        async with anyio.create_task_group() as group:
            for attempt in here.claim(daemon).values():
                group.start_soon(published, here, daemon, attempt)
        here.arrive(*(f"{victim}-publish" for victim in CASES["publish"]))
        for attempt in here.claim(daemon).values():
            await killed(here, daemon, attempt)
        for dataid in (f"{victim}-{step}" for step, victims in CASES.items() for victim in victims):
            assert here.visible(dataid) == [[1, 2, 3]]
            assert world.status("out", dataid) == "READY"
    assert "removed" in ok(run_ctl("gc", "--grace", "0s", "--yes"))
    locations = {location for [location] in world.rows("SELECT location FROM dataflow.manifest")}
    assert directories(shop_settings) == locations


async def published(here: Shop, daemon: Daemon, attempt: Attempt) -> None:
    assert finish(daemon, await here.run(attempt)) == "accepted"


async def test_a_runner_that_wakes_after_its_run_was_given_away_cannot_publish(
    world: World, shop_settings: Settings
) -> None:
    # The first runner sleeps until another one has started and worked: it must not be killed as silent meanwhile.
    patient = shop_settings.model_copy(update={"runner_silence": 3600})
    async with shop(world, patient) as here:
        results: list[Result] = []
        first = world.daemon("first")
        here.arrive("d1")
        [attempt] = here.claim(first).values()
        path = here.hold("run", "d1")
        async with anyio.create_task_group() as group:
            group.start_soon(_into, results, here, attempt)
            await held(path)
            asleep = [pid for pids in processes(await here.runner_of(attempt)).values() for pid in pids]
            for pid in asleep:
                os.kill(pid, signal.SIGSTOP)
            path.unlink()
            first.crash()
            assert world.rows("SELECT FROM dataflow.rescue()")
            second = world.daemon("second")
            [again] = here.claim(second).values()
            assert finish(second, await here.run(again)) == "accepted"
            before = world.everything()
            for pid in asleep:
                os.kill(pid, signal.SIGCONT)
        [late] = results
        assert late.outcome == "DONE"
        assert late.outputs["out"]["rows"] == 3
        assert finish(second, late) == "fenced"
        assert world.everything() == before
        assert here.visible("d1") == [[1, 2, 3]]
