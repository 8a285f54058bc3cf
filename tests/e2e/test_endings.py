"""Every kind of job ends as the table of dataflowd.model.endings says. No Spark starts here: what a running job does
to its end is in tests/spark/test_engine.py and tests/e2e/test_script.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

import dataflowd.flow
from dataflowd.engine import orders as orders_of_engine
from dataflowd.engine.command import CommandEngine
from dataflowd.engine.orders import Orders
from dataflowd.engine.spark import SparkEngine
from dataflowd.flow.loaded import Declared
from dataflowd.host.settings import Current
from dataflowd.model.endings import ENDINGS
from dataflowd.model.errors import DatabaseUnreachableError
from tests.attempts import claimed, ordered

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt, Result
    from tests.fix_world import World

FLOW = """
[flow]
name = "roads"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
[dataset.of_python]
location = "{root}/of_python"
[dataset.of_sql]
location = "{root}/of_sql"
[dataset.of_command]
location = "{root}/of_command"
[dataset.of_submit]
location = "{root}/of_submit"
[job.python]
python = "code:work"
inputs = ["raw"]
outputs = ["of_python"]
[job.sql]
sql = "code.sql"
inputs = ["raw"]
outputs = ["of_sql"]
[job.command]
command = ["./code.sh"]
inputs = ["raw"]
outputs = ["of_command"]
[job.submit]
spark_submit = ["code.py"]
inputs = ["raw"]
outputs = ["of_submit"]
"""
FILES = {
    "flow.toml": FLOW,
    "code.py": "from dataflowd import job\n\n\n@job\ndef work(ctx):\n    pass\n",
    "code.sql": "SELECT * FROM raw",
    "code.sh": "#!/bin/sh\nexit 0\n",
}
JOBS = ("python", "sql", "command", "submit")
KNOWN = {(ending.outcome, ending.code, ending.retry) for ending in ENDINGS}


@dataclass
class Site:
    world: World
    settings: Settings
    declared: Declared
    attempts: dict[str, Attempt]

    @property
    def directory(self) -> Path:
        return self.settings.flows[0].parent

    def engines(self, job: str) -> list[CommandEngine | SparkEngine]:
        """The engines that can run this job."""
        current = Current(self.settings)
        orders = Orders(current)
        commands = CommandEngine(current, self.declared, orders, is_looked_at=True)
        spark = SparkEngine(current, self.declared, orders, commands)
        return [spark, commands] if job in {"command", "submit"} else [spark]


@pytest.fixture
def site(world: World, settings: Settings, tmp_path: Path) -> Site:
    directory = tmp_path / "flow"
    directory.mkdir()
    for name, text in FILES.items():
        (directory / name).write_text(text)
    (directory / "code.sh").chmod(0o755)
    current = settings.model_copy(
        update={"data_dir": tmp_path / "data", "flows": [directory / "flow.toml"], "runners": 1}
    )
    declared = Declared(current)
    dataflowd.flow.apply(world.connection, declared.flows["roads"])
    raw = Path(current.effective_root) / "raw"
    raw.mkdir(parents=True)
    (raw / "1.csv").write_text("1\n")
    world.ready("raw", "1")
    attempts = {found.job: claimed(found) for found in world.daemon().claim(len(JOBS))}
    return Site(world, current, declared, attempts)


def spoil_code(site: Site) -> None:
    """Makes the code unreadable as on a broken disk: reading the first byte of /proc/self/mem fails with EIO, also for root."""
    for name in ("code.py", "code.sql", "code.sh"):
        (site.directory / name).unlink()
        (site.directory / name).symlink_to("/proc/self/mem")


def move_input(site: Site) -> None:
    site.world.connection.execute("UPDATE dataflow.dataset SET format = 'json' WHERE datasetid = 'raw'")


def lose_claim(site: Site) -> None:
    other = "00000000-0000-0000-0000-000000000001"
    site.attempts = {job: replace(attempt, token=other) for job, attempt in site.attempts.items()}


def forget_job(site: Site) -> None:
    site.declared.flows.clear()


def stop_database(site: Site) -> None:
    site.settings = site.settings.model_copy(update={"dsn": SecretStr("host=localhost port=1 dbname=none")})


def spoil_log(site: Site) -> None:
    """No log can be written: a file is in the place of its directory."""
    (site.directory / "log").touch()
    site.settings = site.settings.model_copy(update={"log_dir": site.directory / "log"})


def spoil_spool(site: Site) -> None:
    """No script can have a directory of its own."""
    site.settings.data_dir.mkdir(exist_ok=True)
    (site.settings.data_dir / "run").touch()


def remove_java(site: Site) -> None:
    site.settings = site.settings.model_copy(update={"java_home": site.directory / "no_java"})


@pytest.mark.parametrize(
    ("happens", "outcome", "code", "jobs"),
    [
        (spoil_code, "FAILED", "INVALID_CODE", JOBS),
        (move_input, "FAILED", "INVALID_ORDER", JOBS),
        (forget_job, "FAILED", "NOT_FOUND", JOBS),
        (spoil_log, "FAILED", "CANNOT_START", JOBS),
        (spoil_spool, "FAILED", "CANNOT_START", ("command", "submit")),
        (remove_java, "FAILED", "EMBEDDED_FAILED", ("python", "sql", "submit")),
        (lose_claim, "RETURNED", None, JOBS),
        (stop_database, "RETURNED", None, JOBS),
    ],
)
async def test_every_kind_of_job_ends_alike(
    site: Site, happens: Callable[[Site], None], outcome: str, code: str | None, jobs: tuple[str, ...]
) -> None:
    happens(site)
    for job in jobs:
        for engine in site.engines(job):
            result = await _run(engine, site.attempts[job])
            assert (job, result.outcome, result.code) == (job, outcome, code), result.error
            assert (result.outcome, result.code, result.retry) in KNOWN


async def _run(engine: CommandEngine | SparkEngine, attempt: Attempt) -> Result:
    def on_start() -> None:
        pytest.fail("the job's code must not begin")

    async with engine.opened():
        return await engine.run(await ordered(engine, attempt), on_start)


async def test_an_error_of_the_host_is_logged_with_its_traceback_on_every_road(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil_log(site)
    for job in JOBS:
        for engine in site.engines(job):
            capsys.readouterr()
            await _run(engine, site.attempts[job])
            said = capsys.readouterr().err
            [event] = [line for line in said.splitlines() if "attempt.cannot_start" in line]
            assert f"job={job}" in event
            assert "dataid=1" in event
            assert "NotADirectoryError" in said.partition(event)[2]


FAULTY_ORDER = """
    CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''it cannot be stored''; END';
    CREATE TRIGGER fail BEFORE INSERT ON dataflow.evidence FOR EACH ROW WHEN (NEW.attempt = {}) EXECUTE FUNCTION public.fail()
