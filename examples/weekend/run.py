"""The weekend: a network change makes all 700 loads of the daily cycle fail; one command shows why, another recovers them.

The connections are real: each load is a process that connects to a warehouse on this host, which first refuses all of them.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from stage import Stage, arguments, play, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
DAY = "2026-01-31"
GROUP = 10
ROWS = 3
AT_ONCE = 8


class Warehouse(socketserver.ThreadingTCPServer):
    """Sends a few rows of the requested table. It has its port from the start, and refuses connections until come_back."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Rows, bind_and_activate=False)
        self.server_bind()

    def come_back(self) -> None:
        self.server_activate()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Rows(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        table, day = self.rfile.readline().decode().split()
        self.wfile.writelines(f"{table},{day},{number}\n".encode() for number in range(ROWS))


def flow(jobs: int, port: int) -> Iterator[str]:
    """The lines of a flow file: so many loads, one gathering for each ten of them, and the report of all."""
    tables = [f"table_{number:03}" for number in range(jobs)]
    groups = {f"group_{at // GROUP:02}": tables[at : at + GROUP] for at in range(0, jobs, GROUP)}
    yield '[flow]\nname = "weekend"\n[dataset.day]\nformat = "none"\n'
    for name in [*tables, *groups, "report"]:
        yield f'[dataset.{name}]\nformat = "csv"\nlocation = "{{root}}/{name}"\n'
    for name in tables:
        job = name.replace("table", "load")
        yield f'[job.{job}]\ncommand = ["./load.sh", "{name}"]\ninputs = ["day"]\noutputs = ["{name}"]\n'
        yield f'params = {{ host = "127.0.0.1", port = {port} }}\n'
    for name, members in [*groups.items(), ("report", list(groups))]:
        job = name.replace("group", "gather")
        yield f"[job.{job}]\ncommand = {json.dumps(['./gather.sh', name, *members])}\n"
        yield f'inputs = {json.dumps(members)}\noutputs = ["{name}"]\n'


def story(stage: Stage, jobs: int) -> None:
    warehouse = Warehouse()
    total = jobs + -(-jobs // GROUP) + 1
    for script in ("load.sh", "gather.sh"):
        (stage.directory / script).write_bytes((HERE / script).read_bytes())
        (stage.directory / script).chmod(0o755)
    path = stage.directory / "flow.toml"
    path.write_text("".join(flow(jobs, warehouse.server_address[1])), encoding="utf-8")
    stage.configure(flows=["flow.toml"], engine="process")

    stage.step(f"A daily cycle of {total} jobs: {jobs} loads, one gathering for each ten of them, one report")
    stage.ctl("init", lines=2)
    stage.ctl("apply", "flow.toml", lines=2)
    stage.ctl("concurrency", str(AT_ONCE))

    stage.step("Saturday, 02:00. Since a change in the network the warehouse cannot be reached")
    daemon = stage.daemon("weekend")
    stage.ctl("ready", "day", DAY)
    stage.until(lambda: status(stage, "FAILED") == jobs, f"{jobs} failures")
    stage.tell(
        f"{jobs} loads have failed. The gatherings and the report have not begun: their data is not ready."
    )

    stage.step("Monday. One command shows what failed and why")
    stage.ctl("status", lines=5)
    stage.ctl("why", "load_000", DAY, lines=30)
    stage.ctl("why", "report", DAY, lines=30)

    stage.step("The network is repaired. One command recovers all of it")
    warehouse.come_back()
    stage.ctl("resubmit", "--error", "EXIT_69", "--dry-run", lines=4)
    stage.ctl("resubmit", "--error", "EXIT_69", "--yes", lines=4)
    stage.until(lambda: status(stage, "READY") == total, f"{total} chunks that are READY")
    daemon.stop()

    stage.step("Everything is READY, and was made in the right order")
    stage.ctl("status", lines=3)
    [[too_early]] = stage.rows(
        """
        SELECT count(*)
        FROM dataflow.attempt AS later
        JOIN dataflow.job_input AS i ON i.jobid = later.jobid
        JOIN dataflow.job_output AS o ON o.datasetid = i.datasetid
        JOIN dataflow.attempt AS earlier ON earlier.jobid = o.jobid AND earlier.outcome = 'DONE'
        WHERE later.claimed < earlier.ended
        """
    )
    stage.require(too_early == 0, "no job began before all that it reads was published")
    [[location]] = stage.rows("SELECT location FROM dataflow.data_location('report', %s)", DAY)
    rows = len((Path(location) / "rows.csv").read_text(encoding="utf-8").splitlines())
    stage.require(rows == jobs * ROWS, f"the report has {jobs * ROWS} rows, and not {rows}")
    stage.tell(
        f"No job began before its inputs were published; the report has the {rows:,} rows of {jobs} tables."
    )
    stage.tell(
        "The same recovery works in psql, from any client, with this command; now nothing is left to recover:"
    )
    stage.psql("UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE status = 'FAILED'")


def status(stage: Stage, wanted: str) -> int:
    return int(
        stage.value("SELECT count(*) FROM dataflow.datastatus WHERE status = %s AND jobid <> ''", wanted)
    )


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--jobs", type=whole(GROUP, 1000), default=700, help="how many loads the cycle has; default 700"
    )
    given = parser.parse_args()
    return play(lambda stage: story(stage, given.jobs), given.directory)


if __name__ == "__main__":
    sys.exit(main())
