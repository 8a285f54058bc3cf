"""A hostile job attacks its attempt, other attempts and its daemon. Its reports and its files are treated as data only."""

from __future__ import annotations

import json
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dataflowd import flow
from dataflowd.host import supervise
from tests.fix_daemon import StartDaemon, daemons, eventually
from tests.fix_postgres import reachable_directory
from tests.processes import require_python_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from dataflowd.host.settings import Settings
    from tests.fix_postgres import RunCtl

SECRET = "canary-of-the-disk-3f9a"  # noqa: S105 - the content of a file
NOBODY = "nobody"
FLOW = """
[flow]
name = "enemies"
[dataset.raw]
format = "none"
[dataset.spoils]
format = "csv"
location = "{root}/spoils"
[dataset.clean]
format = "csv"
location = "{root}/clean"
[job.attack]
command = [PYTHON, "attack.py"]
inputs = ["raw"]
outputs = ["spoils"]
[job.victim]
command = ["sh", "-c", "until [ -e go ]; do sleep 0.1; done; echo 1 > $clean_location/part.csv"]
inputs = ["raw"]
outputs = ["clean"]
"""


@dataclass
class Enemies:
    directory: Path
    settings: Settings
    connection: psycopg.Connection
    start: StartDaemon

    @property
    def outside(self) -> Path:
        return self.directory / "outside"

    def attack(self, code: str) -> None:
        """The body of the job `attack`; `there` is its output's directory."""
        head = "import os, pathlib, signal, subprocess, sys, time\nthere = pathlib.Path(os.environ['spoils_location'])\n"
        (self.directory / "attack.py").write_text(head + code, encoding="utf-8")
        text = FLOW.replace("PYTHON", json.dumps(sys.executable))
        (self.directory / "flow.toml").write_text(text, encoding="utf-8")
        flow.apply(self.connection, flow.load(self.directory / "flow.toml", self.settings), prune=False)
        self.outside.mkdir()
        (self.outside / "secret.csv").write_text(SECRET, encoding="ascii")

    def ready(self, dataid: str = "1") -> None:
        self.connection.execute("SELECT dataflow.ready('raw', ARRAY[%s])", [dataid])

    def ended(self, job: str = "attack", dataid: str = "1") -> dict[str, Any]:
        """Waits for the end of a run's last attempt, and returns the attempt."""

        def look() -> dict[str, Any] | None:
            row = self.connection.execute(
                "SELECT to_jsonb(a) FROM dataflow.attempt a WHERE jobid = %s AND dataid = %s AND ended IS NOT NULL"
                " ORDER BY attempt DESC LIMIT 1",
                [job, dataid],
            ).fetchone()
            return dict(row[0]) if row else None

        return eventually(look) or {}

    def log(self, attempt: dict[str, Any]) -> Path:
        name = f"{attempt['jobid']}/{attempt['dataid']}/{attempt['attempt']}.log"
        return self.settings.effective_log_dir / name

    def published(self, dataset: str) -> list[Any]:
        return self.connection.execute(
            "SELECT location, files FROM dataflow.manifest WHERE datasetid = %s", [dataset]
        ).fetchall()


@pytest.fixture
def enemies(
    dsn: str, settings: Settings, connection: psycopg.Connection, tmp_path: Path
) -> Iterator[Enemies]:
    with daemons(dsn, tmp_path / "flow.toml", tmp_path) as start:
        yield Enemies(tmp_path, settings, connection, start)
        (tmp_path / "go").touch()


def test_what_a_job_has_started_ends_with_it(enemies: Enemies) -> None:
    """The process ignores every signal that can be ignored, and its parents have ended."""
    enemies.attack(
        "stubborn = 'trap \"\" HUP INT TERM; echo $$ >> pids; while :; do sleep 1; done'\n"
        "for _ in range(5):\n"
        "    subprocess.Popen(['sh', '-c', f'({stubborn}) & exit'], start_new_session=False)\n"
        "subprocess.Popen(['sh', '-c', f'set -m; ({stubborn}) & exit'])\n"
        "while not os.path.exists('pids') or len(open('pids').readlines()) < 6: time.sleep(0.05)\n"
        "(there / 'part.csv').write_text('1')\n"
    )
    enemies.start()
    enemies.ready()
    assert enemies.ended()["outcome"] == "DONE"
    pids = [int(line) for line in (enemies.directory / "pids").read_text(encoding="ascii").split()]
    assert len(pids) == 6
    assert [pid for pid in pids if supervise.started_at(pid) is not None] == []


