"""Spark loads its classes from an archive that the daemon makes. Without an archive, or with a broken one, it loads them from the jars."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataflowd.engine import class_archive
from dataflowd.engine.runner import Runner
from dataflowd.host import supervise
from dataflowd.host.embedded import java
from dataflowd.runner.session import JAVA_OPTIONS
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from dataflowd.host.embedded.java import Java
    from dataflowd.host.settings import Settings

MAKING_SECONDS = 600.0  # beside other tests, making the archive may take that long
SPARK = {"spark.driver.memory": "512m"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings without the archives that the tests share: these tests make and break their own."""
    return settings.model_copy(update={"class_archives": None})


@pytest.fixture
def found(settings: Settings) -> Java:
    return java.find(settings)


def _mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


async def _maps(settings: Settings, found: Java, reuse: int) -> str:
    """The memory maps of all processes of a runner after its Spark has started."""
    runner = Runner(("test",), reuse=reuse, slots=1)
    spark = class_archive.applied(SPARK, class_archive.archive(settings, found))
    runner.start(settings, spark, java.environment(found))
    try:
        assert await runner.ready(), runner.how
        assert runner.pid is not None
        return "".join(map(_mapped, [runner.pid, *supervise.alive_in_session(runner.pid)]))
    finally:
        await runner.kill()


async def test_every_runner_maps_the_archive_that_was_made(
    settings: Settings, found: Java, class_archives: Path | None
) -> None:
    shared = settings.model_copy(update={"class_archives": class_archives})
    path = class_archive.archive(shared, found)
    if class_archives is None:
        assert class_archive.applied(SPARK, path) == SPARK
        await class_archive.make(shared, found)
    eventually(path.exists, seconds=MAKING_SECONDS)
    assert list(path.parent.iterdir()) == [path]
    assert str(path) in await _maps(shared, found, reuse=2)
    assert str(path) in await _maps(shared, found, reuse=1)


def test_archives_that_were_not_used_for_a_month_are_removed(tmp_path: Path) -> None:
    used, unused = tmp_path / "used.jsa", tmp_path / "unused.jsa"
    for path in (used, unused):
        path.touch()
        os.utime(path, times=(0, 0))
    class_archive.applied(SPARK, used)
    class_archive._forget_unused(tmp_path)
    assert list(tmp_path.iterdir()) == [used]


async def test_a_runner_starts_without_an_archive_that_is_broken(settings: Settings, found: Java) -> None:
    path = class_archive.archive(settings, found)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"nonsense" * 1000)
    assert str(path) not in await _maps(settings, found, reuse=2)


async def test_the_archive_is_made_at_a_quiet_moment_and_a_failure_leaves_nothing(
    settings: Settings,
    found: Java,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(class_archive, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(class_archive, "QUIET_SECONDS", 0.02)
    broken = java.Java(tmp_path / "nowhere", found.version, "setting")
    busy = iter([True, False, True, False, False])
    await class_archive.learn(settings, broken, lambda: next(busy), lambda: 1)
    assert next(busy, None) is None
    said = capsys.readouterr()
    assert "classes.failed" in said.out + said.err
    assert not list(settings.effective_class_archives.iterdir())
    assert not list((settings.data_dir / "run").iterdir())


def test_each_java_and_spark_has_its_own_archive_and_a_flow_may_override_it(
    settings: Settings, found: Java
) -> None:
    path = class_archive.archive(settings, found)
    assert path.parent == settings.data_dir / "classes"
    assert path != class_archive.archive(settings, java.Java(found.home, "99", "PATH"))
    path.parent.mkdir(parents=True)
    path.touch()
    options = class_archive.applied({JAVA_OPTIONS: "-Xss2m"}, path)[JAVA_OPTIONS]
    assert options.startswith(f"-XX:SharedArchiveFile={path} ")
    assert options.endswith(" -Xss2m")
