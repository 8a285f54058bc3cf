"""publish = "rename": a reader of the fixed path sees one whole published version, also when a daemon dies."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd import flow
from dataflowd.storage import fixed_path
from tests.e2e.ctl_flow import ok
from tests.fix_daemon import Shop, eventually

if TYPE_CHECKING:
    from dataflowd.host.settings import Settings
    from tests.fix_daemon import StartDaemon
    from tests.fix_postgres import RunCtl

FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.clean]
format = "text"
location = "{root}/clean"
publish = "rename"
[job.work]
command = ["sh", "-c", 'for part in a b c; do cp "$CONTENT" "$clean_location/$part.txt"; done']
inputs = ["raw"]
outputs = ["clean"]
"""
NO_POLL = {"DATAFLOW_POLL": "600"}


def parts(path: Path) -> set[str]:
    """What a reader of the path finds; nothing, if the version is removed meanwhile."""
    directory = path.resolve()
    return (
        {part.read_text(encoding="utf-8") for part in directory.glob("*.txt")}
        if directory.exists()
        else set()
    )


def test_the_path_shows_one_whole_version_after_another_and_is_repaired(
    shop: Shop, start_daemon: StartDaemon, settings: Settings, tmp_path: Path, run_ctl: RunCtl
) -> None:
    content = tmp_path / "content"
    shop.flow.write_text(FLOW.replace("$CONTENT", str(content)), encoding="utf-8")
    flow.apply(shop.connection, flow.load(shop.flow, settings))
    path = Path(settings.effective_root) / "clean" / "dataid=1"
    env = NO_POLL | {"DATAFLOW_DATA_DIR": str(settings.data_dir)}
    daemon = start_daemon(env=env)
    content.write_text("first")
    shop.ready(1)
    eventually(lambda: parts(path) == {"first"})

    seen: list[set[str]] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            seen.append(parts(path))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for word in ("second", "third"):
            content.write_text(word)
            shop.connection.execute(
                "UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE datasetid = 'clean'"
            )
            eventually(lambda word=word: parts(path) == {word})  # type: ignore[misc]
    finally:
        ended.set()
        reader.join()
    assert {frozenset(each) for each in seen} <= {frozenset({word}) for word in ("first", "second", "third")}

    # As after a daemon that died between the publication and the turn: the path leads to an old version, or does not exist.
    daemon.kill()
    versions = [
        location
        for [location] in shop.connection.execute("SELECT location FROM dataflow.manifest ORDER BY version")
    ]
    assert fixed_path.turn(str(path.parent), "1", versions[0])
    assert parts(path) == {"first"}
    said = ok(run_ctl("gc", "--yes", env={"DATAFLOW_GC_RETENTION": "0"}))
    assert f"kept {versions[0]}: it is where the path of its chunk leads" in said
    assert not Path(versions[1]).exists()
    again = start_daemon(env=env)
    eventually(lambda: parts(path) == {"third"})
    again.stop()
    path.unlink()
    once = start_daemon("--once", env=env, wait=False)
    assert once.ended() == 0
    assert parts(path) == {"third"}

    ok(run_ctl("delete", "work", "--yes"))
    ok(run_ctl("gc", "--grace", "0s", "--yes"))
    assert not path.is_symlink()
    assert not Path(versions[2]).exists()


def test_a_late_turn_leads_to_the_current_version(tmp_path: Path) -> None:
    location = f"{tmp_path}/clean"
    one, two = (tmp_path / ".attempts" / "clean" / "dataid=d" / f"attempt={number}" for number in (1, 2))
    for path in (one, two):
        path.mkdir(parents=True)
    held = fixed_path.lock(location, "d")
    assert held is not None
    late: list[int | None] = []
    other = threading.Thread(target=lambda: late.append(fixed_path.lock(location, "d")))
    other.start()
    assert fixed_path.turn(location, "d", str(two))
    assert not late

    os.close(held)
    other.join()
    [got] = late
    assert got is not None
    assert fixed_path.leads_to(f"file://{location}/", "d", f"file://{two}")
    assert not fixed_path.turn(location, "d", str(two))
    os.close(got)


def test_a_path_leads_to_the_version_also_where_its_location_is_a_link(tmp_path: Path) -> None:
    version = tmp_path / "root" / ".attempts" / "clean" / "dataid=d" / "attempt=1"
    version.mkdir(parents=True)
    (tmp_path / "other" / "disk" / "clean").mkdir(parents=True)
    location = tmp_path / "root" / "clean"
    location.symlink_to(tmp_path / "other" / "disk" / "clean")
    held = fixed_path.lock(str(location), "d")
    assert held is not None
    assert fixed_path.turn(str(location), "d", str(version))
    os.close(held)
    assert (location / "dataid=d").resolve() == version.resolve()


def test_a_path_cannot_lead_to_a_version_below_itself() -> None:
    """Release 0.1.0 wrote versions there if the dataset did not have fixed paths yet."""
    for version in ("/data/clean/dataid=d/attempt=1", "/data/clean/dataid=d/.attempts/attempt=1"):
        assert not fixed_path.can_lead_to("/data/clean", "d", version)
    for version in ("/data/clean/.attempts/dataid=d/attempt=1", "/data/.attempts/clean/dataid=d/attempt=1"):
        assert fixed_path.can_lead_to("/data/clean", "d", version)