def test_a_flood_of_output_fills_neither_disk_nor_memory(enemies: Enemies) -> None:
    enemies.attack(
        "for _ in range(60): sys.stdout.buffer.write(b'\\x1b[2Jx' * 100_000 + b'\\n' * 1000)\n"
        "sys.stdout.buffer.write(b'y' * 5_000_000)\n"
        "(there / 'part.csv').write_text('1')\n"
    )
    daemon = enemies.start()
    enemies.ready()
    attempt = enemies.ended()
    assert attempt["outcome"] == "DONE"
    kept = list(enemies.log(attempt).parent.iterdir())
    assert sum(path.stat().st_size for path in kept) <= 2 * supervise.LOG_BYTES + supervise.PIPE_BYTES * 4
    status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="ascii")
    [peak] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    assert peak < 400 * 1024


LEFT = {
    "a-link": ("(there / 'part.csv').symlink_to('{outside}/secret.csv')", "INVALID_PATH"),
    "a-deep-link": ("(there / 'deep').symlink_to('{outside}')", "INVALID_PATH"),
    "a-link-in-its-place": ("there.rmdir(); there.symlink_to('{outside}')", "INVALID_PATH"),
    "a-link-above-it": (
        "there.rmdir(); there.parent.rmdir(); os.mkdir('{spare}/' + there.name)\n"  # noqa: ISC004 - one text
        "there.parent.symlink_to('{spare}'); (there / 'part.csv').write_text('1')",
        "INVALID_PATH",
    ),
    "a-pipe": ("os.mkfifo(there / 'part.csv')", "INVALID_PATH"),
    "a-pipe-in-its-place": ("there.rmdir(); os.mkfifo(there)", "INVALID_PATH"),
    "nothing": ("there.rmdir()", "NO_OUTPUT"),
    "a-linked-report": ("os.symlink('{outside}/secret.csv', report)", "INVALID_REPORT"),
    "a-pipe-as-report": ("os.mkfifo(report)", "INVALID_REPORT"),
    "a-report-of-others": ("open(report, 'w').write('{{\"file\": \"../../secret.csv\"}}')", "INVALID_REPORT"),
    "a-large-report": ("open(report, 'w').write('x' * 70_000_000)", "INVALID_REPORT"),
}


def test_what_a_job_leaves_leads_nobody_elsewhere(enemies: Enemies) -> None:
    spare = enemies.directory / "spare"
    spare.mkdir()
    codes = {name: code.format(outside=enemies.outside, spare=spare) for name, (code, _) in LEFT.items()}
    enemies.attack(
        f"codes = {codes!r}\nreport = os.environ['DATAFLOW_REPORT']\nexec(codes[os.environ['dataid']])\n"
    )
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in enemies.outside.rglob("*"))
    enemies.start()
    for name in LEFT:
        enemies.ready(name)
    attempts = {name: enemies.ended(dataid=name) for name in LEFT}
    found = {name: (attempt["outcome"], attempt["code"]) for name, attempt in attempts.items()}
    assert found == {name: ("FAILED", code) for name, (_, code) in LEFT.items()}
    assert enemies.published("spoils") == []
    for attempt in attempts.values():
        assert SECRET not in json.dumps(attempt) + enemies.log(attempt).read_text(encoding="utf-8")
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in enemies.outside.rglob("*")) == before


NAMES = [
    b"\x1b[2J.csv",
    b"a\nREADY.csv",
    b"\xff\xfe.csv",
    b"x" * 255,
    b"$(touch marker).csv",
    b"'; DROP TABLE x; --.csv",
]


