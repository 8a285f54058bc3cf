"""Fix and continue: chunks that older code made are listed as stale before the new code runs."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from dataflowd import flow as flows
from dataflowd.model.errors import EXIT
from tests.e2e.ctl_flow import asked, ok
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_daemon import Shop, StartDaemon
    from tests.fix_postgres import RunCtl
    from tests.fix_world import World

FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
[dataset.clean]
location = "{root}/clean"
[job.work]
python = "jobs:work"
inputs = ["raw"]
outputs = ["clean"]
"""
CODE = "from dataflowd import job\n\n\n@job\ndef work(ctx):\n    ctx.write('clean', ctx.read('raw'))\n"
COMMENTED = '"""All jobs."""\n' + CODE.replace("    ctx", "    # as it is\n    ctx")
FIXED = CODE.replace("ctx.read('raw')", "ctx.read('raw').distinct()")


@pytest.fixture
def code(shop: Shop, tmp_path: Path) -> Path:
    shop.flow.write_text(FLOW, encoding="utf-8")
    path = tmp_path / "jobs.py"
    path.write_text(CODE, encoding="utf-8")
    return path


def made(world: World, dataid: str) -> None:
    """Makes a chunk with the code version that the database has."""
    world.ready("raw", dataid)
    daemon = world.daemon(f"maker-{dataid}")
    [attempt] = daemon.claim()
    [[code_hash, config_hash]] = world.rows("SELECT code_hash, config_hash FROM dataflow.job")
    assert daemon.finish(attempt, code_hash=code_hash, config_hash=config_hash) == "accepted"
    daemon.disconnect()


def stale(run_ctl: RunCtl) -> list[tuple[str, list[str]]]:
    return [(chunk["dataid"], chunk["stale"]) for chunk in asked(run_ctl, "chunks", "clean", "--stale")]


def test_apply_reports_changed_code_and_only_chunks_of_the_old_code_run_again(
    world: World, shop: Shop, code: Path, run_ctl: RunCtl
) -> None:
    ok(run_ctl("apply", str(shop.flow)))
    made(world, "old")
    code.write_text(COMMENTED, encoding="utf-8")
    assert "3 unchanged" in ok(run_ctl("apply", str(shop.flow)))
    assert stale(run_ctl) == []

    code.write_text(FIXED, encoding="utf-8")
    assert "~ job work: changed (code_hash)" in ok(run_ctl("apply", str(shop.flow), "--dry-run"))
    assert stale(run_ctl) == []
    told = ok(run_ctl("apply", str(shop.flow)))
    assert "~ job work: changed (code_hash)" in told
    assert "`dataflowctl accept work` takes it as it is" in told
    again = ok(run_ctl("apply", str(shop.flow)))
    assert "3 unchanged" in again
    assert "dataflowctl accept" not in again
    made(world, "new")
    assert stale(run_ctl) == [("old", ["CODE"])]
    assert world.rows("SELECT dataid, because, changed FROM dataflow.stale") == [
        ("old", ["CODE"], ["jobs.py:work"])
    ]
    assert "CODE (jobs.py:work)" in ok(run_ctl("chunks", "clean", "--stale"))
    assert asked(run_ctl, "resubmit", "work", "--stale", "--yes")["count"] == 1
    assert world.queue() == {("work", "old")}
    made_again = world.daemon("again")
    assert made_again.runs() == {("work", "old")}


def test_a_change_that_the_job_does_not_reach_makes_nothing_stale(
    world: World, shop: Shop, code: Path, run_ctl: RunCtl
) -> None:
    ok(run_ctl("apply", str(shop.flow)))
    made(world, "old")
    code.write_text(CODE + "\n\ndef other(ctx):\n    return 1\n", encoding="utf-8")
    assert "3 unchanged" in ok(run_ctl("apply", str(shop.flow)))
    assert stale(run_ctl) == []


def test_what_older_code_made_is_accepted_with_the_code_that_was_shown(
    world: World, shop: Shop, code: Path, run_ctl: RunCtl
) -> None:
    ok(run_ctl("apply", str(shop.flow)))
    made(world, "1")
    made(world, "2")
    assert "no such chunk of work" in ok(run_ctl("accept", "work", "--yes"))
    code.write_text(FIXED, encoding="utf-8")
    ok(run_ctl("apply", str(shop.flow)))
    told = ok(run_ctl("why", "work", "1"))
    assert "the job's code has changed since (jobs.py:work)" in told
    assert "dataflowctl accept work --dataid 1 takes it as it is" in told

    assert "would accept 2 chunks; nothing was changed" in ok(run_ctl("accept", "work", "--dry-run"))
    refused = run_ctl("accept", "work")
    assert (refused.returncode, stale(run_ctl)) == (EXIT["NOT_ALLOWED"], [("1", ["CODE"]), ("2", ["CODE"])])
    done = asked(run_ctl, "accept", "work", "--dataid", "1", "--reason", "same rows", "--yes")
    assert [(row["dataid"], row["changed"]) for row in done["chunks"]] == [("1", ["jobs.py:work"])]
    assert stale(run_ctl) == [("2", ["CODE"])]
    assert "accepted it as it is with the code of now" in (told := ok(run_ctl("why", "work", "1")))
    assert "same rows" in told
    assert "same rows" in ok(run_ctl("history", "work", "1"))
    assert run_ctl("accept", "nothing", "--yes").returncode == EXIT["NOT_FOUND"]


def test_an_idle_daemon_reports_changed_code_when_it_starts_and_when_it_reloads(
    world: World, shop: Shop, code: Path, start_daemon: StartDaemon, run_ctl: RunCtl
) -> None:
    flows.apply(world.connection, flows.load(shop.flow, shop.settings))
    daemon = start_daemon(engine="spark")
    daemon.stop()
    made(world, "old")
    assert stale(run_ctl) == []
    code.write_text(FIXED, encoding="utf-8")
    daemon = start_daemon(engine="spark")
    assert stale(run_ctl) == [("old", ["CODE"])]
    code.write_text(CODE, encoding="utf-8")
    daemon.signal(signal.SIGHUP)
    daemon.said("daemon.reloaded")
    eventually(lambda: stale(run_ctl) == [])
    [[told]] = world.rows(
        "SELECT reason FROM dataflow.event WHERE kind = 'daemon' AND to_status = 'RELOADED'"
    )
    assert "read its flow files again and has the code of " in told
    code_hashes = world.rows(
        "SELECT from_status, to_status FROM dataflow.event WHERE kind = 'job' AND code = 'code_hash' ORDER BY event"
    )
    assert code_hashes[-1] == code_hashes[-2][::-1], (
        "the last change goes from the fixed code back to the first one"
    )
