"""Types the commands of README, docs/deploy.md and docs/scripts.md in a fresh clone: every command works, in the order of the page.

Commands that would change this host (packages, accounts, services) are not run. Of the commands for root, only those that install files run, below another root.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests import fix_classes, readme
from tests.fix_postgres import TEST_SERVER_SETTINGS, running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Server

DEPLOY, SCRIPTS = readme.DOCS / "deploy.md", readme.DOCS / "scripts.md"
OWN_SERVER, DAEMON, SERVICE = "With a Postgres of your own", "The daemon", "From zero to `systemctl status`"
FIRST_JOB, FIRST_SCRIPT, RECOVERY = "Your first job", "Your first script", "A recovery"
TYPED = {
    readme.README: {"Quick start", FIRST_JOB, FIRST_SCRIPT, RECOVERY},
    DEPLOY: {OWN_SERVER, DAEMON, SERVICE},
    SCRIPTS: {"The first run"},
}
PATIENCE_SECONDS = 300
HOST_COMMANDS = (
    "python3",
    "mkdir",
    "chown",
    "/opt/dataflowd/bin/dataflowctl",
    "/opt/dataflowd/bin/pip",
    "systemd-sysusers",
    "systemd-tmpfiles",
    "systemctl",
)


class Terminal:
    """The reader's shell: exported variables stay for later commands."""

    def __init__(self, home: Path, directory: Path) -> None:
        self.directory = directory
        self.env = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "DATAFLOW_DATA_DIR": str(home / "dataflowd"),
            "DATAFLOW_HTTP_PORT": "0",
        } | fix_classes.variables()

    def type(self, command: str, status: int = 0) -> str:
        if command.startswith("export "):
            name = command.removeprefix("export ").split("=", 1)[0]
            self.env[name] = self.type(f'{command.removeprefix("export ")}; printf %s "${name}"')
            return ""
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.directory,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == status, (command, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the project without generated files. It is no clone by git, because the checkout may have no .git."""
    made = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__")
    return Path(shutil.copytree(readme.ROOT, tmp_path / "clone", ignore=made))


@pytest.fixture
def terminal(clone: Path, tmp_path: Path) -> Terminal:
    (tmp_path / "home").mkdir()
    return Terminal(tmp_path / "home", clone)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server for this test alone: the page creates roles, which belong to a server."""
    with running_server(TEST_SERVER_SETTINGS) as started:
        yield started


def test_every_section_with_commands_is_typed_by_a_test() -> None:
    for path, typed in TYPED.items():
        found = {title for title in readme.sections(path) if readme.blocks(title, "console", path)}
        assert found == typed, "type the commands of the new section here"


def test_the_commands_of_quick_start_and_own_server_work(terminal: Terminal, empty_dsn: str) -> None:
    demo, install = readme.commands("Quick start")
    # tests/spark/test_demo.py runs the demo; here `make --dry-run` shows that it would.
    (terminal.directory / ".venv").symlink_to(Path(sys.executable).parents[1])
    assert "dataflowd demo" in terminal.type(f"{demo} --dry-run")
    terminal.type(f"{install} --dry-run")

    again, path, export, *setup = readme.commands(OWN_SERVER, path=DEPLOY)
    assert again == install
    assert (
        path == 'export PATH="$PWD/.venv/bin:$PATH"'
    )  # not typed: the tests have the commands on PATH already
    assert export.startswith("export DATAFLOW_DSN=")
    terminal.env["DATAFLOW_DSN"] = empty_dsn
    assert [command.split()[:2] for command in setup] == [["dataflowctl", "init"], ["dataflowctl", "doctor"]]
    for command in setup:
        terminal.type(command)


def test_the_first_job_the_first_script_and_a_recovery(terminal: Terminal, empty_dsn: str) -> None:
    terminal.env["DATAFLOW_DSN"] = empty_dsn
    shop = terminal.directory = terminal.directory / "shop"
    shop.mkdir()
    [flow], [code] = (readme.blocks(FIRST_JOB, language) for language in ("toml", "python"))
    (shop / "flow.toml").write_text(flow, encoding="utf-8")
    (shop / "jobs.py").write_text(code, encoding="utf-8")
    *_, chunks, quarantined = (terminal.type(command) for command in readme.commands(FIRST_JOB))
    assert re.search(r"2026-01-01 +READY +\S+ +1 +1 ", chunks)
    assert "amount must be positive" in quarantined

    [added], [script] = (readme.blocks(FIRST_SCRIPT, language) for language in ("toml", "sh"))
    (shop / "flow.toml").write_text(f"{flow}\n{added}", encoding="utf-8")
    (shop / "find_large.sh").write_text(script, encoding="utf-8")
    *_, chunks = (terminal.type(command) for command in readme.commands(FIRST_SCRIPT))
    assert re.search(r"2026-01-01 +READY +- +1 ", chunks)
    [made] = (shop / "data").rglob("part-1.csv")
    assert made.read_text(encoding="utf-8") == "1,ann,5.00\n"

    register, fail, look, explain, repair, recover, again, healthy = readme.commands(RECOVERY)
    terminal.type(register)
    terminal.type(fail, status=1)
    assert "INVALID_PATH" in terminal.type(look)
    assert re.search(
        r"✗ 3\. Is it in the right place\? +INVALID_PATH: .*/data/raw/2026-01-02\.csv", terminal.type(explain)
    )
    terminal.type(repair)
    assert "resubmit: " in terminal.type(recover)
    for command in (again, healthy):
        terminal.type(command)


def test_the_commands_of_the_scripts_page_run_a_first_script(terminal: Terminal, empty_dsn: str) -> None:
    terminal.env["DATAFLOW_DSN"] = empty_dsn
    [flow], [script] = (readme.blocks("The first run", language, SCRIPTS) for language in ("toml", "sh"))
    (terminal.directory / "flow.toml").write_text(flow, encoding="utf-8")
    (terminal.directory / "load_orders.sh").write_text(script, encoding="utf-8")
    (terminal.directory / "load_orders.sh").chmod(0o755)
    lay_down(terminal, "raw/2026-01-01.csv", "# header\n1,a\n2,b\n")
    typed = readme.commands("The first run", path=SCRIPTS)
    assert len(typed) == 5
    said = [terminal.type(command) for command in typed]
    assert re.search(r"2026-01-01 +READY +- +1 +2 ", said[-1]), said[-1]


def test_a_database_for_the_service_and_daemons_in_the_foreground(
    terminal: Terminal, own_server: Server
) -> None:
    [roles] = readme.blocks(SERVICE, "sql", DEPLOY)
    with psycopg.connect(own_server.dsn, autocommit=True) as connection:
        for statement in filter(None, map(str.strip, re.sub(r"--.*", "", roles).split(";"))):
            connection.execute(statement.encode())
    database = own_server.database("flow")
    terminal.env["DATAFLOW_DSN"] = psycopg.conninfo.make_conninfo(database, user="flow_admin")
    terminal.type("dataflowctl init")
    with psycopg.connect(terminal.env["DATAFLOW_DSN"], autocommit=True) as connection:
        connection.execute("GRANT dataflow_daemon TO flow_daemon")
        terminal.env["DATAFLOW_DSN"] = psycopg.conninfo.make_conninfo(database, user="flow_daemon")
        typed = readme.commands(DAEMON, path=DEPLOY)
        assert [command for command in typed if not command.startswith("dataflowd run")] == []
        for command in typed:
            run_daemon(terminal, command)


def run_daemon(terminal: Terminal, command: str) -> None:
    """Runs the daemon until it has started, and ends it by Ctrl-C."""
    if "--once" in command:
        terminal.type(command)
        return
    process = subprocess.Popen(
        shlex.split(command), cwd=terminal.directory, env=terminal.env, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        said = next((line for line in process.stderr if "daemon.started" in line), "")
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, bool(said)) == (0, True), rest


def test_the_commands_for_root_install_every_unit(terminal: Terminal, tmp_path: Path) -> None:
    for line in readme.commands(SERVICE, prompt="#", path=DEPLOY):
        for command in line.split(" && "):
            program, *words = shlex.split(command)
            if program == "install":
                target = Path(f"{tmp_path}/root{words[-1]}")
                is_directory = words[-1].endswith("/")
                (target if is_directory else target.parent).mkdir(parents=True, exist_ok=True)
                terminal.type(shlex.join([program, *words[:-1], str(target)]))
            else:
                assert program in HOST_COMMANDS, command
    laid = {path.name for path in (tmp_path / "root").rglob("*") if path.is_file()}
    units = {path.name for path in (readme.ROOT / "systemd").iterdir()} - {
        "dataflowd.sysusers",
        "dataflowd.tmpfiles",
    }
    assert laid == units | {"dataflowd.conf"}


def lay_down(terminal: Terminal, name: str, text: str) -> None:
    path = Path(terminal.env["DATAFLOW_DATA_DIR"]) / "data" / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
