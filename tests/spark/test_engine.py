"""The engine for Spark with real runners and a real Postgres. The tests make the calls that a daemon would make."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import dataflowd.flow
from dataflowd.engine.command import CommandEngine, log_path
from dataflowd.engine.orders import Orders
from dataflowd.engine.runners import IS_STARTING, PROBE_AFTER_SECONDS
from dataflowd.engine.spark import SparkEngine
from dataflowd.flow.loaded import Declared
from dataflowd.host.settings import Current
from tests.attempts import claimed, ordered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dataflowd.engine.runner import Runner
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt, Result
    from tests.fix_world import World

FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
schema = "id bigint, name string"
[dataset.out]
location = "{root}/out"
[dataset.out.checks]
min_rows = 1
unique = ["id"]
[job.work]
python = "shop:work"
inputs = ["raw"]
outputs = ["out"]
max_attempts = 2
[job.work.spark]
"spark.sql.shuffle.partitions" = 1
"spark.driver.memory" = "512m"
"""

SHOP = """
import os, sys, threading, time
from dataflowd import job

@job
def work(ctx):
    print("working on", ctx.dataid, "password=hunter2")
    raw = ctx.read("raw")
    what = ctx.dataid.split("-")[0]
    if what != "deaf":
        open(os.path.join(os.path.dirname(__file__), "begun-" + ctx.dataid), "w").close()
    if what == "raise":
        raise ValueError("no such customer")
    if what == "exit":
        sys.exit("enough")
    if what == "nothing":
        return None
    if what == "frame":
        return raw
    if what == "nosuch":
        return ctx.write("uot", raw)
    if what == "die":
        os._exit(9)
    if what == "thread":
        threading.Thread(target=time.sleep, args=(60,), name="left behind", daemon=True).start()
    if what == "loop":
        while not ctx.cancelled or True:
            time.sleep(0.01)
    while what == "deaf":
        try:
            open(os.path.join(os.path.dirname(__file__), "begun-" + ctx.dataid), "w").close()
            time.sleep(0.01)
        except BaseException:
            pass
    if what == "spin":
        from pyspark.sql import functions as F
        raw.crossJoin(ctx.spark.range(10**12)).agg(F.sum(F.hash("name"))).collect()
    if what == "stop":
        ctx.spark.stop()
    if what == "environment":
        print("DSN" if any("DSN" in name or "TOKEN" in name for name in os.environ) else "nothing to see")
    ctx.write("out", raw)
"""


@dataclass
class Shop:
    """One flow, one claiming session, one engine."""

    world: World
    settings: Settings
    engine: SparkEngine
    daemon: Any
    started: dict[int, anyio.Event] = field(default_factory=dict)

    def claim(self, *dataids: str) -> list[Attempt]:
        directory = Path(self.settings.effective_root) / "raw"
        directory.mkdir(parents=True, exist_ok=True)
        for dataid in dataids:
            (directory / f"{dataid}.csv").write_text("1,ann\n2,bob\nx,eve\n")
        self.world.ready("raw", *dataids)
        return [
            claimed(found)
            for found in self.daemon.claim()
            if found.dataid in dataids  # without retries of earlier attempts, which may be due on a slow host
        ]

    async def run(self, attempt: Attempt) -> Result:
        return await self.engine.run(await ordered(self.engine, attempt), self.beginning(attempt).set)

    def beginning(self, attempt: Attempt) -> anyio.Event:
        """The event that is set when the job's own code begins."""
        return self.started.setdefault(attempt.attempt, anyio.Event())

    async def run_all(self, attempts: list[Attempt]) -> dict[str, Result]:
        results: dict[str, Result] = {}

        async def one(attempt: Attempt) -> None:
            results[attempt.dataid] = await self.run(attempt)

        async with anyio.create_task_group() as group:
            for attempt in attempts:
                group.start_soon(one, attempt)
        return results

    def log(self, attempt: Attempt) -> str:
        return log_path(self.settings.effective_log_dir, attempt).read_text(encoding="utf-8")


