"""Child processes: they die with their parent, their logs are bounded, and how they ended is known."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from dataflowd.host import scratch, supervise
from dataflowd.host.supervise import Log, spawn
from tests.processes import children_of, needs_root

ENV = {"PATH": os.environ["PATH"]}


def alive(pid: int) -> bool:
    return supervise.started_at(pid) is not None


async def test_an_exit_status_comes_with_usage_and_the_last_lines(tmp_path: Path) -> None:
    child = spawn(
        ["sh", "-c", "seq 100; echo password=x >&2; exit 7"], env=ENV, log_path=tmp_path / "a" / "1.log"
    )
    ended = await child.wait()
    assert (ended.code, ended.signal, str(ended)) == (7, None, "exit status 7")
    assert ended.tail.splitlines()[-2:] == ["100", "password=***"]
    assert len(ended.tail.splitlines()) == supervise.TAIL_LINES
    assert ended.usage["exit_code"] == 7
    assert ended.max_rss > 0
    assert len((tmp_path / "a" / "1.log").read_text(encoding="utf-8").splitlines()) == 101


async def test_a_child_that_was_waited_for_gets_no_signal_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    child = spawn(["true"], env=ENV)
    ended = await child.wait()
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: told.append((pid, number)))
    assert await child.terminate(1) == ended
    assert not told


async def test_a_signal_is_named() -> None:
    ended = await spawn(["sh", "-c", "kill -SEGV $$"], env=ENV).wait()
    assert (ended.code, ended.signal) == (None, "SIGSEGV")
    assert ended.usage["signal"] == "SIGSEGV"


async def test_nothing_of_our_environment_is_inherited(tmp_path: Path) -> None:
    ended = await spawn(["env"], env=ENV | {"dataid": "1"}, log_path=tmp_path / "log").wait()
    names = {line.partition("=")[0] for line in ended.tail.splitlines()}
    assert names - {"LC_CTYPE"} == {"PATH", "dataid"}


async def test_a_program_that_is_not_there_is_an_exit_status(tmp_path: Path) -> None:
    ended = await spawn(["no-such-program"], env=ENV, cwd=tmp_path).wait()
    assert ended.code == 127
    assert "no-such-program cannot be executed" in ended.tail


@needs_root
async def test_a_child_may_be_another_user_for_good(tmp_path: Path) -> None:
    child = spawn(["cat", "/proc/self/status"], env=ENV, user="nobody", log_path=tmp_path / "log")
    assert (await child.wait()).code == 0
    status = (tmp_path / "log").read_text(encoding="utf-8")
    uid = str(pwd.getpwnam("nobody").pw_uid)
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n" in status
    assert "CapEff:\t0000000000000000\n" in status
    missing = await spawn(["true"], env=ENV, user="no-such-user").wait()
    assert missing.code == 126
    assert "cannot become the user no-such-user" in missing.tail


@needs_root
def test_a_child_that_is_another_user_dies_with_its_parent() -> None:
    program = (
        "from dataflowd.host.supervise import spawn; import os, time;"
        "print(spawn(['sleep', '60'], env=dict(os.environ), user='nobody').pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while Path(f"/proc/{child}/comm").read_text(encoding="ascii") != "sleep\n":
            time.sleep(0.01)
        parent.kill()
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child)


async def test_what_a_child_leaves_in_its_session_is_killed(tmp_path: Path) -> None:
    child = spawn(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; exit 0"], env=ENV)
    assert (await child.wait()).code == 0
    assert not alive(int((tmp_path / "pid").read_text(encoding="ascii")))


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    child = spawn(["sh", "-c", "trap '' TERM; echo ready; sleep 60; sleep 60"], env=ENV)
    began = time.monotonic()
    with anyio.move_on_after(0.5):
        await child.wait()
    ended = await child.terminate(0.3)
    assert ended.signal == "SIGKILL"
    assert time.monotonic() - began < 5
    assert await child.wait() == ended


async def test_a_child_that_heeds_sigterm_is_not_killed() -> None:
    child = spawn(["sh", "-c", "trap 'exit 5' TERM; while :; do sleep 0.05; done"], env=ENV)
    with anyio.move_on_after(0.5):
        await child.wait()
    assert (await child.terminate(10)).code == 5


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    program = f"""
import os, signal, time
from pathlib import Path
from dataflowd.host import supervise
supervise.spawn(["sh", "-c", "echo $$ > {tmp_path}/pid; sleep 60"], env={ENV!r})
while not (path := Path("{tmp_path}/pid")).exists() or not path.read_text(): time.sleep(0.02)
os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert parent.returncode == -signal.SIGKILL
    pid, deadline = int((tmp_path / "pid").read_text(encoding="ascii")), time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


