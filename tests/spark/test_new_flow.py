"""`dataflowctl new flow`: the new flow runs unchanged, as its own README and its own tests say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataflowd.model.errors import EXIT
from tests.fix_postgres import run_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dataflowd.host.settings import Settings

BIN = Path(sys.executable).parent
PATIENCE_SECONDS = 1500
FILES = {"README.md", "data", "flow.toml", "jobs.py", "test_jobs.py"}


def new_flow(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "dataflowctl", "new", "flow", *arguments],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "TMPDIR": os.environ["TMPDIR"]},
        capture_output=True,
        text=True,
        check=False,
    )


def readme_session(directory: Path) -> list[str]:
    block = re.findall(
        r"```console\n(.*?)```", (directory / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    return [line.removeprefix("$ ") for line in "".join(block).splitlines()]


def typed(command: list[str], directory: Path, env: dict[str, str]) -> str:
    program, *arguments = command
    inherited = {name: os.environ[name] for name in ("PATH", "TMPDIR")}
    ended = subprocess.run(
        [BIN / program, *arguments],
        cwd=directory,
        env=inherited | env | {"HOME": str(directory.parent)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_new_flow_runs_as_it_was_made(
    spark: SparkSession, dsn: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark.version  # starts the shared Spark, which the flow's own tests then use
    made = new_flow(tmp_path, "shop")
    assert (made.returncode, made.stderr) == (0, "")
    flow = tmp_path / "shop"
    assert {path.name for path in flow.iterdir()} == FILES
    assert "flowname" not in "".join(path.read_text() for path in flow.rglob("*") if path.is_file())

    tested, *session = readme_session(flow)
    assert shlex.split(tested, comments=True) == ["python", "-m", "pytest"]
    monkeypatch.chdir(flow)
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert (
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "--rootdir", str(flow), str(flow)])
        == 0
    )
    sys.modules.pop("jobs", None)
    sys.modules.pop("test_jobs", None)

    export, *commands = session
    assert export.startswith("export ")
    named = dict(word.split("=", 1) for word in shlex.split(export.replace("$PWD", str(flow)))[1:])
    told = "".join(
        typed(
            shlex.split(command, comments=True),
            flow,
            named
            | {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir), "DATAFLOW_RUNNERS": "1"},
        )
        for command in commands
    )
    assert "applied flow shop: 3 created" in told
    assert "shop_raw: 3 chunks ready" in told
    assert re.findall(r"^(2026-01-0\d) +READY .* 3  ", told, re.MULTILINE) == [
        "2026-01-01",
        "2026-01-02",
        "2026-01-03",
    ]
    assert "the amount is too small" in told
    assert "does not fit the schema of shop_raw" in told
    assert len(list((flow / "data" / ".attempts" / "clean").glob("dataid=*/attempt=*/*.parquet"))) == 3


def test_nothing_is_overwritten_and_names_are_checked(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letters").write_text("dear")
    (tmp_path / "link").symlink_to("empty")
    assert new_flow(tmp_path, "shop", "--dir", "flows/empty/../shop").returncode == 0
    assert new_flow(tmp_path, "shop", "--dir", "empty").returncode == 0
    assert {path.name for path in (tmp_path / "empty").iterdir()} == FILES
    for place in ("full", "full/letters", "empty", "link", "flows/shop"):
        refused = new_flow(tmp_path, "shop", "--dir", place)
        assert refused.returncode == EXIT["NOT_ALLOWED"], place
        assert place in refused.stderr
        assert "remedy: choose another" in refused.stderr
    for name in ("Shop", "my-shop", "1shop", "shop/../x", "", "s" * 41, "läden"):
        refused = new_flow(tmp_path, name)
        assert refused.returncode == EXIT["USAGE"], name
        assert "is no name for a flow" in refused.stderr
    refused = new_flow(tmp_path, "shop", "--dir", "/proc/shop")
    assert (refused.returncode, "/proc/shop cannot be made" in refused.stderr) == (EXIT["NOT_ALLOWED"], True)
    assert (tmp_path / "full" / "letters").read_text() == "dear"
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "full", "link", "flows"}
    assert run_program("dataflowctl", "new", "house", env={"HOME": str(tmp_path)}).returncode == EXIT["USAGE"]
