"""The configuration that Spark gets for each kind of master. The tests read it where a cluster would, and need no cluster."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from dataflowd.cli.doctor import checks
from dataflowd.engine import submit
from dataflowd.engine.runner import _command
from dataflowd.host.settings import Settings
from dataflowd.model.errors import NotAllowedError
from dataflowd.runner import session

if TYPE_CHECKING:
    from pathlib import Path

JAVA = {"JAVA_HOME": "/opt/java"}


def properties(path: str) -> dict[str, str]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as Spark's launcher is told
        return dict(line.rstrip("\n").split(" ", 1) for line in file)


def submitted(master: str, directory: Path, spark: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Configuration and environment that spark-submit gets for a runner with `reuse = 1`."""
    argv, env = _command(1, Settings(data_dir=directory, master=master), spark, JAVA, directory, "once")
    assert argv[0].endswith("/bin/spark-submit")
    assert argv[1:3] == ["--load-spark-defaults", "--properties-file"]
    assert argv[4].endswith("/runner/submitted.py")
    assert "once" not in argv
    return properties(argv[3]), env


def test_yarn_runs_the_driver_here_and_finds_the_application_by_its_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    monkeypatch.setenv("DATAFLOW_DSN", "postgresql://db/flow")
    asked = {
        "spark.yarn.queue": "night",
        "spark.yarn.tags": "etl",
        "spark.pyspark.python": "/usr/bin/python3.11",
    }
    conf, env = submitted("yarn", tmp_path, asked)
    assert conf["spark.master"] == "yarn"
    assert conf["spark.submit.deployMode"] == "client"
    assert conf["spark.yarn.queue"] == "night"
    assert conf["spark.yarn.tags"] == f"etl,dataflowd-{tmp_path.name}"
    assert env["HADOOP_CONF_DIR"] == "/etc/hadoop"
    assert env["PYSPARK_PYTHON"] == "/usr/bin/python3.11"
    assert env["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert "DATAFLOW_DSN" not in env


def test_kubernetes_labels_the_executors(tmp_path: Path) -> None:
    asked = {"spark.kubernetes.container.image": "spark:4.3", "spark.kubernetes.namespace": "etl"}
    conf, _ = submitted("k8s://https://cluster.example:6443", tmp_path, asked)
    assert conf["spark.master"] == "k8s://https://cluster.example:6443"
    assert conf["spark.submit.deployMode"] == "client"
    assert conf["spark.kubernetes.container.image"] == "spark:4.3"
    assert conf["spark.kubernetes.executor.label.dataflowd"] == f"dataflowd-{tmp_path.name}"


def test_a_warm_runner_gets_the_same_without_spark_submit(tmp_path: Path) -> None:
    argv, env = _command(
        200, Settings(data_dir=tmp_path, master="yarn"), {"spark.yarn.queue": "night"}, JAVA, tmp_path, "once"
    )
    assert argv == [sys.executable, "-m", "dataflowd.runner"]
    defaults, option, path, application = shlex.split(env[session.SUBMIT_VARIABLE])
    assert (defaults, option, application) == (
        "--load-spark-defaults",
        "--properties-file",
        "pyspark-shell",
    )
    conf = properties(path)
    assert (conf["spark.master"], conf["spark.yarn.queue"]) == ("yarn", "night")
    assert conf["spark.local.dir"] == f"{tmp_path}/local"


@pytest.mark.parametrize("reuse", [1, 200])
def test_a_client_of_a_connect_server_gets_only_what_a_session_may_set(tmp_path: Path, reuse: int) -> None:
    asked = {"spark.executor.memory": "4g", "spark.sql.shuffle.partitions": "7"}
    settings = Settings(data_dir=tmp_path, master="sc://spark.example:15002/;token=hunter2")
    argv, env = _command(reuse, settings, asked, {}, tmp_path, "once")
    assert argv == [sys.executable, "-m", "dataflowd.runner"]
    conf = json.loads(env[session.CONF_VARIABLE])
    assert conf["spark.remote"] == "sc://spark.example:15002/;token=hunter2"
    assert conf["spark.sql.shuffle.partitions"] == "7"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert not {"spark.master", "spark.executor.memory", "spark.local.dir"} & conf.keys()


def test_a_connect_server_takes_only_scripts_in_python() -> None:
    assert submit.client_words(["etl.py", "x"]) == (sys.executable, "etl.py", "x")
    with pytest.raises(NotAllowedError, match="only scripts in Python"):
        submit.client_words(["--class", "org.example.Etl", "etl.jar"])


def test_a_client_of_a_connect_server_needs_no_java(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, master="sc://spark.example", java_home=tmp_path / "none")
    found = [(finding.check, finding.state) for finding in checks._java_and_spark(settings, spark=True)]
    assert found == [("java", "skipped"), ("spark", "skipped")]


def test_a_flow_cannot_change_the_settings_that_protect_published_data(tmp_path: Path) -> None:
    asked = {
        "spark.speculation": "true",
        "spark.submit.deployMode": "cluster",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.jars": "a\\b",
    }
    conf, _ = submitted("spark://master.example:7077", tmp_path, asked)
    assert conf["spark.speculation"] == "false"
    assert conf["spark.submit.deployMode"] == "client"
    assert conf["spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"] == "1"
    assert conf["spark.jars"] == "a\\\\b"
    assert stat.S_IMODE((tmp_path / "spark.properties").stat().st_mode) == 0o600
