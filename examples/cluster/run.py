"""The quickstart on a real Spark cluster: a standalone master, two workers, two daemons, one of them killed half-way.

The flow is that of examples/quickstart, unchanged: where Spark runs is a setting. When a daemon dies, its Spark application
dies with it. As soon as the lease of the dead daemon has ended, the other daemon takes the runs that it had claimed.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from dataflowd.host.embedded import java
from dataflowd.host.settings import Settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from stage import Stage, arguments, play, whole

if TYPE_CHECKING:
    from stage import Background

QUICKSTART = Path(__file__).resolve().parents[1] / "quickstart"
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
LEASE_SECONDS = 10
DAYS = 10
LEAST_DAYS, MOST_DAYS = 6, 28
# For JVMs that run for a minute.
SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# One core for each application: without a limit the first application would take the whole cluster.
DEFAULTS = f"""\
spark.cores.max 1
spark.executor.memory 512m
spark.executor.extraJavaOptions {SMALL_JAVA}
spark.driver.memory 600m
"""


def story(stage: Stage, days: int) -> None:
    stage.step("A Spark cluster on this host: a master and two workers with one core each")
    master = start_cluster(stage)
    conf = stage.directory / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(DEFAULTS, encoding="utf-8")

    stage.step("The quickstart, and the address of the cluster as a setting")
    stage.flow(QUICKSTART)
    stage.configure(flows=["flow/flow.toml"], master=master, runners=1, lease=LEASE_SECONDS, poll=2)
    stage.tell(f"master = {master}")
    stage.ctl("init", lines=2)
    stage.ctl("apply", "flow/flow.toml", lines=3)
    stage.run(["python", "flow/sample.py", "2026-01-01", str(days)])

    stage.step("Two daemons on one database, with two runs at a time each")
    daemons = [stage.daemon(name, env={"SPARK_CONF_DIR": str(conf)}) for name in ("north", "south")]
    for daemon in daemons:
        stage.until_said(daemon, "listener.listening")
        stage.ctl("concurrency", "2", "--daemon", daemon.name)
    north, south = daemons

    half = days // 2
    stage.step(f"The orders of {half} days arrive, and both daemons start a Spark application for them")
    stage.ctl("ready", "raw_orders", "--range", f"2026-01-01..2026-01-{half:02}")
    stage.until(lambda: {"north", "south"} <= set(done(stage)), "something done by each")
    stage.tell(f"Done so far: {described(done(stage))}.")

    stage.step("The other days arrive; in the middle of a run the daemon north gets a kill -9")
    stage.ctl("ready", "raw_orders", "--range", f"2026-01-{half + 1:02}..2026-01-{days:02}")
    held = kill_in_the_act(stage, north)
    for job, dataid in held:
        stage.tell(f"north died while it ran {job} {dataid}")
    stage.ctl("status", lines=20)

    stage.step(
        f"The daemon south goes on; when the lease of {LEASE_SECONDS} s has ended, it takes what north had claimed"
    )
    stage.until(lambda: is_all_done(stage), "the end of all runs")
    job, dataid = held[0]
    stage.ctl("attempts", job, dataid)
    stage.ctl("status", lines=20)
    south.stop()

    stage.step("Everything is READY. Which daemon did what:")
    stage.psql(
        "SELECT daemon, outcome, count(*) AS attempts FROM dataflow.attempt GROUP BY 1, 2 ORDER BY 1, 2"
    )
    [[lost]] = stage.rows("SELECT count(*) FROM dataflow.attempt WHERE daemon = 'north' AND outcome = 'LOST'")
    stage.require(lost == len(held), f"{len(held)} attempts were lost with north, and not {lost}")
    [[runs, twice]] = stage.rows(
        "SELECT count(*), count(*) FILTER (WHERE version > 1) FROM dataflow.manifest"
    )
    stage.require(twice == 0, "nothing was published twice")
    stage.tell(f"{runs} chunks were made, {lost} of them in a second attempt; nothing was published twice.")


def start_cluster(stage: Stage) -> str:
    """Starts the cluster and returns the address of its master. Uses the embedded Java if there is no other."""
    stage.env |= java.environment(java.find(Settings(data_dir=stage.directory)))
    env = {
        "SPARK_DAEMON_MEMORY": "300m",
        "SPARK_DAEMON_JAVA_OPTS": f"-Djava.io.tmpdir={stage.directory} {SMALL_JAVA}",
        "SPARK_LOCAL_DIRS": str(stage.directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }

    def start(name: str, *words: str) -> Background:
        stage.tell(f"$ spark-class {' '.join(words)} &")
        return stage.background(name, [str(SPARK_CLASS), *words], env)

    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    start("master", "org.apache.spark.deploy.master.Master", *place)
    size = [
        "--cores",
        "1",
        "--memory",
        "600m",
        "--webui-port",
        "0",
        "--work-dir",
        str(stage.directory / "work"),
    ]
    workers = [
        start(name, "org.apache.spark.deploy.worker.Worker", *size, address)
        for name in ("worker1", "worker2")
    ]
    for worker in workers:
        stage.until_said(worker, "Successfully registered with master")
    stage.tell(f"The cluster answers at {address}.")
    return address


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def done(stage: Stage) -> dict[str, int]:
    return dict(
        stage.rows(
            "SELECT daemon, count(*) FROM dataflow.attempt WHERE outcome = 'DONE' GROUP BY 1 ORDER BY 1"
        )
    )


def described(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} by {name}" for name, count in counts.items())


def is_all_done(stage: Stage) -> bool:
    """Whether no run waits, no run is running, and every chunk is READY."""
    return bool(
        stage.value(
            """
            SELECT NOT EXISTS (SELECT FROM dataflow.work)
                AND NOT EXISTS (SELECT FROM dataflow.attempt WHERE ended IS NULL)
                AND NOT EXISTS (SELECT FROM dataflow.datastatus WHERE locktype = 'OUT' AND status <> 'READY')
            """
        )
    )


def kill_in_the_act(stage: Stage, daemon: Background) -> list[tuple[str, str]]:
    """Kills the daemon in the middle of a run, and returns the runs that it had.

    SIGSTOP comes first, so that no run ends between the query and the kill.
    """

    def caught() -> list[tuple[str, str]]:
        daemon.signal(signal.SIGSTOP)
        held = stage.rows(
            "SELECT jobid, dataid FROM dataflow.attempt WHERE daemon = %s AND ended IS NULL ORDER BY attempt",
            daemon.name,
        )
        if not held:
            daemon.signal(signal.SIGCONT)
        return held

    held = stage.until(caught, f"a run of {daemon.name}")
    stage.tell(f"$ kill -9 {daemon.process.pid}")
    daemon.kill()
    return held


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--days", type=whole(LEAST_DAYS, MOST_DAYS), default=DAYS, help=f"of orders; default {DAYS}"
    )
    given = parser.parse_args()
    return play(lambda stage: story(stage, given.days), given.directory)


if __name__ == "__main__":
    sys.exit(main())