@pytest.fixture
def shop_settings(settings: Settings, tmp_path: Path) -> Settings:
    (tmp_path / "flow").mkdir()
    (tmp_path / "flow" / "flow.toml").write_text(FLOW)
    (tmp_path / "flow" / "shop.py").write_text(SHOP)
    return settings.model_copy(
        update={
            "data_dir": tmp_path / "data",
            "flows": [tmp_path / "flow" / "flow.toml"],
            "master": "local[2]",
            "runners": 1,
        }
    )


@asynccontextmanager
async def shop(world: World, settings: Settings) -> AsyncIterator[Shop]:
    declared = Declared(settings)
    dataflowd.flow.apply(world.connection, declared.flows["shop"])
    current = Current(settings)
    orders = Orders(current)
    commands = CommandEngine(current, declared, orders, is_looked_at=True)
    engine = SparkEngine(current, declared, orders, commands)
    async with engine.opened():
        yield Shop(world, settings, engine, world.daemon())


def outputs(settings: Settings) -> list[str]:
    root = Path(settings.effective_root) / "out"
    return sorted(str(path.relative_to(root)) for path in root.glob("*/*"))


def change(settings: Settings, old: str, new: str) -> None:
    """Replaces a text in the job's module."""
    (settings.flows[0].parent / "shop.py").write_text(SHOP.replace(old, new), encoding="utf-8")


def leftovers(settings: Settings) -> list[Path]:
    return list((settings.data_dir / "run").glob("*"))


async def begun(settings: Settings, dataid: str) -> None:
    """Waits until the job's code has begun."""
    while not (settings.flows[0].parent / f"begun-{dataid}").exists():  # noqa: ASYNC110 - another process has no event for us
        await anyio.sleep(0.02)


async def ends(runner: Runner) -> bool:
    with anyio.move_on_after(30):
        await runner.ended.wait()
    return runner.ended.is_set()


def sizes(location: Path) -> dict[str, int]:
    """The sizes of all files without the mark of success and checksums; and the names of leftover temporary directories."""
    return {path.name: path.stat().st_size for path in location.iterdir() if path.name[0] not in "_."} | {
        path.name: 0 for path in location.glob("_temporary")
    }


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")


def assert_told(world: World, mistaken: list[str]) -> None:
    """Checks that the stored error tells the job's author which mistake it was, and in which line."""
    assert {world.status("out", dataid) for dataid in mistaken} == {"FAILED"}
    rows = world.rows("SELECT dataid, error FROM dataflow.attempt WHERE dataid = ANY (%s)", mistaken)
    told = {str(dataid): str(error) for dataid, error in rows}
    assert told["raise-1"].startswith("ValueError: no such customer\n")
    assert told["exit-1"].startswith("the job called sys.exit('enough')\n")
    assert told["nosuch-1"].startswith("job work has no output 'uot' (did you mean 'out'?)\n")
    for dataid in ("raise-1", "exit-1", "nosuch-1"):
        assert 'shop.py", line' in told[dataid].splitlines()[1]
        assert "dataflowd/" not in told[dataid]
    assert "the job returned without writing out" in told["nothing-1"]
    assert "the DataFrame that it returned was not written; call ctx.write" in told["frame-1"]


