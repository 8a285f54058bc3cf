"""A job inside a runner pretends to be another attempt: over its own runner's socket, and over the sockets of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflowd import flow
from tests.fix_daemon import daemons, eventually

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from dataflowd.host.settings import Settings

# Another Spark configuration, so that this job gets another runner.
FLOW = """
[flow]
name = "enemies"
[dataset.raw]
format = "none"
[dataset.spoils]
location = "{root}/spoils"
[dataset.clean]
location = "{root}/clean"
[job.attack]
python = "enemies:attack"
inputs = ["raw"]
outputs = ["spoils"]
[job.attack.spark]
"spark.driver.memory" = "512m"
[job.victim]
python = "enemies:victim"
inputs = ["raw"]
outputs = ["clean"]
[job.victim.spark]
"spark.driver.memory" = "513m"
"""
ENEMIES = """
import glob, json, os, socket, time
from dataflowd import job

HERE = os.path.dirname(__file__)

def wait_for(name):
    while not os.path.exists(os.path.join(HERE, name)):
        time.sleep(0.05)

@job
def victim(ctx):
    open(os.path.join(HERE, "victim-runs"), "w").close()
    wait_for("go")
    ctx.write("clean", ctx.spark.range(3))

def forged(attempt):
    made = {"clean": {"location": "/etc", "files": [{"path": "passwd", "bytes": 1}], "rows": 1, "bytes": 1}}
    lines = [{"type": "hello", "token": "guessed"}, {"type": "step", "attempt": attempt, "step": "publish"},
        {"type": "confirm", "attempt": attempt}, {"type": "result", "attempt": attempt, "result": {"outcome": "DONE", "outputs": made}}]
    return b"".join(json.dumps(line).encode() + b"\\n" for line in lines)

@job
def attack(ctx):
    wait_for("victim-runs")
    said = b"".join(forged(attempt) for attempt in range(1, 20) if attempt != ctx.attempt)
    told = 0
    for path in glob.glob(os.path.join(HERE, "dataflowd", "run", "*", "socket")):
        try:
            with socket.socket(socket.AF_UNIX) as other:
                other.settimeout(2)
                other.connect(path)
                other.sendall(said)
                told += 1
        except OSError:
            pass
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as own:
                if own.family == socket.AF_UNIX:
                    own.sendall(said)
                    told += 1
        except OSError:
            pass
    open(os.path.join(HERE, "told"), "w").write(str(told))
    ctx.write("spoils", ctx.spark.range(1))
"""


def test_a_job_in_a_runner_speaks_for_no_attempt_of_another(
    dsn: str, settings: Settings, connection: psycopg.Connection, tmp_path: Path
) -> None:
    (tmp_path / "flow.toml").write_text(FLOW, encoding="utf-8")
    (tmp_path / "enemies.py").write_text(ENEMIES, encoding="utf-8")
    flow.apply(connection, flow.load(tmp_path / "flow.toml", settings), prune=False)
    with daemons(dsn, tmp_path / "flow.toml", tmp_path) as start:
        daemon = start(engine="spark", env={"DATAFLOW_RUNNERS": "2"})
        connection.execute("SELECT dataflow.ready('raw', ARRAY['1'])")

        def outcome(job: str) -> str | None:
            row = connection.execute(
                "SELECT outcome FROM dataflow.attempt WHERE jobid = %s", [job]
            ).fetchone()
            return row[0] if row else None

        eventually(lambda: outcome("attack"), seconds=240)
        assert int((tmp_path / "told").read_text(encoding="ascii")) > 0
        assert outcome("victim") is None
        (tmp_path / "go").touch()
        eventually(lambda: outcome("victim"), seconds=240)
        assert outcome("victim") == "DONE"
        made = connection.execute(
            "SELECT location, rows FROM dataflow.manifest WHERE datasetid = 'clean'"
        ).fetchall()
        assert [(location.startswith(str(settings.data_dir)), rows) for location, rows in made] == [(True, 3)]
        assert daemon.stop() == 0
