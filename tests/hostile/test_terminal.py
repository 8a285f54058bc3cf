"""A job's output tries to control the terminal of a person who reads it: by `run`, `try`, `logs` and an export."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tty
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg.types.json import Jsonb

from dataflowd import flow
from dataflowd.cli.output import JobOutput
from tests.terminals import open_terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataflowd.host.settings import Settings
    from tests.fix_world import World

PATIENCE_SECONDS = 300.0  # until Spark has started on a busy machine
# A title that types commands, a colour, a cleared screen, C1 controls, reversed text, and overwritten lines.
ATTACKS = (
    "\x1b]0;rm -rf ~\x07",
    "\x1b[31mred\x1b[0m",
    "\x1b[2J\x1b[H",
    "\x9b31m\x9d0;title\x9c",
    "\x90+q544e\x9c",
    "\u202etxt.exe\u202c\u2066\u2069\u200e\u200f\u061c",
    "all is well\rFAILED",
    "back\b\b\b\bfront\x7f",
    "\u2028line\u2029paragraph",
    "bell\x07\x0e\x0f\x00",
)
FORBIDDEN = {
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u202e\u202c\u2066\u2069\u200e\u200f\u061c\u2028\u2029",
}
FLOW = """
[flow]
name = "own"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
schema = "id bigint, name string"
[dataset.out]
location = "{root}/out"
[dataset.said]
format = "none"
[job.load]
command = ["PYTHON", "load.py"]
inputs = ["raw"]
outputs = ["said"]
[job.work]
python = "shop:work"
inputs = ["raw"]
outputs = ["out"]
[job.work.spark]
"spark.driver.memory" = "600m"
"spark.sql.shuffle.partitions" = 2
"""
# One byte at a time, so that sequences and characters are cut between two reads.
LOAD = """
import os
for byte in ATTACKS:
    os.write(1, bytes([byte]))
os.write(2, b"end of the job\\n")
"""
SHOP = """
from dataflowd import job

@job
def work(ctx):
    print(ATTACKS)
    print("end of the job")
    ctx.write("out", ctx.read("raw"))
"""


def hostile() -> str:
    return "\n".join(ATTACKS) + "\n"


@pytest.fixture
def own(world: World, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    flow_file = tmp_path / "flow.toml"
    flow_file.write_text(FLOW.replace("PYTHON", sys.executable), encoding="utf-8")
    (tmp_path / "load.py").write_text(LOAD.replace("ATTACKS", repr(hostile().encode())), encoding="utf-8")
    (tmp_path / "shop.py").write_text(SHOP.replace("ATTACKS", ascii(hostile())), encoding="utf-8")
    flow.apply(world.connection, flow.load(flow_file, settings), prune=False)
    raw = Path(settings.effective_root) / "raw"
    raw.mkdir(parents=True)
    (raw / "d1.csv").write_text("1,ann\n")
    world.ready("raw", "d1")
    return world


class Terminal:
    """A pseudo-terminal that keeps all bytes that are written to it."""

    def __init__(self) -> None:
        self._ours, self.theirs = open_terminal()
        tty.setraw(self.theirs)
        self._seen = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                more = os.read(self._ours, 1 << 16)
            except OSError:  # the last process that had it open has closed it
                return
            self._seen += more

    def seen(self, encoding: str = "utf-8") -> str:
        os.close(self.theirs)
        self._reader.join()
        os.close(self._ours)
        return self._seen.decode(encoding)


def on_terminal(settings: Settings, own: World, *arguments: str, stream: str = "stdout") -> str:
    """Runs dataflowctl with that stream on a terminal, and returns what a person sees."""
    terminal = Terminal()
    env: Mapping[str, str] = {
        "PATH": os.environ["PATH"],
        "TMPDIR": os.environ["TMPDIR"],
        "HOME": str(Path.cwd()),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "DATAFLOW_DSN": own.dsn,
        "DATAFLOW_DATA_DIR": str(settings.data_dir),
        "DATAFLOW_FLOWS": str(Path("flow.toml").absolute()),
    }
    try:
        subprocess.run(
            [str(Path(sys.executable).parent / "dataflowctl"), *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=terminal.theirs if stream == "stdout" else subprocess.DEVNULL,
            stderr=terminal.theirs if stream == "stderr" else subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    finally:
        seen = terminal.seen()
    return seen


def steers(seen: str) -> set[str]:
    """The parts that a terminal would obey. Our own sign of life may return to the start of its line."""
    lines = [line for line in seen.split("\n") if not line.startswith("\r")]
    return set("".join(lines)) & FORBIDDEN - {"\t"}


@pytest.mark.parametrize(("stream", "options"), [("stdout", ()), ("stderr", ("--json",))])
def test_run_and_logs_escape_what_a_job_prints(
    own: World, settings: Settings, stream: str, options: tuple[str, ...]
) -> None:
    ran = on_terminal(settings, own, "run", "load", "--dataid", "d1", *options, stream=stream)
    assert "end of the job" in ran
    assert r"\x1b[31mred" in ran
    assert r"\u202etxt.exe" in ran
    assert r"all is well\rFAILED" in ran
    assert steers(ran) == set()
    read = on_terminal(settings, own, "logs", "load", "d1")
    assert "end of the job" in read
    assert steers(read) == set()


def test_a_trial_escapes_what_a_job_prints(own: World, settings: Settings) -> None:
    tried = on_terminal(settings, own, "try", "work", "d1", "--rows", "1", stream="stderr")
    assert "end of the job" in tried
    assert r"\x1b[31mred" in tried
    assert steers(tried.replace("\r\x1b[K", "\n")) == set()


def test_an_export_of_quarantined_records_escapes_them(own: World, settings: Settings) -> None:
    [attempt] = [claimed.attempt for claimed in own.daemon().claim() if claimed.job == "work"]
    own.connection.execute(
        "INSERT INTO dataflow.quarantine (jobid, dataid, itemid, attempt, code, reason, details)"
        " VALUES ('work', 'd1', '1', %s, 'BAD_RECORD', %s, %s)",
        [attempt, "red \x1b[31m", Jsonb({"record": {"id": 1, "name": "\x9b31m\x1b[2J"}, "mark": "1"})],
    )
    seen = on_terminal(settings, own, "quarantine", "export", "work", "--format", "csv")
    assert "BAD_RECORD" in seen
    assert steers(seen.replace("\r\n", "\n")) == set()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_no_cut_of_the_bytes_and_no_encoding_lets_a_control_through(encoding: str) -> None:
    """In Latin-1, one byte of a harmless UTF-8 character would be a control character."""
    data = (hostile() + "\u015b\u00c0 is harmless\n").encode()
    for size in range(1, 8):
        terminal = Terminal()
        with os.fdopen(os.dup(terminal.theirs), "w", encoding=encoding) as stream:
            shown = JobOutput(stream)
            for start in range(0, len(data), size):
                shown.write(data[start : start + size])
            shown.flush()
        seen = terminal.seen(encoding)
        assert "is harmless" in seen
        assert steers(seen) == set()