async def test_warm_runners_execute_publish_and_report_every_mistake(
    world: World, shop_settings: Settings
) -> None:
    async with shop(world, shop_settings) as here:
        mistaken = ["raise-1", "exit-1", "nothing-1", "frame-1", "nosuch-1"]
        dataids = ["good-1", "good-2", "environment-1", *mistaken]
        attempts = {attempt.dataid: attempt for attempt in here.claim(*dataids)}
        results = await here.run_all(list(attempts.values()))

        good = results["good-1"]
        assert (good.outcome, good.code, good.error) == ("DONE", None, None)
        manifest = good.outputs["out"]
        assert manifest["rows"] == sum(file["rows"] for file in manifest["files"]) == 2
        location = Path(manifest["location"])
        assert (
            location
            == Path(here.settings.effective_root)
            / ".attempts"
            / "out"
            / "dataid=good-1"
            / f"attempt={good.attempt}"
        )
        assert sizes(location) == {file["path"]: file["bytes"] for file in manifest["files"]}
        assert [item["details"]["record"] for item in good.quarantine] == ["x,eve"]
        assert {check["name"]: check["passed"] for check in good.checks} == {
            "min_rows": True,
            "unique(id)": True,
        }
        assert good.code_hash
        assert good.config_hash
        assert "working on good-1 password=***" in here.log(attempts["good-1"])
        assert "nothing to see" in here.log(attempts["environment-1"])

        assert 'shop.py", line' in here.log(attempts["raise-1"])

        raised = results["raise-1"]
        assert (raised.outcome, raised.code) == ("FAILED", "JOB_FAILED")

        [runner] = here.engine.runners()
        assert runner.served == len(dataids)
        for dataid, result in results.items():
            document = result.document()
            assert (
                here.daemon.finish(
                    attempts[dataid],
                    **{key: value for key, value in document.items() if key not in {"attempt", "token"}},
                )
                == "accepted"
            )
        assert world.status("out", "good-1") == "READY"
        assert_told(world, mistaken)

        [attempt] = here.claim("thread-1")
        left = await here.run(attempt)
        assert left.outcome == "DONE"
        assert left.usage["left_threads"] == ["left behind"]
        assert "left threads running: left behind" in here.log(attempt)
        assert here.engine.runners() == []

        [attempt] = here.claim("stop-1")
        stopped = await here.run(attempt)
        assert stopped.code == "JOB_FAILED"
        assert str(stopped.error).startswith("the job has stopped Spark, which belongs to the runner")
        assert "in work" in str(stopped.error)
        assert here.engine.runners() == []

        change(shop_settings, 'ctx.write("out", raw)', 'ctx.write("out", raw.limit(1))')
        [attempt] = here.claim("good-3")
        fixed = await here.run(attempt)
        assert fixed.outputs["out"]["rows"] == 1
        assert fixed.code_hash != good.code_hash
        assert (
            world.value("SELECT count(*) FROM dataflow.stale WHERE datasetid = 'out' AND because = '{CODE}'")
            == 3
        )


async def test_attempts_of_a_runner_that_dies_are_returned_and_the_suspect_runs_alone(
    world: World, shop_settings: Settings
) -> None:
    async with shop(world, shop_settings) as here:
        attempts = {attempt.dataid: attempt for attempt in here.claim("die-1", "loop-1")}
        results = await here.run_all(list(attempts.values()))
        assert {result.outcome for result in results.values()} == {"RETURNED"}
        assert "it runs alone next" in str(results["die-1"].error)
        alone = await here.run(attempts["die-1"])
        assert (alone.outcome, alone.code) == ("FAILED", "RUNNER_DIED")
        assert "exit status 9" in str(alone.error)
        assert outputs(here.settings) == []


