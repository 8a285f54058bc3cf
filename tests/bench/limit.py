"""The upper limit of the machine: transactions that write one row and nothing else, from eight clients at a time."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import psycopg
from psycopg import conninfo

from dataflowd.host.embedded import programs

if TYPE_CHECKING:
    from pathlib import Path

CLIENTS = 8
PROCESSES = 2
TIMEOUT_SECONDS = 60

CREATE = "CREATE TABLE one_row (client integer NOT NULL, value integer NOT NULL)"
COMMIT = "INSERT INTO one_row (client, value) VALUES (:client_id, 1);\n"
_TPS = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)


def prepare(dsn: str, directory: Path) -> Path:
    """Makes the table, and returns the script for commits_per_s."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(CREATE)
    script = directory / "commit.sql"
    script.write_text(COMMIT, encoding="utf-8")
    return script


def commits_per_s(dsn: str, script: Path, seconds: int) -> float:
    address = conninfo.conninfo_to_dict(dsn)
    ended = subprocess.run(
        [
            str(programs.binary("pgbench")),
            *("--no-vacuum", f"--file={script}"),
            *(f"--client={CLIENTS}", f"--jobs={PROCESSES}", f"--time={seconds}"),
            *("-h", str(address["host"]), "-p", str(address["port"])),
            *("-U", str(address["user"]), str(address["dbname"])),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS + seconds,
        check=False,
    )
    found = _TPS.search(ended.stdout)
    if ended.returncode != 0 or found is None:
        raise RuntimeError(f"pgbench failed: {ended.stderr}")
    return float(found[1])
