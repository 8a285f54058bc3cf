"""A daemon with the noop engine, as a process of its own: `python -m tests.bench.noop_daemon DSN NAME SECONDS LEASE`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from pydantic import SecretStr

from dataflowd import daemon
from dataflowd.engine.noop import NoopEngine
from dataflowd.host import log
from dataflowd.host.settings import Current, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP_SECONDS = 60


def main() -> None:
    dsn, name, seconds, lease = sys.argv[1:]
    settings = Settings(
        dsn=SecretStr(dsn),
        data_dir=Path(tempfile.gettempdir()),
        daemon_name=name,
        lease=int(lease),
        http_port=0,
        drain_timeout=0,
        log_level="error",
    )
    log.configure(settings)
    sys.exit(anyio.run(partial(daemon.run, Current(settings), NoopEngine(seconds=float(seconds)))))


@contextmanager
def running(
    dsn: str, name: str = "bench", *, seconds: float = 0, lease: int = 60
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.noop_daemon", dsn, name, str(seconds), str(lease)]
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def cost(pid: int) -> tuple[float, float]:
    """CPU seconds and the largest resident size in MiB of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    peak = int(status.partition("VmHWM:")[2].split()[0])
    return ticks / os.sysconf("SC_CLK_TCK"), peak / 1024


if __name__ == "__main__":
    main()
