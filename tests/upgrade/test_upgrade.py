"""A database of every release upgrades while it works, and serves the programs of that release until they are restarted.

The database is the one that `python -m tests.keep_schema` kept. An old daemon is its calls: the queries that its release
sends, in the order in which a daemon sends them. The new daemon is the real one.
"""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dataflowd import __version__
from dataflowd.database import migrate
from dataflowd.host import sqlfiles
from dataflowd.model.errors import EXIT
from tests import keep_schema
from tests.fix_daemon import daemons, eventually
from tests.fix_postgres import database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import RunCtl, Server

RELEASES = sorted(path.name for path in keep_schema.KEPT.iterdir())
NEXT = "999.0.0"
# Chunks that a rolling upgrade still has to finish: all but those that wait for a person.
LEFT = """
    SELECT count(*) FROM dataflow.datastatus
    WHERE locktype = 'OUT' AND status NOT IN ('READY', 'HOLD') AND NOT (status = 'FAILED' AND code IN ('JOB_FAILED', 'CANCELLED'))
"""

DONE_BY_NEW = "SELECT count(*) FROM dataflow.attempt WHERE daemon = 'new' AND outcome = 'DONE'"


@dataclass
class OldDaemon:
    """Works as a daemon of that release does, with the queries of that release, until stop() is called."""

    dsn: str
    queries: dict[str, str]
    name: str = "old-2"
    stopping: threading.Event = field(default_factory=threading.Event)
    ended: list[int] = field(default_factory=list)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.connection = psycopg.connect(
            self.dsn, autocommit=True, application_name=f"dataflowd {self.name}"
        )
        told = {"hostname": "elsewhere", "pid": 1, "lease": 60, "environment": "dev", "version": "old"}
        [[incarnation]] = self.call("daemon_register", daemon=self.name, **told)
        self.me = {"daemon": self.name, "incarnation": incarnation}
        self.call("daemon_serve", **self.me, jobs=None)
        self.held = self.claim(2)
        self.thread = threading.Thread(target=self._work)

    def call(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(self.queries[name].encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def claim(self, want: int) -> list[tuple[Any, ...]]:
        return self.call("daemon_claim", **self.me, want=want)

    def finish(self, attempts: list[tuple[Any, ...]]) -> None:
        results = [{"attempt": attempt, "token": token, "outcome": "DONE"} for attempt, token, *_ in attempts]
        while results:
            verdicts = dict(self.call("daemon_finish", results=Jsonb(results)))
            assert set(verdicts.values()) <= {"accepted", "busy"}, verdicts
            self.ended += [attempt for attempt, verdict in verdicts.items() if verdict == "accepted"]
            results = [result for result in results if verdicts[result["attempt"]] == "busy"]

    def _work(self) -> None:
        try:
            while not self.stopping.is_set():
                attempts = self.claim(1)
                numbers = [attempt for attempt, *_ in attempts]
                if attempts:
                    tokens = [token for _, token, *_ in attempts]
                    assert self.call("daemon_started", attempts=numbers, tokens=tokens) == [
                        (numbers[0], True)
                    ]
                    self.call("work_order", attempt=numbers[0], token=tokens[0])
                assert self.call("daemon_cancelled", **self.me, attempts=numbers) == []
                assert self.call("daemon_renew", **self.me) != [(None,)]
                self.finish(attempts)
                for name in (
                    "daemon_tick",
                    "daemon_next_tick",
                    "daemon_fold",
                    "daemon_queued",
                    "daemon_status",
                    "daemon_rescue",
                ):
                    self.call(name)
                self.call("daemon_look", jobs=None)
                self.call("daemon_limits", daemon=self.name)
        except BaseException as error:  # noqa: BLE001 - the test reports it
            self.error = error

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join()
        self.connection.close()
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def roles(template: str) -> None:
    """`template` has created the roles: a dump grants rights to them and does not contain them."""


@contextmanager
def kept(server: Server, release: str) -> Iterator[str]:
    """A fresh database of that release, with work in every state."""
    with database(server, "template1") as dsn:
        keep_schema.restore(dsn, keep_schema.KEPT / release / keep_schema.DUMP)
        yield dsn


def _described(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((keep_schema.KEPT / release / keep_schema.DESCRIBED).read_text())
    return found


def test_no_released_migration_was_edited_or_removed() -> None:
    now = keep_schema.checksums()
    for release in RELEASES:
        for name, checksum in _described(release)["migrations"].items():
            assert now.get(name) == checksum, (
                f"{name} is of release {release}: put the change into a new migration"
            )


def test_the_schema_names_its_release_and_the_oldest_served_one(connection: psycopg.Connection) -> None:
    found = connection.execute("SELECT made_by, serves_from FROM dataflow.schema_version()").fetchone()
    assert found is not None
    made_by, serves_from = found
    assert made_by == __version__, "set the version in sql/functions/version.sql"
    assert serves_from in RELEASES, "the oldest release that is served has to be a kept one"


@pytest.mark.parametrize("release", RELEASES)
def test_a_kept_database_becomes_the_same_schema_as_a_new_one(
    server: Server, template: str, release: str
) -> None:
    """A migration of this release has to drop what the old one leaves behind, such as a function whose arguments changed."""
    with kept(server, release) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate.init(connection)
            assert migrate.drift(connection).is_current
        upgraded, new = (
            set(keep_schema.dump(each, "--schema-only", "--schema=dataflow").splitlines())
            for each in (dsn, server.database(template))
        )
    assert sorted(upgraded ^ new) == []


@pytest.mark.parametrize("release", RELEASES)
def test_what_an_old_program_sends_returns_what_it_expects(server: Server, release: str) -> None:
    """The roles of its daemons and operators keep every grant too.

    New columns may follow those that it expects: a daemon names its columns, and dataflowctl reads rows by key.
    """
    if migrate._release(release) < migrate._release(_serves_from()):
        pytest.skip("no longer served")
    described = _described(release)["queries"]
    queries = keep_schema.queries(keep_schema.KEPT / release / keep_schema.QUERIES)
    with kept(server, release) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        allowed = _allowed(connection)
        migrate.init(connection)
        found = keep_schema.describe(connection, {name: queries[name] for name in described})
        assert {name: columns[: len(described[name])] for name, columns in found.items()} == described
        assert allowed <= _allowed(connection)


@pytest.mark.parametrize("release", RELEASES)
def test_a_call_that_is_under_way_during_an_upgrade_finds_what_its_body_calls(
    server: Server, release: str
) -> None:
    """A running PL/pgSQL function goes on with its old body, and looks up each function only when it calls it."""
    if migrate._release(release) < migrate._release(_serves_from()):
        pytest.skip("no longer served")
    with kept(server, release) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        before = _signatures(connection)
        migrate.init(connection)
        assert before - _signatures(connection) == set()


def _signatures(connection: psycopg.Connection) -> set[str]:
    query: LiteralString = (
        "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'dataflow'::regnamespace"
    )
    return {signature for (signature,) in connection.execute(query)}


def _serves_from() -> str:
    [found] = [
        line
        for line in (sqlfiles.sql_dir() / "functions" / "version.sql").read_text().splitlines()
        if line.startswith("AS $$ SELECT")
    ]
    return found.split("'")[3]


def _allowed(connection: psycopg.Connection) -> set[tuple[str, str]]:
    return set(
        connection.execute(
            "SELECT r.rolname::text, p.oid::regprocedure::text FROM pg_proc p, pg_roles r"
            " WHERE p.pronamespace = 'dataflow'::regnamespace AND starts_with(r.rolname, 'dataflow_')"
            " AND has_function_privilege(r.oid, p.oid, 'EXECUTE')"
            # private functions, which only the schema's owner may call, may be dropped together with their callers
            " AND NOT (starts_with(p.proname, '_') AND r.rolname = 'dataflow_admin')"
        ).fetchall()
    )


@pytest.mark.parametrize("release", RELEASES)
def test_a_database_is_upgraded_while_an_old_daemon_works_and_a_new_one_joins(
    server: Server, tmp_path: Path, release: str
) -> None:
    queries = keep_schema.queries(keep_schema.KEPT / release / keep_schema.QUERIES)
    with kept(server, release) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        old = OldDaemon(dsn, queries)
        assert old.held
        old.thread.start()
        try:
            assert migrate.init(connection)
            before = len(old.ended)
            old_claims = [attempt for attempt, *_ in old.held]
            _give(connection)
            eventually(lambda: len(old.ended) > before + 1)
            with daemons(dsn, tmp_path / "none", tmp_path) as start:
                new = start(name="new", engine="noop")
                # The old daemon may claim all runs before the new one does, so that more are registered each time.
                eventually(lambda: _give(connection) and _count(connection, DONE_BY_NEW))
                _finish_held(old)
                eventually(lambda: _count(connection, LEFT) == 0)
                new.stop()
        finally:
            old.stop()
        with psycopg.connect(dsn, autocommit=True) as again:
            outcomes: dict[int, str | None] = dict(
                again.execute("SELECT attempt, outcome FROM dataflow.attempt").fetchall()
            )
            lost = again.execute(
                "SELECT outcome FROM dataflow.attempt WHERE daemon = 'old-1' AND code = 'LOST'"
            ).fetchall()
        assert {outcomes[attempt] for attempt in old_claims} == {"DONE"}
        assert lost
        assert None not in outcomes.values()


def _give(connection: psycopg.Connection) -> int:
    """Registers thirty new chunks."""
    return _count(
        connection,
        "SELECT dataflow.ready('raw', ARRAY(SELECT 'more-' || n + i FROM generate_series(1, 30) i))"
        " FROM (SELECT count(*) n FROM dataflow.datastatus WHERE starts_with(dataid, 'more-')) given",
    )


def _finish_held(old: OldDaemon) -> None:
    """Finishes the attempts that the old daemon claimed before the upgrade. Its thread uses the same session, and has to stop first."""
    old.stopping.set()
    old.thread.join()
    old.finish(old.held)


def _count(connection: psycopg.Connection, query: LiteralString) -> int:
    [[found]] = connection.execute(query).fetchall()
    return int(found)


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes this process a program of the next release: one more migration, and a newer version in sql/functions/version.sql."""
    directory = shutil.copytree(sqlfiles.sql_dir(), tmp_path / "next" / "sql")
    (directory / "migrations" / "9998_next.sql").write_text(
        "ALTER TABLE dataflow.attempt ADD COLUMN note text;\nALTER TABLE dataflow.datastatus ADD COLUMN note text;\n"
    )
    _serve_from(directory, __version__)
    monkeypatch.setattr(sqlfiles, "sql_dir", lambda: directory)
    monkeypatch.setattr(migrate, "__version__", NEXT)
    sqlfiles._named.cache_clear()
    yield directory
    sqlfiles._named.cache_clear()


def _serve_from(directory: Path, oldest: str) -> None:
    path = directory / "functions" / "version.sql"
    text = path.read_text()
    head, _, tail = text.partition("AS $$ SELECT ")
    path.write_text(f"{head}AS $$ SELECT '{NEXT}', '{oldest}' $$;{tail.partition('$$;')[2]}")


def test_a_daemon_of_this_release_works_on_the_schema_of_the_next(
    next_release: Path, connection: psycopg.Connection, dsn: str, tmp_path: Path, run_ctl: RunCtl
) -> None:
    """A daemon of this release works during the upgrade, and starts again after it. `init` of this release leaves the newer schema alone."""
    connection.execute(keep_schema.DECLARED)
    connection.execute("SELECT dataflow.ready('raw', ARRAY(SELECT i::text FROM generate_series(1, 500) i))")
    with daemons(dsn, tmp_path / "none", tmp_path) as start:
        first = start(name="this", engine="noop")
        done = migrate.init(connection)
        assert done[0] == "applied migration 9998_next.sql"
        connection.execute("SELECT dataflow.ready('raw', 'after')")
        eventually(lambda: _ready(connection, "after"))
        first.kill()
        start(name="this", engine="noop").said("schema.newer")
        connection.execute("SELECT dataflow.ready('raw', 'restarted')")
        eventually(lambda: _ready(connection, "restarted"))
    before = connection.execute("SELECT * FROM dataflow.migration ORDER BY name").fetchall()
    refused = run_ctl("init")
    assert refused.returncode == EXIT["SCHEMA_MISMATCH"]
    assert NEXT in refused.stderr
    assert connection.execute("SELECT * FROM dataflow.migration ORDER BY name").fetchall() == before
    _serve_from(next_release, NEXT)
    migrate.init(connection)
    with daemons(dsn, tmp_path / "none", tmp_path) as start:
        too_old = start(name="this", engine="noop", wait=False)
        assert too_old.ended() == EXIT["SCHEMA_MISMATCH"]
        assert NEXT in too_old.log_path.read_text()


def _ready(connection: psycopg.Connection, dataid: str) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM dataflow.datastatus WHERE dataid = %s AND datasetid = 'sums' AND status = 'READY'",
        [dataid],
    ).fetchone()
    return found == (1,)


def test_an_upgrade_that_waits_for_an_open_transaction_blocks_nobody(
    next_release: Path,  # noqa: ARG001 - the release to upgrade to
    connection: psycopg.Connection,
    dsn: str,
) -> None:
    connection.execute(keep_schema.DECLARED)
    connection.execute("SELECT dataflow.ready('raw', '1')")
    failures: list[BaseException] = []

    def upgrade() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as own:
                migrate.init(own)
        except BaseException as error:  # noqa: BLE001 - the test reports it
            failures.append(error)

    upgrading = threading.Thread(target=upgrade)
    with psycopg.connect(dsn) as person:
        person.execute("UPDATE dataflow.datastatus SET reason = 'hm' WHERE dataid = '1'")
        upgrading.start()
        connection.execute("SET lock_timeout = '20s'")
        for number in range(2, 12):
            connection.execute("SELECT dataflow.ready('raw', %s::text)", [str(number)])
        assert upgrading.is_alive()
        person.rollback()
    upgrading.join()
    assert failures == []
    assert migrate.drift(connection).is_current
