"""The unit files: systemd accepts them, and the template has the same settings as the plain unit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dataflowd.cli.doctor import unit as doctor_unit
from dataflowd.host import keyfile

UNITS = Path(__file__).resolve().parents[2] / "systemd"
INSTALLED = "/opt/dataflowd/bin/dataflowd"
# Hosts with an old systemd do not know Type=notify-reload, and take it for Type=simple.
TOO_NEW = "Failed to parse service type, ignoring: notify-reload"
EXPECTED_VERSION = re.compile(r"systemd (\d+)")
EXPOSURE = re.compile(r"exposure level (\d+\.\d)")

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The shipped units, with a program that exists on this host."""
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
@pytest.mark.parametrize(
    ("name", "word"),
    [("before-253.conf", "Type="), ("runner-user.conf", "User="), ("data.conf", "ReadWritePaths=")],
)
def test_systemd_finds_no_mistake_in_a_drop_in(installed: Path, name: str, word: str) -> None:
    drop_in = installed / "dataflowd.service.d" / name
    drop_in.parent.mkdir()
    shutil.copy(UNITS / drop_in.name, drop_in)
    assert drop_in.name not in analyze("verify", "--man=no", str(installed / "dataflowd.service")).stderr
    drop_in.write_text(drop_in.read_text(encoding="utf-8").replace(word, f"X{word}"), encoding="utf-8")
    # A misspelt word is reported, so the silence above means that the drop-in is right.
    assert drop_in.name in analyze("verify", "--man=no", str(installed / "dataflowd.service")).stderr


@needs_systemd
@pytest.mark.parametrize("name", ["dataflowd.service", "dataflowd@blue.service"])
def test_the_daemon_is_no_more_exposed_than_its_page_says(installed: Path, name: str) -> None:
    stated = EXPOSURE.search((UNITS.parent / "docs" / "deploy.md").read_text(encoding="utf-8"))
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


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of units, and a settings file whose root the units may not write to."""
    for name in ("dataflowd.service", "dataflowd@.service"):
        text = (UNITS / name).read_text(encoding="utf-8").replace(INSTALLED, "/bin/true")
        (tmp_path / name).write_text(text.replace("Type=notify-reload", "Type=notify"), encoding="utf-8")
    (tmp_path / "config.toml").write_text('root = "/srv/data"\n', encoding="utf-8")
    for name in [name for name in os.environ if name.startswith("DATAFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SYSTEMD_UNIT_PATH", str(tmp_path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return tmp_path


def said(host: Path, unit: str) -> list[tuple[str, str, str]]:
    found = doctor_unit.examine(unit, host / "config.toml")
    return [(each.state, each.detail, each.remedy) for each in found]


def drop_in(host: Path, unit: str, text: str) -> None:
    path = host / f"{unit}.d" / "data.conf"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("unit", "directory"), [("dataflowd", "dataflowd.service"), ("dataflowd@blue", "dataflowd@.service")]
)
def test_the_doctor_says_that_a_root_is_read_only_for_the_unit_and_how_to_open_it(
    host: Path, unit: str, directory: str
) -> None:
    [wrong] = [each for each in said(host, unit) if each[0] != "ok"]
    assert wrong[:2] == ("failed", "/srv/data is read-only for the unit by ProtectSystem=strict")
    assert f"/etc/systemd/system/{directory}.d/data.conf" in wrong[2]
    assert "ReadWritePaths=/srv/data" in wrong[2]
    there = host / "data"
    there.mkdir()
    there.chmod(0o777)
    (host / "config.toml").write_text(f'root = "{there}"\n', encoding="utf-8")
    drop_in(host, directory, f"[Service]\nReadWritePaths=-/nowhere {there}\nPrivateTmp=no\n")
    assert [each for each in said(host, unit) if each[0] != "ok"] == []


def test_the_drop_in_that_is_shipped_opens_the_root_of_the_page(host: Path) -> None:
    drop_in(host, "dataflowd.service", (UNITS / "data.conf").read_text(encoding="utf-8"))
    assert [each for each in said(host, "dataflowd") if "read-only" in each[1]] == []


def test_the_doctor_knows_what_else_keeps_a_unit_from_its_data(host: Path) -> None:
    (host / "config.toml").write_text(
        'root = "/home/data"\nflows = ["/home/me/flow.toml"]\n', encoding="utf-8"
    )
    drop_in(host, "dataflowd.service", "[Service]\nReadWritePaths=/nowhere\nExecStart=\nExecStart=/nowhere/dataflowd run\n")  # fmt: skip
    failed = [detail for state, detail, _ in said(host, "dataflowd") if state == "failed"]
    assert failed == [
        "it starts /nowhere/dataflowd, which is no program",
        "/home/data is hidden from the unit by ProtectHome=yes",
        "/nowhere of ReadWritePaths is not there, so that systemd does not start the unit (status 226)",
        "the flow file /home/me/flow.toml is hidden from the unit by ProtectHome=yes",
    ]


def test_the_settings_are_those_that_the_unit_would_find(host: Path) -> None:
    """By default data is in the state directory, which the unit may write to. The unit's environment outranks the settings file."""
    (host / "config.toml").write_text("", encoding="utf-8")
    # Not /var/lib/dataflowd: this host may have a daemon of its own.
    drop_in(
        host,
        "dataflowd.service",
        "[Service]\nEnvironment=DATAFLOW_DATA_DIR=/var/lib/a-test\nStateDirectory=a-test\n",
    )
    assert ("ok", "/var/lib/a-test/data is writable for the unit", "") in said(host, "dataflowd")
    (host / "blue").write_text("# of this instance\nDATAFLOW_ROOT='/srv/blue'\n", encoding="utf-8")
    drop_in(host, "dataflowd@.service", f"[Service]\nEnvironmentFile={host}/%i\n")
    assert ("failed", "/srv/blue is read-only for the unit by ProtectSystem=strict") in [
        each[:2] for each in said(host, "dataflowd@blue")
    ]


def test_a_missing_unit_and_a_wrong_name_are_reported(host: Path) -> None:
    assert said(host, "dataflow")[0][1].startswith("there is no unit dataflow.service in ")
    assert said(host, "../etc/passwd")[0][1] == "'../etc/passwd' is no unit"


@needs_systemd
@pytest.mark.parametrize("name", ["dataflowd.service", "dataflowd@.service"])
def test_the_doctor_says_that_an_old_systemd_needs_the_drop_in(host: Path, name: str) -> None:
    (host / name).write_text((UNITS / name).read_text(encoding="utf-8"), encoding="utf-8")
    unit = name.replace("@.", "@blue.")
    old = int(EXPECTED_VERSION.findall(analyze("--version").stdout)[0]) < doctor_unit.NOTIFY_RELOAD_SINCE
    remedies = [
        remedy for _, detail, remedy in said(host, unit) if "does not know the Type=notify-reload" in detail
    ]
    assert len(remedies) == old
    assert all(f"/etc/systemd/system/{name}.d/before-253.conf" in remedy for remedy in remedies)
