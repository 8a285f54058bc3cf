"""Garbage collection by the command and by the daemon, on a real disk: it removes the directories that nobody needs, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dataflowd.model.errors import EXIT
from dataflowd.model.work_order import attempt_location
from dataflowd.storage import gc
from tests.e2e.ctl_flow import asked, ok
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataflowd.host.settings import Settings
    from tests.fix_daemon import StartDaemon
    from tests.fix_postgres import RunCtl
    from tests.fix_world import Attempt, Daemon, World

NO_RETENTION = {"DATAFLOW_GC_RETENTION": "0"}
BEGAN = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def root(settings: Settings) -> Path:
    path = Path(settings.effective_root)
    path.mkdir(parents=True)
    return path


@pytest.fixture
def stock(world: World, root: Path) -> World:
    """Raw -> make -> out -> use -> used; the attempts of `make` write files."""
    world.dataset("out", location=f"{root}/out")
    world.dataset("used", location=f"{root}/by_day/{{dataid}}/used-{{dataid}}")
    world.job("make", "raw", "out", max_attempts=1)
    world.job("use", "out", "used")
    return world


def write(root: Path, attempt: Attempt, place: str = "") -> Path:
    """Writes the files of an attempt; `place` is where an older release wrote them."""
    new = attempt_location(f"{root}/out", attempt.dataid, attempt.attempt, [str(root)])
    path = Path(place.format(attempt=attempt)) / f"attempt={attempt.attempt}" if place else Path(new)
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "part-0").write_text("12345")
    return path


def publish(world: World, daemon: Daemon, root: Path, dataid: str) -> Path:
    """Publishes a version of a chunk of `out`, without a run of `use`."""
    if world.status("out", dataid) is None:
        world.ready("raw", dataid)
    else:
        world.set_status("out", dataid, "RESUBMIT")
    [attempt] = [each for each in daemon.claim() if each.run == ("make", dataid)]
    path = write(root, attempt)
    assert daemon.finish(attempt, started=BEGAN, outputs={"out": {"location": str(path)}}) == "accepted"
    return path


def collected(run_ctl: RunCtl, *arguments: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The directories that were removed, each with the reason."""

    def run(*words: str, env: Mapping[str, str | None] | None = env, stdin: str = "") -> Any:
        return run_ctl(*words, env=env, stdin=stdin)

    answer = asked(run, "gc", "--yes", *arguments)
    return {each["path"]: each["why"] for each in answer["directories"] if each["kept"] is None}


def test_only_outputs_of_dead_attempts_are_collected_and_only_after_the_grace(
    stock: World, root: Path, run_ctl: RunCtl
) -> None:
    daemon = stock.daemon()
    stock.do("SELECT dataflow.pause('job:use')")
    stock.ready("raw", "failed", "returned", "unstarted", "live", "done", "lost")
    attempts = {attempt.dataid: attempt for attempt in daemon.claim()}
    written = {dataid: write(root, attempt) for dataid, attempt in attempts.items()}
    daemon.fail(attempts["failed"], started=BEGAN)
    # It wrote, and was stopped before its daemon learned that it had started.
    daemon.finish(attempts["returned"], outcome="RETURNED")
    daemon.fail(attempts["unstarted"])
    daemon.finish(attempts["done"], started=BEGAN, outputs={"out": {"location": str(written["done"])}})
    other = written["failed"].with_name("attempt=999999")
    other.mkdir()

    assert collected(run_ctl) == {}
    shown = ok(run_ctl("gc", "--grace", "0s", "--dry-run"))
    assert "would remove 2 outputs, 10 B" in shown
    refused = run_ctl("gc", "--grace", "0s")
    assert (refused.returncode, written["failed"].is_dir()) == (EXIT["NOT_ALLOWED"], True)
    assert collected(run_ctl, "--grace", "0s") == {
        str(written["failed"]): "FAILED",
        str(written["returned"]): "RETURNED",
    }
    left = set(root.glob(".attempts/out/**/attempt=*"))
    assert left == {other, *(written[dataid] for dataid in ("unstarted", "live", "done", "lost"))}

    # A runner that was taken for dead writes again: twice, and each time its files are removed.
    daemon.crash()
    stock.do("SELECT dataflow.pause()")
    assert stock.rows("SELECT FROM dataflow.rescue()")
    for _ in range(2):
        assert collected(run_ctl, "--grace", "0s")[str(written["lost"])] == "LOST"
        assert not written["lost"].exists()
        write(root, attempts["lost"])


