"""A small Spark cluster on this host: a standalone master with one worker, and a Connect server, started together."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from dataflowd.host.embedded import java
from dataflowd.host.settings import Settings
from tests.fix_daemon import eventually, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BIN = Path(pyspark.__file__).parent / "bin"
START_SECONDS = 120.0


@dataclass(frozen=True)
class Cluster:
    standalone: str
    connect: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, temporary_directory: object) -> Iterator[Cluster]:  # noqa: ARG001
    directory = tmp_path_factory.mktemp("cluster")
    env = (
        os.environ
        | java.environment(java.find(Settings(data_dir=directory)))
        | {
            "SPARK_DAEMON_MEMORY": "600m",  # the Connect server counts as a daemon and needs this much
            "SPARK_DAEMON_JAVA_OPTS": f"-Djava.io.tmpdir={directory}",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
    )
    port, connect_port = free_port(), free_port()
    master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = ["--cores", "2", "--memory", "600m", "--webui-port", "0", "--work-dir", str(directory / "work")]
    server = {
        "spark.connect.grpc.binding.port": str(connect_port),
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={directory}",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    submit = [
        *("--master", "local[2]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(word for name, value in server.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(name: str, program: str, *arguments: str) -> Path:
            return stack.enter_context(_running(directory / f"{name}.log", env, program, *arguments))

        connect_log = start("connect", "spark-submit", *submit)
        start("master", "spark-class", "org.apache.spark.deploy.master.Master", *master)
        worker_log = start("worker", "spark-class", "org.apache.spark.deploy.worker.Worker", *worker, address)
        _says(worker_log, "Successfully registered with master")
        _says(connect_log, "Spark Connect server started")
        yield Cluster(address, f"sc://127.0.0.1:{connect_port}")


@contextmanager
def _running(log: Path, env: dict[str, str], program: str, *arguments: str) -> Iterator[Path]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(BIN / program), *arguments],
            env=env,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield log
    finally:
        # The process is the JVM itself, because spark-class uses exec. A worker ends its executors.
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _says(log: Path, words: str) -> None:
    def look() -> bool:
        return words in log.read_text(encoding="utf-8", errors="replace")

    try:
        eventually(look, seconds=START_SECONDS)
    except AssertionError:
        raise AssertionError(f"no {words!r} in {log}:\n{log.read_text(encoding='utf-8')}") from None