"""


class CountingOrders(Orders):
    asked: list[str]

    async def _call(self, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        self.asked.append(name)
        return await super()._call(name, parameters)


async def test_attempts_that_were_claimed_together_get_their_orders_in_one_call(site: Site) -> None:
    orders = CountingOrders(Current(site.settings))
    orders.asked = []
    attempts = list(site.attempts.values())
    try:
        for _ in range(2):
            taken = [each async for each in orders.take(attempts)]
            found = [(await orders.ordered(each, site.declared)).order.attempt for each in taken]
            assert found == [attempt.attempt for attempt in attempts]
    finally:
        await orders.close()
    # The code version of each job is reported once, and not again with the next attempt.
    assert orders.asked == ["work_orders", *["code_versions"] * len(JOBS), "work_orders"]


async def _take_with_a_faulty_order(site: Site) -> tuple[list[str], list[Exception | None]]:
    """Takes the orders of all attempts, the first of which fails. Returns the calls, and why each attempt has no order."""
    orders = CountingOrders(Current(site.settings))
    orders.asked = []
    attempts = list(site.attempts.values())
    site.world.connection.execute(FAULTY_ORDER.format(attempts[0].attempt))
    try:
        taken = [each.order async for each in orders.take(attempts)]
    finally:
        await orders.close()
    return orders.asked, [half.failure for half in taken if half is not None]


async def test_an_order_that_cannot_be_composed_keeps_no_other_attempt_of_its_claim_back(site: Site) -> None:
    """Each order is then asked for alone, and given as soon as it is there."""
    asked, failures = await _take_with_a_faulty_order(site)
    first, *others = failures
    assert first is not None
    assert others == [None] * (len(site.attempts) - 1)
    assert asked == ["work_orders"] * (1 + len(site.attempts))


async def test_attempts_whose_orders_take_too_long_are_given_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each order could wait for its own timeout, one after the other, while the attempts hold their places."""
    monkeypatch.setattr(orders_of_engine, "TAKE_SECONDS", 0.0)
    asked, failures = await _take_with_a_faulty_order(site)
    assert {type(failure) for failure in failures} == {DatabaseUnreachableError}
    assert asked == ["work_orders"]