def test_a_superseded_version_goes_when_its_time_is_over_and_nobody_reads_it(
    stock: World, root: Path, run_ctl: RunCtl
) -> None:
    daemon = stock.daemon()
    first = publish(stock, daemon, root, "d1")
    [reader] = daemon.claim()
    assert reader.inputs == {"out/d1": 1}
    stock.as_framework(
        "INSERT INTO dataflow.manifest (datasetid, dataid, version, attempt) VALUES ('out', 'd1', 2, 999)",
        "UPDATE dataflow.datastatus SET manifest = 2, version = 2 WHERE locktype = 'OUT' AND datasetid = 'out'",
    )
    assert collected(run_ctl, env=NO_RETENTION) == {}
    daemon.fail(reader)
    assert collected(run_ctl) == {}
    assert stock.value("SELECT collected FROM dataflow.manifest WHERE version = 1") is None
    assert collected(run_ctl, env=NO_RETENTION) == {str(first): "SUPERSEDED"}
    assert stock.value("SELECT collected FROM dataflow.manifest WHERE version = 1") is not None


@pytest.mark.parametrize(
    "place", ["dataid={attempt.dataid}", ".attempts/dataid={attempt.dataid}"], ids=["pointer", "rename"]
)
def test_outputs_where_0_1_0_wrote_them_are_collected_too(
    stock: World, root: Path, run_ctl: RunCtl, place: str
) -> None:
    daemon = stock.daemon()
    stock.do("SELECT dataflow.pause('job:use')")
    stock.ready("raw", "failed", "kept", "again")
    attempts = {attempt.dataid: attempt for attempt in daemon.claim()}
    beside = {dataid: write(root, attempt, f"{root}/out/{place}") for dataid, attempt in attempts.items()}
    daemon.fail(attempts["failed"], started=BEGAN)
    for dataid in ("kept", "again"):
        daemon.finish(attempts[dataid], started=BEGAN, outputs={"out": {"location": str(beside[dataid])}})
    new = publish(stock, daemon, root, "again")
    gone = collected(run_ctl, "--grace", "0s", env=NO_RETENTION)
    assert gone == {str(beside["failed"]): "FAILED", str(beside["again"]): "SUPERSEDED"}
    assert (beside["kept"].is_dir(), new.is_dir()) == (True, True)


def test_outputs_of_deleted_runs_are_collected(stock: World, root: Path, run_ctl: RunCtl) -> None:
    daemon = stock.daemon()
    stock.do("SELECT dataflow.pause('job:use')")
    kept, run, chunk = (publish(stock, daemon, root, dataid) for dataid in ("kept", "run", "chunk"))
    ok(run_ctl("delete", "make", "--dataid", "run", "--yes"))
    stock.do("SELECT dataflow.delete_chunk('out', 'chunk')")
    assert collected(run_ctl) == {}
    assert collected(run_ctl, "--grace", "0s") == {str(run): "FORGOTTEN", str(chunk): "FORGOTTEN"}
    assert kept.is_dir()


def test_delete_with_data_removes_the_files_and_logs_of_these_runs_at_once(
    stock: World, root: Path, settings: Settings, run_ctl: RunCtl
) -> None:
    daemon = stock.daemon()
    stock.do("SELECT dataflow.pause('job:use')")
    kept, run, chunk = (publish(stock, daemon, root, dataid) for dataid in ("kept", "run", "chunk"))
    stock.do("SELECT dataflow.delete_chunk('out', 'chunk')")
    logs = [settings.effective_log_dir / "make" / dataid for dataid in ("kept", "run")]
    for log in logs:
        log.mkdir(parents=True)
        (log / "1.log").write_text("hello\n")
    shown = asked(run_ctl, "delete", "make", "--dataid", "run", "--data", "--dry-run")
    assert [each["path"] for each in shown["directories"]] == [str(run)]
    assert str(run) in ok(run_ctl("delete", "make", "--dataid", "run", "--data", "--dry-run"))
    assert run.is_dir()
    assert "deleted 1 run and 1 output of make" in ok(
        run_ctl("delete", "make", "--dataid", "run", "--data", "--yes")
    )
    assert [path.is_dir() for path in (kept, run.parent, chunk)] == [True, False, True]
    assert [log.is_dir() for log in logs] == [True, False]