async def test_cancelling_ends_python_code_spark_jobs_and_code_that_ignores_it(
    world: World, shop_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataflowd.engine.spark.CANCEL_SECONDS", 3.0)
    async with shop(world, shop_settings) as here:
        attempts = {attempt.dataid: attempt for attempt in here.claim("loop-1", "spin-1", "deaf-1")}
        for dataid, survives in (("loop-1", True), ("spin-1", True), ("deaf-1", False)):
            async with anyio.create_task_group() as group:
                group.start_soon(here.run, attempts[dataid])
                await begun(shop_settings, dataid)
                [runner] = here.engine.runners()
                began = time.monotonic()
                group.cancel_scope.cancel()
            assert time.monotonic() - began < 20
            assert runner.ended.is_set() != survives
            assert (here.engine.runners() == [runner]) == survives
            if survives:
                assert runner.pending == {}
                assert await runner.probe()


async def test_cancelling_while_spark_starts_leaves_nothing(world: World, shop_settings: Settings) -> None:
    async with shop(world, shop_settings) as here:
        [attempt] = here.claim("good-1")
        with anyio.move_on_after(1):
            await here.run(attempt)
        [runner] = here.engine.runners()
        assert not runner.is_ready.is_set()
        assert not here.beginning(attempt).is_set()
    assert runner.ended.is_set()
    assert leftovers(shop_settings) == []


async def test_an_attempt_says_that_it_waits_for_an_application_and_that_it_has_one(
    world: World, shop_settings: Settings
) -> None:
    async with shop(world, shop_settings.model_copy(update={"slots": 1})) as here:
        first, second = here.claim("good-1", "good-2")
        told: list[tuple[int, int | None]] = []
        changed = anyio.Event()

        def on_wait(attempt: int, applications: int | None) -> None:
            nonlocal changed
            told.append((attempt, applications))
            changed.set()
            changed = anyio.Event()

        here.engine.on_wait = on_wait
        async with anyio.create_task_group() as later:
            async with anyio.create_task_group() as sooner:
                sooner.start_soon(here.run, first)
                await changed.wait()
                later.start_soon(here.run, second)
                await changed.wait()
                assert told == [(first.attempt, IS_STARTING), (second.attempt, 1)]
                sooner.cancel_scope.cancel()
            while told[-1] != (second.attempt, None):
                await changed.wait()
            later.cancel_scope.cancel()


async def test_the_evidence_of_a_runner_is_reported_before_the_job_begins(
    world: World, shop_settings: Settings
) -> None:
    async with shop(world, shop_settings) as here:
        [attempt] = here.claim("good-1")
        told: list[tuple[int, dict[str, Any]]] = []
        here.engine.on_found = lambda number, found: told.append((number, found))
        result = await here.run(attempt)
        assert result.outcome == "DONE", result.error
        [(number, found)] = told
        assert (number, set(found)) == (
            attempt.attempt,
            {"inputs", "outputs", "code_hash", "config_hash", "directory"},
        )
        [seen] = found["inputs"].values()
        assert seen["files"] >= 1


async def test_reuse_1_is_a_spark_submit_of_its_own(world: World, shop_settings: Settings) -> None:
    path = shop_settings.flows[0]
    path.write_text(FLOW.replace("max_attempts = 2", "max_attempts = 2\nreuse = 1"))
    async with shop(world, shop_settings) as here:
        [attempt] = here.claim("good-1")
        results: dict[str, Result] = {}

        async def run() -> None:
            results.update(await here.run_all([attempt]))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await here.beginning(attempt).wait()
            [runner] = here.engine.runners()
            assert "org.apache.spark.deploy.SparkSubmit" in command_of(runner.pid or 0)
        assert results["good-1"].outcome == "DONE"
        assert here.engine.runners() == []


async def test_runners_are_replaced_by_count_age_memory_silence_and_idleness(
    world: World, shop_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataflowd.engine.runner.PROBE_SECONDS", 5.0)
    monkeypatch.setattr("dataflowd.engine.runners.SWEEP_SECONDS", 0.1)
    path = shop_settings.flows[0]
    path.write_text(FLOW.replace("max_attempts = 2", "max_attempts = 2\nreuse = 3"))
    async with shop(world, shop_settings) as here:

        async def served_by(dataid: str) -> Runner:
            [attempt] = here.claim(dataid)
            async with anyio.create_task_group() as group:
                group.start_soon(run, attempt)
                while not (found := [r for r in here.engine.runners() if attempt.attempt in r.pending]):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            return found[0]

        async def run(attempt: Attempt) -> None:
            assert (await here.run(attempt)).outcome == "DONE"

        first = await served_by("good-1")
        assert await served_by("good-2") is first
        assert not first.ended.is_set()
        assert await served_by("good-3") is first
        assert first.ended.is_set()  # it has served three attempts, its `reuse`

        full = await served_by("full-1")
        assert await full.probe()
        with monkeypatch.context() as patch:
            patch.setattr("dataflowd.engine.runner.HEAP_SHARE", 0.01)
            assert not await full.probe()
        old = await served_by("good-4")
        assert full.ended.is_set()
        old.born -= shop_settings.runner_age
        assert await ends(old)  # too old for another attempt, it ends before runner_idle has passed
        rooms: list[int] = []
        here.engine.on_room = lambda: rooms.extend(one.served for one in here.engine.runners())
        silent = await served_by("good-5")
        assert 0 in rooms  # a new runner calls on_room, so that the daemon claims for its slots
        assert silent.pid is not None
        os.kill(silent.pid, signal.SIGSTOP)
        silent.idle_since -= PROBE_AFTER_SECONDS
        idle = await served_by("good-6")
        assert silent.ended.is_set()
        idle.idle_since -= shop_settings.runner_idle
        assert await ends(idle)


async def test_an_attempt_whose_start_cannot_be_reported_is_ended_and_its_neighbours_go_on(
    world: World, shop_settings: Settings
) -> None:
    def fail() -> None:
        raise RuntimeError("no metrics today")

    async with shop(world, shop_settings) as here:
        attempts = {attempt.dataid: attempt for attempt in here.claim("loop-1", "loop-2", "good-1")}
        async with anyio.create_task_group() as group:
            group.start_soon(here.run, attempts["loop-2"])
            await begun(shop_settings, "loop-2")
            [runner] = here.engine.runners()
            with anyio.fail_after(60):
                unheard = await here.engine.run(await ordered(here.engine, attempts["loop-1"]), fail)
            assert (unheard.outcome, unheard.code) == ("FAILED", "ENGINE_FAILED")
            assert "no metrics today" in str(unheard.error)
            assert list(runner.pending) == [attempts["loop-2"].attempt]
            assert (await here.run(attempts["good-1"])).outcome == "DONE"
            assert here.engine.runners() == [runner]
            group.cancel_scope.cancel()


SCRIPT_FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
schema = "id bigint, name string"
[dataset.out]
format = "csv"
location = "{root}/out"
schema = "id bigint, name string"
[dataset.out.checks]
min_rows = 1
not_null = ["id"]
unique = { columns = ["name"], severity = "warn" }
range = { id = { min = 0 } }
[job.work]
command = ["./work.sh"]
inputs = ["raw"]
outputs = ["out"]
"""
WORK = """#!/bin/sh
cp "$raw_location" "$out_location/part.csv"
echo '{"rows": 2}' > "$DATAFLOW_REPORT"
"""


def with_script(settings: Settings, declared: str) -> None:
    script = settings.flows[0].parent / "work.sh"
    script.write_text(WORK)
    script.chmod(0o755)
    settings.flows[0].write_text(declared)


async def test_spark_checks_the_files_that_a_script_has_written(
    world: World, shop_settings: Settings
) -> None:
    with_script(shop_settings, SCRIPT_FLOW)
    async with shop(world, shop_settings) as stage:
        [good, bad] = stage.claim("good", "bad")
        good, bad = sorted([good, bad], key=lambda one: one.dataid, reverse=True)
        raw = Path(shop_settings.effective_root) / "raw"
        (raw / "good.csv").write_text("1,ann\n2,ann\n")
        (raw / "bad.csv").write_text("1,ann\n-2,bob\n")
        done = await stage.run(good)
        assert done.outcome == "DONE", done.error
        found = {one["name"]: one["passed"] for one in done.checks}
        assert found == {
            "min_rows": True,
            "not_null(id)": True,
            "range(id)": True,
            "schema": True,
            "unique(name)": False,
        }
        refused = await stage.run(bad)
        assert (refused.outcome, refused.code, refused.outputs) == ("FAILED", "CHECK_FAILED", {})
        assert "range(id): observed 1 of 2 rows, such as '-2', expected min 0" in str(refused.error)
        assert stage.beginning(bad).is_set()


def test_a_daemon_without_spark_does_not_run_scripts_whose_files_need_spark_checks(
    shop_settings: Settings,
) -> None:
    with_script(shop_settings, SCRIPT_FLOW)
    assert Declared(shop_settings).jobs(commands_only=True) == []
    with_script(shop_settings, re.sub("(not_null|unique|range) = .*", "", SCRIPT_FLOW))
    assert Declared(shop_settings).jobs(commands_only=True) == ["work"]