def test_a_log_takes_at_most_twice_its_bound(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", limit=1000)
    for number in range(1000):
        log.feed(f"line {number} of many\n".encode())
    log.close()
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert len(sizes) == 2
    assert all(size <= 1000 for size in sizes)
    assert (tmp_path / "log").read_text(encoding="utf-8").endswith("line 999 of many\n")


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_lines_are_masked_however_they_arrive(tmp_path: Path, size: int) -> None:
    data = b"start\npassword=hunter2 end\nlast token=abc"
    log = Log(tmp_path / "log")
    for start in range(0, len(data), size):
        log.feed(data[start : start + size])
    log.close()
    assert (tmp_path / "log").read_text(encoding="utf-8") == "start\npassword=*** end\nlast token=***\n"


async def test_endless_output_without_a_newline_needs_little_memory(tmp_path: Path) -> None:
    child = spawn(
        ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"],
        env=ENV,
        log_path=tmp_path / "log",
        log_bytes=100_000,
    )
    ended = await child.wait()
    assert ended.code == 0
    assert len(ended.tail) <= supervise.TAIL_LINES * (supervise.TAIL_LINE_BYTES + 1)
    assert ended.seconds < 10
    assert all(path.stat().st_size <= 100_000 for path in tmp_path.iterdir())  # noqa: ASYNC240 - a few files


def test_leftovers_are_those_of_dead_processes_also_when_their_pid_is_in_use_again(
    tmp_path: Path,
) -> None:
    mine = supervise.own_directory(tmp_path, "runner")
    pid, tick = mine.name.split("-")[1:3]
    reused, dead = tmp_path / f"runner-{pid}-{int(tick) - 1}-x", tmp_path / "runner-4194305-1-x"
    precious, link = tmp_path / "precious", tmp_path / "runner-4194305-2-x"
    for directory in (reused, dead, precious, tmp_path / "runner-notes"):
        directory.mkdir()
    link.symlink_to(precious)
    found = scratch.leftovers(tmp_path, {os.geteuid()})
    assert {left.path for left in found} == {reused, dead}


@pytest.mark.parametrize("how", ["removed", "replaced by a file"])
async def test_a_log_that_cannot_be_kept_ends_no_supervision(tmp_path: Path, how: str) -> None:
    logs, go = tmp_path / "logs", tmp_path / "go"
    # The output is more than one log holds, so that the supervisor has to begin another file.
    script = f"echo $$; until [ -e {go} ]; do sleep 0.02; done; seq 1000; exit 3"
    child = spawn(["sh", "-c", script], env=ENV, log_path=logs / "1.log", log_bytes=100)
    async with anyio.create_task_group() as group:
        group.start_soon(child.wait)
        while not child.log.tail:  # noqa: ASYNC110 - it has no event for it
            await anyio.sleep(0.01)
        shutil.rmtree(logs)
        if how == "replaced by a file":
            logs.touch()
        go.touch()
    ended = await child.wait()
    assert (ended.code, ended.tail.splitlines()[-1]) == (3, "1000")
    # The supervisor makes the directory again where it can.
    assert (logs / "1.log").exists() == (how == "removed")


async def test_a_reader_who_has_gone_ends_no_supervision() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as echo:
        assert (await spawn(["sh", "-c", "echo hello; exit 3"], env=ENV, echo=echo).wait()).code == 3


def test_a_child_that_cannot_be_watched_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_more(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = children_of("self")  # may include a server that the tests share
    monkeypatch.setattr(os, "pidfd_open", no_more)
    with pytest.raises(OSError, match="Too many open files"):
        spawn(["sh", "-c", f"sleep 1; touch {tmp_path}/ran"], env=ENV)
    assert children_of("self") == before
