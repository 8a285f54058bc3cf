"""The secret of a standalone cluster: it comes from the host's spark-defaults.conf, and no argument shows it."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio

from dataflowd.engine.runner import Pending, started_alone
from dataflowd.host.embedded import java
from dataflowd.model.work_order import Dataset, Order, Output
from dataflowd.runner import protection
from tests.fix_cluster import _running, _says
from tests.fix_daemon import free_port

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from dataflowd.host.settings import Settings

PATIENCE_SECONDS = 240.0
SECRET = "canary-of-the-cluster"  # noqa: S105 - the test searches for it
DEFAULTS = f"""
spark.authenticate            true
spark.authenticate.secret     {SECRET}
spark.network.crypto.enabled  true
"""
COUNTING = """
import os
from pathlib import Path
from dataflowd import job

def arguments():
    return b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))

@job
def count(ctx):
    ctx.write("made", ctx.spark.range(0, 100, 1, 2).repartition(2))
    conf = ctx.spark.sparkContext.getConf()
    print("authenticated", conf.get("spark.authenticate"), conf.get("spark.network.crypto.enabled"))
    print("shown" if SECRET in arguments() else "not shown")
"""


async def test_a_cluster_that_authenticates_is_used_and_its_secret_not_shown(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(DEFAULTS, encoding="ascii")
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    (tmp_path / "counting.py").write_text(COUNTING.replace("SECRET", repr(SECRET.encode())), encoding="ascii")
    found = java.environment(java.find(settings))
    env = os.environ | found | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "512m"}
    env |= {"SPARK_LOCAL_DIRS": str(tmp_path / "local"), "PYSPARK_PYTHON": sys.executable}
    env |= {"SPARK_DAEMON_JAVA_OPTS": f"-Djava.io.tmpdir={tmp_path}"}
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    assert [
        detail for detail, _ in protection.openings(address, {}, "4.2.1") if "authentication" in detail
    ] == []
    master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = ["--cores", "1", "--memory", "600m", "--webui-port", "0", "--work-dir", str(tmp_path / "work")]
    settings = settings.model_copy(update={"data_dir": tmp_path / "data", "master": address})
    order = Order(
        attempt=7,
        jobid="count",
        dataid="d1",
        tag="dataflow-test",
        code="counting:count",
        directory=str(tmp_path),
        inputs={},
        outputs={"made": Output(dataset=Dataset(name="made"), location=str(tmp_path / "made"))},
        allowed_roots=(str(tmp_path),),
    )
    lines: list[str] = []
    pending = Pending(lambda message: lines.append(message.get("line", "")))
    with ExitStack() as stack:
        classes = "org.apache.spark.deploy"
        stack.enter_context(
            _running(tmp_path / "master.log", env, "spark-class", f"{classes}.master.Master", *master)
        )
        log = stack.enter_context(
            _running(
                tmp_path / "worker.log", env, "spark-class", f"{classes}.worker.Worker", *worker, address
            )
        )
        _says(log, "Successfully registered with master")
        memory = {"spark.driver.memory": "600m", "spark.executor.memory": "512m"}
        variables = found | {"PYTHONPATH": str(tmp_path)}
        with anyio.fail_after(PATIENCE_SECONDS):
            async with started_alone(settings, memory, variables) as runner:
                runner.pending[order.attempt] = pending
                assert await runner.ready(), runner.how
                await runner.send({"type": "order", "order": order.document()})
                await pending.ended.wait()
    assert pending.result is not None
    assert pending.result["outcome"] == "DONE", pending.result["error"]
    assert "authenticated true true" in lines
    assert "not shown" in lines
