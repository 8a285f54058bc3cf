"""Gives known secrets to jobs that print them and die, and then searches for the secrets in memory, files and tables."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataflowd import flow
from dataflowd.host import keyfile, seal
from tests.fix_daemon import daemons, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

PASSWORD = "canary'P4ss/wörd"  # noqa: S105
FORMS = [PASSWORD.encode(), b"canary%27P4ss", b"P4ss/w"]
PATIENCE_SECONDS = 240.0
FLOW = """
[flow]
name = "canary"
[dataset.bank]
format = "jdbc"
hostname = "db7"
database = "bank"
tablename = "accounts"
username = "etl"
[dataset.by_script]
format = "none"
[dataset.by_spark]
format = "none"
[job.script]
command = ["./leak.sh"]
inputs = ["bank"]
outputs = ["by_script"]
[job.spark]
python = "leak:leak"
inputs = ["bank"]
outputs = ["by_spark"]
[job.spark.spark]
"spark.eventLog.enabled" = true
"spark.eventLog.dir" = "{events}"
"spark.eventLog.compress" = false
"""
SCRIPT = """#!/bin/sh
echo "connecting as $bank_username with $bank_password" >&2
echo "postgresql://etl:$bank_password@db7/bank" && printf '%s' "$bank_password"
touch held; while [ -e held ]; do sleep 0.1; done
kill -ABRT $$
"""
MODULE = """
from pathlib import Path
from time import sleep
from dataflowd import Context, job
from dataflowd.host.passwords import password_of

@job
def leak(ctx: Context) -> None:
    password = password_of(ctx.order.inputs["bank"].dataset)
    print("connecting with", password)
    ctx.log.info("the password is " + password)
    ctx.spark.range(3).count()
    Path("{directory}/spark-held").touch()
    while Path("{directory}/spark-held").exists():
        sleep(0.1)
    raise ValueError(f"cannot log in with {{password!r}}: {{password}}")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look into the memory of another process")
def test_a_secret_is_nowhere_but_in_the_process_that_needs_it(
    connection: psycopg.Connection, dsn: str, settings: Settings, tmp_path: Path, run_ctl: RunCtl
) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "flow.toml").write_text(FLOW.format(events=tmp_path / "events"), encoding="utf-8")
    (tmp_path / "leak.sh").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "leak.sh").chmod(0o755)
    (tmp_path / "leak.py").write_text(MODULE.format(directory=tmp_path), encoding="utf-8")
    allowed = settings.model_copy(update={"allowed_hosts": ["db7"]})
    flow.apply(connection, flow.load(tmp_path / "flow.toml", allowed))
    key = seal.generate()
    keyfile.add(settings.data_dir / "key", [keyfile.line(key)])
    sealed = seal.seal(PASSWORD, key.public, seal.Binding("bank", "etl", "db7", "bank"))
    connection.execute("UPDATE dataflow.dataset SET encryptedpass = %s WHERE datasetid = 'bank'", [sealed])
    connection.execute("SELECT dataflow.ready('bank', '1')")
    held = [tmp_path / "held", tmp_path / "spark-held"]
    with daemons(dsn, tmp_path / "flow.toml", tmp_path) as start:
        env = {"DATAFLOW_MASTER": "local[1]", "DATAFLOW_RUNNERS": "1", "DATAFLOW_ALLOWED_HOSTS": "db7"}
        daemon = start(engine="spark", env=env)
        eventually(lambda: all(path.exists() for path in held), seconds=PATIENCE_SECONDS)
        while_running = {
            "memory": b"".join(_memory(daemon.pid)),
            "environ": Path(f"/proc/{daemon.pid}/environ").read_bytes(),
            "ps": b"".join(_command_lines()),
        }
        for path in held:
            path.unlink()
        daemon.said("attempt.finished", times=2)
        while_running["memory afterwards"] = b"".join(_memory(daemon.pid))
        assert daemon.stop() == 0
    codes = connection.execute("SELECT jobid, code FROM dataflow.attempt ORDER BY jobid").fetchall()
    assert codes == [("script", "SIGABRT"), ("spark", "JOB_FAILED")]
    places = while_running | {
        "tables": b"".join(_tables(connection)),
        "files": b"".join(path.read_bytes() for path in _written(tmp_path)),
        "commands": b"".join(_commands(run_ctl)),
    }
    # Proves that the search covers the right places: the masked output of both jobs is there.
    assert b"connecting with ***" in places["files"]
    assert b"cannot log in with" in places["tables"]
    assert b"SparkListenerEnvironmentUpdate" in places["files"]
    assert key.public.keyid.encode() in places["tables"]
    found = [(place, form) for place, text in places.items() for form in FORMS if form in text]
    assert not found


def _memory(pid: int) -> Iterator[bytes]:
    """The writable memory of the process."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for start, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps, re.MULTILINE):
            with suppress(OSError, OverflowError, ValueError):
                memory.seek(int(start, 16))
                yield memory.read(int(end, 16) - int(start, 16))


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes()


def _tables(connection: psycopg.Connection) -> Iterator[bytes]:
    names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'dataflow'").fetchall()
    for [name] in names:
        for [row] in connection.execute(f'SELECT t::text FROM dataflow."{name}" AS t'.encode()):  # noqa: S608
            yield str(row).encode()


def _written(directory: Path) -> list[Path]:
    """Logs of the daemon and of attempts, event logs of Spark and all other files; without the key file of the test."""
    return [path for path in directory.rglob("*") if path.is_file() and path.name != "key"]


def _commands(run_ctl: RunCtl) -> Iterator[bytes]:
    for words in (
        ("status", "--json"),
        ("runs", "--json"),
        ("attempts", "script", "1", "--json"),
        ("attempts", "spark", "1", "--json"),
        ("history", "spark", "1", "--json"),
        ("why", "script", "1"),
        ("logs", "script", "1"),
        ("env", "script", "1", "--json"),
        ("datasets", "--json"),
        ("key", "list", "--json"),
    ):
        done = run_ctl(*words)
        yield f"{words}: {done.stdout}{done.stderr}".encode()
