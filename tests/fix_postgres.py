"""One real Postgres for the session, a fresh database for each test, and the programs on that database."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psycopg
import pytest
from psycopg import conninfo, sql
from pydantic import SecretStr

from dataflowd.database import migrate
from dataflowd.host.embedded import postgres
from dataflowd.host.settings import ENV_PREFIX, Settings
from tests import fix_classes, forked_ctl
from tests.fix_leaks import assert_no_advisory_locks, remaining

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TEMPLATE = "dataflow_template"
SOMEBODY = "somebody"
PROGRAM_TIMEOUT_SECONDS = 600  # a program that starts Spark may need minutes on a busy machine
CLOSING_SECONDS = 0.5
ENOUGH_TESTS = 20
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = %s"

# The data of a test need not survive a power failure. Many tests together need many connections.
TEST_SERVER_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "256MB",
}

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Server:
    data_dir: Path
    dsn: str

    def database(self, name: str) -> str:
        return conninfo.make_conninfo(self.dsn, dbname=name)

    def execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)

    @contextmanager
    def login(self, dsn: str, role: str = "", user: str = SOMEBODY) -> Iterator[str]:
        """The DSN for a new user who is a member of this role alone. The user is dropped at the end."""
        name = sql.Identifier(user)
        self.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        try:
            if role:
                self.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), name))
            yield conninfo.make_conninfo(dsn, user=user)
        finally:
            self.execute(sql.SQL("DROP ROLE {}").format(name))


class RunCtl(Protocol):
    def __call__(
        self, *arguments: str, env: Mapping[str, str | None] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]: ...


@contextmanager
def reachable_directory() -> Iterator[Path]:
    """A temporary directory with a short path. Unlike pytest's own, the account that runs Postgres for root can enter it."""
    path = Path(tempfile.mkdtemp(prefix="test-"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


def configure(data_dir: Path, settings: Mapping[str, str]) -> None:
    """Gives the server these settings from its next start on, and lets every role log in without a password."""
    rules = data_dir / "pg_hba.conf"
    rules.write_text("local all all trust\n", encoding="ascii")
    rules.chmod(0o644)
    with psycopg.connect(postgres.ensure_running(data_dir), autocommit=True) as connection:
        for name, value in {**settings, "hba_file": str(rules)}.items():
            connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value))
    postgres.stop(data_dir)


@contextmanager
def running_server(settings: Mapping[str, str]) -> Iterator[Server]:
    """A server with these settings, where every role can log in without a password. It is removed at the end."""
    with reachable_directory() as data_dir:
        try:
            configure(data_dir, settings)
            yield Server(data_dir, postgres.ensure_running(data_dir))
        finally:
            postgres.stop(data_dir)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running_server(TEST_SERVER_SETTINGS) as started:
        yield started


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """The name of a database with the schema. Every test gets a copy of it."""
    server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
    with psycopg.connect(server.database(TEMPLATE), autocommit=True) as connection:
        migrate.init(connection)
    return TEMPLATE


@pytest.fixture
def dsn(server: Server, template: str) -> Iterator[str]:
    """A fresh database with the schema."""
    with database(server, template) as fresh:
        yield fresh


@pytest.fixture
def empty_dsn(server: Server) -> Iterator[str]:
    """A fresh database without the schema."""
    with database(server, "template1") as fresh:
        yield fresh


@contextmanager
def database(server: Server, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    create = "CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY"
    server.execute(sql.SQL(create).format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield server.database(name)
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            assert_no_advisory_locks(admin, name)
            # DROP DATABASE sleeps for 0.1 s where the backend of a closed connection is not gone yet.
            remaining(lambda: set(admin.execute(SESSIONS, [name]).fetchall()), seconds=CLOSING_SECONDS)
    finally:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection to the test's database."""
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def settings(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    # Variables override arguments, and the person who runs the tests may have set some for dataflowd.
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)
    return Settings(dsn=SecretStr(dsn), data_dir=tmp_path / "dataflowd", class_archives=fix_classes.made())


@pytest.fixture(scope="session", autouse=True)
def forking(request: pytest.FixtureRequest, temporary_directory: Path) -> Iterator[None]:
    """Starts a process that has imported `dataflowctl`, where enough tests are selected to be worth its start."""
    if len(request.session.items) < ENOUGH_TESTS:
        yield
        return
    with forked_ctl.serving(temporary_directory / "ctl", _variables({})):
        yield


@pytest.fixture
def run_ctl(dsn: str, settings: Settings, tmp_path: Path) -> RunCtl:
    """Runs `dataflowctl` on the test's database. `env` adds variables; None removes one."""

    def run(
        *arguments: str, env: Mapping[str, str | None] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        variables = {"DATAFLOW_DSN": dsn, "DATAFLOW_DATA_DIR": str(settings.data_dir), "HOME": str(tmp_path)}
        variables |= fix_classes.variables()
        return run_dataflowctl(*arguments, env=variables | dict(env or {}), stdin=stdin)

    return run


def run_dataflowctl(
    *arguments: str, env: Mapping[str, str | None], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs `dataflowctl`, if possible in a fork of a process that has loaded it already."""
    variables = _variables(env)
    if forked_ctl.can_run(env):
        return forked_ctl.run([_program("dataflowctl"), *arguments], variables, stdin)
    return run_program("dataflowctl", *arguments, env=env, stdin=stdin)


def run_program(
    name: str, *arguments: str, env: Mapping[str, str | None], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a console script of the package with `env`, and of this process's environment only PATH, LANG and TMPDIR."""
    return subprocess.run(
        [_program(name), *arguments],
        env=_variables(env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_SECONDS,
        check=False,
    )


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _variables(env: Mapping[str, str | None]) -> dict[str, str]:
    inherited: dict[str, str | None] = {key: os.environ.get(key) for key in ("PATH", "LANG", "TMPDIR")}
    return {key: value for key, value in (inherited | dict(env)).items() if value is not None}