def test_gc_follows_no_link_and_stays_below_the_roots(
    stock: World, root: Path, run_ctl: RunCtl, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "precious").mkdir(parents=True)
    daemon = stock.daemon()
    stock.ready("raw", "inside", "chunk", "attempt", "hidden")
    attempts = {attempt.dataid: attempt for attempt in daemon.claim()}
    daemon.fail(*attempts.values(), started=BEGAN)
    inside = write(root, attempts["inside"])
    (inside / "link").symlink_to(outside)
    target = write(outside, attempts["chunk"])
    inside.parent.with_name("dataid=chunk").symlink_to(target.parent)
    hidden = write(outside, attempts["hidden"], f"{outside}/dataid=hidden/.attempts")
    (root / "out" / "dataid=hidden").mkdir(parents=True)
    (root / "out" / "dataid=hidden" / ".attempts").symlink_to(hidden.parent)
    for place in (inside.parent.with_name("dataid=attempt"), root / "out" / "dataid=attempt"):
        place.mkdir()
        (place / f"attempt={attempts['attempt'].attempt}").symlink_to(outside / "precious")
    assert collected(run_ctl, "--grace", "0s") == {str(inside): "FAILED"}
    assert (outside / "precious").is_dir()
    assert target.is_dir()
    assert hidden.is_dir()

    (outside / "out").mkdir()
    stock.do("UPDATE dataflow.dataset SET location = %s WHERE datasetid = 'out'", str(outside / "out"))
    answer = asked(run_ctl, "gc", "--grace", "0s", "--dry-run")
    assert answer["directories"] == []
    assert "outside the allowed roots" in answer["skipped"][0]["why"]
    stock.do("UPDATE dataflow.dataset SET location = 's3a://bucket/out' WHERE datasetid = 'out'")
    assert "is not a path of this host" in ok(run_ctl("gc", "--grace", "0s", "--dry-run"))


def test_a_removal_that_was_killed_is_completed_and_foreign_files_stay(
    stock: World, root: Path, run_ctl: RunCtl
) -> None:
    daemon = stock.daemon()
    stock.ready("raw", "half", "old", "new")
    attempts = {attempt.dataid: attempt for attempt in daemon.claim()}
    daemon.fail(*attempts.values(), started=BEGAN)
    half, old, new = (write(root, attempts[dataid]) for dataid in ("half", "old", "new"))
    aside = half.rename(half.with_name(gc.REMOVING + half.name))
    long_ago, later = 1_000_000_000, 4_000_000_000
    os.utime(old, (long_ago, long_ago))
    os.utime(new, (later, later))
    said = ok(run_ctl("gc", "--grace", "0s", "--yes"))
    assert not aside.exists()
    assert old.is_dir()
    assert f"kept {old}: it is older than the attempt: another database may use the same location" in said
    assert f"kept {new}: it was changed after the attempt's end, by somebody else" in said
    assert "removed 1 output" in said


def test_the_daemon_collects_by_itself_also_where_the_dataid_stands_inside_the_path(
    stock: World, root: Path, start_daemon: StartDaemon, settings: Settings
) -> None:
    daemon = stock.daemon()
    publish(stock, daemon, root, "d1")
    [attempt] = daemon.claim()
    daemon.fail(attempt, started=BEGAN)
    dead = Path(
        attempt_location(f"{root}/by_day/{{dataid}}/used-{{dataid}}", "d1", attempt.attempt, [str(root)])
    )
    other = root / ".attempts" / "by_day" / "d2" / "used-d1" / dead.name
    dead.mkdir(parents=True)
    other.mkdir(parents=True)
    daemon.connection.close()
    collector = start_daemon(
        name="collector",
        env={
            "DATAFLOW_GC_INTERVAL": "1",
            "DATAFLOW_GC_GRACE": "0",
            "DATAFLOW_DATA_DIR": str(settings.data_dir),
        },
    )
    eventually(lambda: not dead.exists())
    assert collector.said("gc.done", times=2)[0]["removed"] == 1
    assert other.is_dir()
    assert (root / ".attempts" / "out" / "dataid=d1").is_dir()
