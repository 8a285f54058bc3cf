"""The unit files: right in the eyes of systemd, and the template an instance of the same."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dataflowd import keyfile

UNITS = Path(__file__).resolve().parents[2] / "systemd"
INSTALLED = "/opt/dataflowd/bin/dataflowd"
# Type=notify-reload is younger than what some hosts have; they take it for Type=simple.
TOO_NEW = "Failed to parse service type, ignoring: notify-reload"
EXPOSURE = re.compile(r"exposure level (\d+\.\d)")

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as they are, with a program that is there."""
    for unit, name in (("dataflowd.service",) * 2, ("dataflowd@.service", "dataflowd@blue.service")):
        text = (UNITS / unit).read_text(encoding="utf-8").replace(INSTALLED, "/bin/true")
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@needs_systemd
@pytest.mark.parametrize("name", ["dataflowd.service", "dataflowd@blue.service"])
def test_systemd_finds_no_mistake(installed: Path, name: str) -> None:
    found = analyze("verify", "--man=no", str(installed / name)).stderr.splitlines()
    assert [line for line in found if name in line and TOO_NEW not in line] == []


@needs_systemd
@pytest.mark.parametrize(("name", "word"), [("before-253.conf", "Type="), ("runner-user.conf", "User=")])
def test_systemd_finds_no_mistake_in_a_drop_in(installed: Path, name: str, word: str) -> None:
    drop_in = installed / "dataflowd.service.d" / name
    drop_in.parent.mkdir()
    shutil.copy(UNITS / drop_in.name, drop_in)
    assert drop_in.name not in analyze("verify", "--man=no", str(installed / "dataflowd.service")).stderr
    drop_in.write_text(drop_in.read_text(encoding="utf-8").replace(word, f"X{word}"), encoding="utf-8")
    # So that the silence above is known to mean something.
    assert drop_in.name in analyze("verify", "--man=no", str(installed / "dataflowd.service")).stderr


@needs_systemd
@pytest.mark.parametrize("name", ["dataflowd.service", "dataflowd@blue.service"])
def test_the_daemon_is_no_more_exposed_than_readme_says(installed: Path, name: str) -> None:
    stated = EXPOSURE.search((UNITS.parent / "README.md").read_text(encoding="utf-8"))
    report = analyze("security", "--offline=true", "--no-pager", str(installed / name)).stdout
    level = float(report.rpartition(f"Overall exposure level for {name}: ")[2].split()[0])
    assert stated is not None
    assert level <= float(stated[1])


def test_the_key_is_handed_over_under_the_name_that_is_looked_for() -> None:
    assert f"LoadCredential={keyfile.CREDENTIAL}:" in (UNITS / "dataflowd.service").read_text(
        encoding="utf-8"
    )


def test_the_template_differs_only_in_what_an_instance_needs() -> None:
    plain, template = (
        set((UNITS / name).read_text(encoding="utf-8").splitlines())
        for name in ("dataflowd.service", "dataflowd@.service")
    )
    changed = {line.partition("=")[0] for line in plain ^ template if not line.startswith("#")}
    assert changed == {"Description", "ExecStart", "EnvironmentFile", "RuntimeDirectory"}