def test_a_file_with_a_hostile_name_is_a_file_or_is_refused(enemies: Enemies, run_ctl: RunCtl) -> None:
    enemies.attack(
        f"open(os.fsencode(there) + b'/' + {NAMES!r}[int(os.environ['dataid'])], 'w').write('1')\n"
    )
    daemon = enemies.start()
    for number in range(len(NAMES)):
        enemies.ready(str(number))
    for number, name in enumerate(NAMES):
        if enemies.ended(dataid=str(number))["outcome"] == "DONE":
            [files] = [
                files for location, files in enemies.published("spoils") if f"/dataid={number}/" in location
            ]
            assert [file["path"].encode() for file in files] == [name]
    for command in (["chunks", "spoils"], ["why", "attack", "0"], ["attempts", "attack", "2"]):
        shown = run_ctl(*command)
        assert "\x1b" not in shown.stdout + shown.stderr
        assert "Traceback" not in shown.stderr
    assert not (enemies.directory / "marker").exists()
    assert daemon.process.poll() is None


def test_a_job_that_destroys_its_own_places_harms_no_sibling(enemies: Enemies) -> None:
    enemies.attack(
        "import shutil\n"
        "shutil.rmtree(pathlib.Path(os.environ['DATAFLOW_REPORT']).parent)\n"
        "shutil.rmtree(there.parent)\n"
        "os.closerange(0, 100)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    daemon = enemies.start()
    enemies.ready()
    assert enemies.ended()["outcome"] == "FAILED"
    (enemies.directory / "go").touch()
    assert enemies.ended("victim")["outcome"] == "DONE"
    assert daemon.stop() == 0


@pytest.fixture
def foreign_user(
    dsn: str, settings: Settings, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Enemies]:
    """Jobs run as the user `nobody`, in a directory that this user can reach."""
    with reachable_directory() as directory:
        monkeypatch.chdir(directory)
        ours = settings.model_copy(update={"data_dir": directory / "dataflowd"})
        root = ours.data_dir / "data"
        root.mkdir(parents=True)
        for path in (ours.data_dir, root):
            path.chmod(0o755)
        for name in ("spoils", "clean"):
            (root / name).mkdir()
            (root / name).chmod(0o777)
        (directory / "scratch").mkdir()
        (directory / "scratch").chmod(0o777)
        with daemons(dsn, directory / "flow.toml", directory) as start:
            yield Enemies(directory, ours, connection, start)
            (directory / "go").touch()


def test_a_job_of_another_user_reaches_neither_the_daemon_nor_its_key_and_logs(foreign_user: Enemies) -> None:
    require_python_of(NOBODY)
    enemies = foreign_user
    key = enemies.settings.data_dir / "key"
    key.write_text(SECRET, encoding="ascii")
    key.chmod(0o600)
    enemies.attack(
        "import json, glob\n"
        "daemon = int(open('daemon.pid').read())\n"
        "tried = {}\n"
        "def attempt(name, do):\n"
        "    try:\n"
        "        tried[name] = repr(do())\n"
        "    except OSError as error:\n"
        "        tried[name] = ''\n"
        "base = pathlib.Path('dataflowd')\n"
        "attempt('signal', lambda: os.kill(daemon, signal.SIGTERM))\n"
        "attempt('environ', lambda: open(f'/proc/{daemon}/environ').read())\n"
        "attempt('memory', lambda: open(f'/proc/{daemon}/mem', 'rb'))\n"
        "attempt('files', lambda: os.listdir(f'/proc/{daemon}/fd'))\n"
        "attempt('key', lambda: (base / 'key').read_text())\n"
        "attempt('log', lambda: open(base / 'log' / 'attack' / '1' / '1.log', 'a'))\n"
        "attempt('other log', lambda: os.mkdir(base / 'log' / 'victim' / 'forged'))\n"
        "attempt('spool', lambda: open(base / 'run' / 'forged', 'w'))\n"
        "attempt('daemon log', lambda: open('d1-0.log', 'a'))\n"
        "open('scratch/tried', 'w').write(json.dumps(tried))\n"
        "(there / 'part.csv').write_text('1')\n"
    )
    daemon = enemies.start(env={"DATAFLOW_RUNNER_USER": NOBODY})
    (enemies.directory / "daemon.pid").write_text(str(daemon.pid), encoding="ascii")
    enemies.ready()
    attempt = enemies.ended()
    assert attempt["outcome"] == "DONE", attempt
    tried = json.loads((enemies.directory / "scratch" / "tried").read_text(encoding="utf-8"))
    assert {name for name, got in tried.items() if got} == set()
    assert (enemies.directory / "scratch" / "tried").stat().st_uid == pwd.getpwnam(NOBODY).pw_uid
    assert daemon.process.poll() is None
