"""As many chunks run on Spark side by side as the limit allows, and no daemon claims a run that it has no slot for.

The jobs wait for one another through files: each writes one and ends when all are there. So they end only if they run at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd import flow
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from tests.fix_daemon import Shop, StartDaemon

FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
schema = "id bigint"
[dataset.clean]
location = "{root}/clean"
[job.meet]
python = "meeting:meet"
inputs = ["raw"]
outputs = ["clean"]
slots = SLOTS
[job.meet.spark]
"spark.driver.memory" = "512m"
"spark.sql.shuffle.partitions" = 1
[job.meet.params]
guests = GUESTS
"""

MEETING = """
import time
from pathlib import Path
from dataflowd import job

@job
def meet(ctx):
    here = Path(__file__).parent
    (here / ("met-" + ctx.dataid)).touch()
    while len(list(here.glob("met-*"))) < ctx.params["guests"]:
        if ctx.cancelled:
            raise RuntimeError("the others did not come")
        time.sleep(0.05)
    ctx.write("clean", ctx.read("raw"))
"""
COLD_SECONDS = 300.0  # several JVMs start at once, on a busy host
ENVIRONMENT = {"DATAFLOW_MASTER": "local[1]"}


def _meeting(shop: Shop, guests: int, slots: int) -> None:
    shop.flow.write_text(FLOW.replace("GUESTS", str(guests)).replace("SLOTS", str(slots)), encoding="utf-8")
    (shop.flow.parent / "meeting.py").write_text(MEETING, encoding="utf-8")
    raw = Path(shop.settings.effective_root) / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for number in range(1, guests + 1):
        (raw / f"{number}.csv").write_text(f"{number}\n", encoding="utf-8")
    flow.apply(shop.connection, flow.load(shop.flow, shop.settings))
    shop.ready(*range(1, guests + 1))


def test_raising_the_limit_runs_as_many_chunks_at_once(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.limit(2)
    _meeting(shop, guests=5, slots=2)
    daemon = start_daemon(engine="spark", env=ENVIRONMENT | {"DATAFLOW_ROOT": shop.settings.effective_root})
    eventually(lambda: len(list(shop.flow.parent.glob("met-*"))) == 2, seconds=COLD_SECONDS)
    assert shop.live() == 2
    shop.connection.execute("UPDATE dataflow.control SET concurrency = 5 WHERE scope = 'global'")
    # A run is claimed, and waits while its Spark application starts.
    eventually(lambda: shop.value("SELECT count(*) FROM dataflow.runs() WHERE status = 'WAITS_FOR_SPARK'"))
    assert "Spark application, which is starting" in shop.value(
        "SELECT error FROM dataflow.runs() WHERE status = 'WAITS_FOR_SPARK' LIMIT 1"
    )
    eventually(lambda: shop.count("READY") == 5, seconds=COLD_SECONDS)
    assert shop.outcomes() == ["DONE"] * 5
    daemon.stop()


def test_another_daemon_takes_runs_that_one_has_no_slot_for(shop: Shop, start_daemon: StartDaemon) -> None:
    shop.limit(8)
    shop.connection.execute("UPDATE dataflow.control SET runners = 1, slots = 1 WHERE scope = 'global'")
    _meeting(shop, guests=2, slots=1)
    places = ENVIRONMENT | {"DATAFLOW_ROOT": shop.settings.effective_root}
    daemons = [
        start_daemon(
            name=name, engine="spark", env=places | {"DATAFLOW_DATA_DIR": str(shop.flow.parent / name)}
        )
        for name in ("d1", "d2")
    ]
    eventually(lambda: shop.count("READY") == 2, seconds=COLD_SECONDS)
    rows = shop.connection.execute("SELECT daemon, outcome FROM dataflow.attempt ORDER BY daemon").fetchall()
    assert rows == [("d1", "DONE"), ("d2", "DONE")]
    for daemon in daemons:
        daemon.stop()
