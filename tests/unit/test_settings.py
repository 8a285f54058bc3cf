"""Settings: which value wins, where it came from, and how a bad value is reported."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from dataflowd.cli.dataflowd import run_daemon
from dataflowd.host import settings
from dataflowd.model.errors import InvalidSettingsError
from dataflowd.model.masking import MASK, mask
from tests.fix_postgres import run_program

if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[[str], Path]

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
SECRET = "hunter2"  # noqa: S105 - what must not be shown


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(settings.ENV_PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(settings, "SYSTEM_CONFIG", tmp_path / "etc" / "config.toml")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "dataflowd.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_environment_outranks_the_file_and_the_file_the_default(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("environment = 'test'\nconnect_timeout = 3\n")
    monkeypatch.setenv("DATAFLOW_CONNECT_TIMEOUT", "4")
    loaded = settings.load(path)
    assert (loaded.settings.environment, loaded.settings.connect_timeout) == ("test", 4)
    assert loaded.origins["environment"] == f"{path}:1"
    assert loaded.origins["connect_timeout"] == "environment DATAFLOW_CONNECT_TIMEOUT"
    assert loaded.origins["log_level"] == "default"


def test_the_users_file_outranks_the_systems(tmp_path: Path) -> None:
    for place, text in {
        "etc/config.toml": "environment = 'system'\nmaster = 'yarn'",
        ".config/dataflowd/config.toml": "environment = 'user'",
    }.items():
        path = tmp_path / place
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    found = settings.load().settings
    assert (found.environment, found.master) == ("user", "yarn")


def test_an_empty_variable_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAFLOW_DSN", "")
    loaded = settings.load()
    assert loaded.settings.dsn is None
    assert loaded.origins["dsn"] == "default"


@pytest.mark.parametrize("text", ["/a.toml,/b.toml", '["/a.toml", "/b.toml"]', " /a.toml , /b.toml ,"])
def test_a_list_in_the_environment_is_json_or_separated_by_commas(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATAFLOW_FLOWS", text)
    assert settings.load().settings.flows == [Path("/a.toml"), Path("/b.toml")]


def test_a_relative_path_in_a_file_is_relative_to_the_file(write: Write, tmp_path: Path) -> None:
    path = write("flows = ['flow.toml']\nroot = 'data'\nallowed_roots = ['s3a://bucket/x', '/abs']")
    found = settings.load(path).settings
    assert found.flows == [tmp_path / "flow.toml"]
    assert found.root == str(tmp_path / "data")
    assert found.allowed_roots == ["s3a://bucket/x", "/abs"]


def test_root_is_the_only_allowed_root_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATAFLOW_DATA_DIR", str(tmp_path))
    assert settings.load().settings.effective_allowed_roots == [str(tmp_path / "data")]
    monkeypatch.setenv("DATAFLOW_ALLOWED_ROOTS", "/srv/in")
    assert settings.load().settings.effective_allowed_roots == [str(tmp_path / "data"), "/srv/in"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("connect_timeout = \n", "not valid TOML"),
        ("environment = 'a'\nconnect_timeout = 'soon'\n", "dataflowd.toml:2: connect_timeout"),
        ("connect_timeout = 0\n", "greater than or equal to 1"),
        ("log_level = 'loud'\n", "'debug', 'info'"),
        ("flows = 3\n", "dataflowd.toml:1: flows"),
        (
            "\nconect_timeout = 1\n",
            "dataflowd.toml:2: unknown setting 'conect_timeout' (did you mean 'connect_timeout'?)",
        ),
        ("[dsn]\nhost = 'x'\n", "dataflowd.toml:1: dsn"),
        ("[postgres]\nhost = 'x'\n", "dataflowd.toml:1: unknown setting 'postgres'"),
    ],
)
def test_a_bad_file_is_named_with_its_line(write: Write, text: str, expected: str) -> None:
    path = write(text)
    with pytest.raises(InvalidSettingsError) as caught:
        settings.load(path)
    assert expected in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.remedy


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidSettingsError, match="not valid TOML"):
        settings.load(path)
    with pytest.raises(InvalidSettingsError, match="cannot be read: Is a directory"):
        settings.load(tmp_path)


def test_all_wrong_values_are_reported_at_once(write: Write) -> None:
    with pytest.raises(InvalidSettingsError) as caught:
        settings.load(write("connect_timeout = 'x'\nlog_format = 'y'\n"))
    assert "connect_timeout" in caught.value.message
    assert "log_format" in caught.value.message


def test_a_mistyped_variable_is_refused_and_a_foreign_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAFLOW_REGION_OF_ANOTHER_PROGRAM", "x")
    settings.load()
    monkeypatch.setenv("DATAFLOW_DNS", "x")
    with pytest.raises(InvalidSettingsError, match=r"DATAFLOW_DNS \(did you mean 'dsn'\?\)"):
        settings.load()


def test_an_error_never_shows_the_value(write: Write) -> None:
    with pytest.raises(InvalidSettingsError) as caught:
        settings.load(write(f"dsn = ['{SECRET}']\nlog_level = '{SECRET}'\n"))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://me:{SECRET}@db.example/flow",
        f"postgresql://:{SECRET}@db.example/flow",
        f"postgresql://me:{SECRET}@x@db.example/flow",
        f"postgresql://db.example/flow?user=me&password={SECRET}",
        f"host=db.example password={SECRET} user=me",
        f"host=db.example password = '{SECRET} and \\' more {SECRET}' user=me",
        f"password=a\\ {SECRET}",
        f"PASSWORD={SECRET}",
        f"sslpassword={SECRET}",
        f"{{'password': '{SECRET}'}}",
        f'{{"api_key": "{SECRET}"}}',
    ],
)
def test_no_form_of_a_connection_string_shows_its_password(text: str) -> None:
    assert SECRET not in mask(text)
    assert MASK in mask(text)


@pytest.mark.parametrize(
    "text", ["postgresql://me@db.example:5432/flow", "host=/tmp port=5432 dbname=flow", "rows=3"]
)
def test_what_holds_no_secret_is_shown_as_it_is(text: str) -> None:
    assert mask(text) == text


def test_config_prints_every_setting_with_its_origin_and_without_secrets(
    write: Write, tmp_path: Path
) -> None:
    path = write(f"dsn = 'postgresql://me:{SECRET}@db.example/flow'\n")
    env = {"HOME": str(tmp_path), "DATAFLOW_MASTER": "local[2]"}
    shown = run_program("dataflowd", "--config", str(path), "config", "--json", env=env)
    assert shown.returncode == 0, shown.stderr
    rows = {row["name"]: row for row in json.loads(shown.stdout)}
    assert list(rows) == list(settings.Settings.model_fields)
    assert rows["dsn"]["value"] == f"postgresql://me:{MASK}@db.example/flow"
    assert rows["dsn"]["origin"] == f"{path}:1"
    assert rows["master"]["origin"] == "environment DATAFLOW_MASTER"
    assert all(row["description"] for row in rows.values())
    readable = run_program("dataflowd", "--config", str(path), "config", env=env)
    assert readable.returncode == 0
    assert f"postgresql://me:{MASK}@db.example/flow" in readable.stdout
    assert SECRET not in readable.stdout


def test_a_reload_replaces_all_settings_but_those_that_need_a_restart(
    write: Write,
) -> None:
    before = settings.load(write("poll = 5\nlease = 30\nengine = 'noop'\n")).settings
    fresh = settings.load(write("poll = 6\nlease = 31\nengine = 'noop'\n")).settings
    after, waiting = settings.reloaded(before, fresh)
    assert (after.poll, after.lease) == (6, 30)
    assert waiting == ["lease"]
    assert before.poll == 5


def test_settings_cannot_be_changed_in_place() -> None:
    found = settings.load().settings
    with pytest.raises(ValidationError, match="frozen"):
        found.poll = 1.0  # type: ignore[misc]


def test_every_holder_of_the_current_settings_sees_a_reload() -> None:
    current = settings.Current(settings.load().settings)
    kept = current
    current.settings = current.settings.model_copy(update={"poll": 1.0})
    assert kept.settings.poll == 1.0


def test_what_the_command_line_gives_is_checked_as_the_setting_is() -> None:
    found = settings.load().settings
    assert settings.replaced(found, "daemon_name", "d1").daemon_name == "d1"
    for name, value in {"daemon_name": "1 d", "engine": "steam"}.items():
        with pytest.raises(ValidationError):
            settings.replaced(found, name, value)


def test_help_and_docs_name_the_settings_that_need_a_restart() -> None:
    [signal] = [line for line in REFERENCE.read_text(encoding="utf-8").splitlines() if "| SIGHUP |" in line]
    assert set(re.findall("`([a-z_]+)`", signal)) == set(settings.FIXED)
    shown = " ".join((run_daemon.__doc__ or "").split())
    assert set(shown.rpartition("as they were: ")[2].rstrip(".").split(", ")) == set(settings.FIXED)
    assert all(settings.description(name).endswith("needs a restart") for name in settings.FIXED)
