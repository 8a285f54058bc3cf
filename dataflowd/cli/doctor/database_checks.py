"""The doctor's checks of the control database: the server, its schema and roles, daemons, clocks, and what was applied."""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
from psycopg import conninfo
from psycopg.types.json import Jsonb

from dataflowd import flow
from dataflowd.cli.doctor import keys
from dataflowd.cli.doctor.finding import Finding
from dataflowd.database import db, migrate
from dataflowd.model.errors import DataflowError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.host.settings import Settings

NOTIFY_SECONDS = 3.0
CLOCK_TOLERANCE = timedelta(seconds=5)
ROLES = "roles"
SHOWN_CHANGES = 5
RUNS_JOBS = {"dataflow_daemon", "dataflow_admin"}
POOLER_REMEDY = "let DATAFLOW_DSN name Postgres itself, or a pooler in session mode"


def database(settings: Settings) -> Iterator[Finding]:
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(db.connect(settings, "dataflowd doctor"))
        except DataflowError as error:
            yield Finding("postgres", "failed", error.message, error.remedy)
            yield Finding("schema", "skipped", "needs Postgres")
            return
        yield _server(connection)
        yield _tls(settings, connection)
        for check in (_schema, _roles, _clock, _daemons):
            try:
                with db.translated():
                    yield check(connection)
            except DataflowError as error:
                yield Finding(check.__name__.removeprefix("_"), "failed", error.message, error.remedy)
        yield _listen(settings, connection)
        with suppress(psycopg.Error):  # the check of the schema has reported it
            yield from applied(settings, connection)
        with suppress(psycopg.Error):
            yield from keys.examine(settings, connection)


def _server(connection: psycopg.Connection) -> Finding:
    version = connection.info.server_version
    detail = (
        f"Postgres {version // 10000}.{version % 10000} as {connection.info.user} on {_place(connection)}"
    )
    if version < migrate.MINIMUM_SERVER_VERSION:
        return Finding("postgres", "failed", detail, "dataflowd needs Postgres 15 or newer")
    return Finding("postgres", "ok", detail)


def _place(connection: psycopg.Connection) -> str:
    info = connection.info
    return f"{info.host}:{info.port}/{info.dbname}"


def _tls(settings: Settings, connection: psycopg.Connection) -> Finding:
    host = connection.info.host
    if host.startswith(("/", "@")) or host in {"localhost", "127.0.0.1", "::1"}:
        return Finding("tls", "ok", "the connection does not leave this host")
    mode = connection.info.get_parameters().get("sslmode") or _configured_sslmode(settings)
    if mode == "verify-full":
        return Finding("tls", "ok", "sslmode=verify-full")
    return Finding(
        "tls",
        "warning",
        f"sslmode={mode}: "
        + ("encrypted, but to whom is not verified" if connection.pgconn.ssl_in_use else "not encrypted"),
        "add sslmode=verify-full and sslrootcert=system (or your CA's file) to DATAFLOW_DSN",
    )


def _configured_sslmode(settings: Settings) -> str:
    configured = conninfo.conninfo_to_dict(settings.dsn.get_secret_value()) if settings.dsn else {}
    return str(configured.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer")


def _schema(connection: psycopg.Connection) -> Finding:
    found = migrate.drift(connection)
    if found.is_current:
        return Finding("schema", "ok", "up to date")
    if found.is_newer:
        newer = f"newer than this program: {', '.join(found.unknown) or found.made_by}"
        remedy = "upgrade dataflowd on this host"
        if found.serves_us:
            return Finding("schema", "warning", f"{newer}; it still serves this one", remedy)
        return Finding("schema", "failed", newer, remedy)
    if found.edited:
        return Finding(
            "schema",
            "failed",
            f"migrations edited after they were applied: {', '.join(found.edited)}",
            "restore the release's files",
        )
    behind = [path.name for path in found.missing + found.changed_functions]
    return Finding("schema", "failed", f"not applied: {', '.join(behind)}", "run `dataflowctl init`")


def _roles(connection: psycopg.Connection) -> Finding:
    user = connection.info.user
    has = {str(row[0]) for row in connection.execute(db.query("doctor_roles"))}
    if has & RUNS_JOBS:
        return Finding(ROLES, "ok", f"{user} is a member of {', '.join(sorted(has))}")
    if has:
        return Finding(
            ROLES,
            "warning",
            f"{user} is a member of {', '.join(sorted(has))}: it may look or steer, but not run jobs",
            f"for a daemon: GRANT dataflow_daemon TO {user}",
        )
    return Finding(
        ROLES,
        "failed",
        f"{user} is a member of no dataflow role",
        f"as a superuser: GRANT dataflow_daemon TO {user}",
    )


def _daemons(connection: psycopg.Connection) -> Finding:
    """Reports frozen sessions, and whether a daemon of this user has the right to end them."""
    if not RUNS_JOBS & {str(row[0]) for row in connection.execute(db.query("doctor_roles"))}:
        return Finding("daemons", "skipped", "only a role that runs jobs needs this check")
    if frozen := connection.execute(db.query("doctor_frozen")).fetchone():
        daemon, hostname, session, attempts = frozen
        return Finding(
            "daemons",
            "warning",
            f"daemon {daemon} on {hostname} hangs, and its session {session} keeps {counted(attempts, 'run')}",
            "see `dataflowctl status`, which says how to end it",
        )
    user = connection.info.user
    if foreign := connection.execute(db.query("doctor_daemon_sessions")).fetchone():
        daemon, _session, username = foreign
        return Finding(
            "daemons",
            "warning",
            f"{user} may not end the session of daemon {daemon}, which connects as {username}: if that daemon freezes, its runs wait for a hand",
            f"GRANT pg_signal_backend TO {user}, or let all daemons connect as one user",
        )
    return Finding("daemons", "ok", f"{user} may end the session of a daemon that freezes")


def _clock(connection: psycopg.Connection) -> Finding:
    before = datetime.now(UTC)
    row = connection.execute(db.query("doctor_session")).fetchone()
    after = datetime.now(UTC)
    there: datetime = row[1] if row else before
    # The server read its clock between the question and the answer; only a time outside this span is a difference.
    difference = max(before - there, there - after, timedelta(0))
    detail = f"{difference.total_seconds():.1f} s between this host and the database"
    if difference > CLOCK_TOLERANCE:
        return Finding(
            "clock",
            "warning",
            detail,
            "let both follow NTP; dataflowd itself trusts the database's clock alone",
        )
    return Finding("clock", "ok", detail)


def _listen(settings: Settings, other: psycopg.Connection) -> Finding:
    payload = uuid.uuid4().hex
    try:
        with db.connect(settings, "dataflowd doctor") as listener:
            listener.execute(db.query("doctor_listen"))
            pids = {_session_pid(listener), _session_pid(listener)}
            other.execute(db.query("doctor_notify"), {"payload": payload})
            heard = _hears(listener, payload)
    except (psycopg.Error, DataflowError) as error:
        why = db.said(error) if isinstance(error, psycopg.Error) else error.message
        return Finding("listen", "failed", f"LISTEN does not work through this DSN: {why}", POOLER_REMEDY)
    if len(pids) > 1:
        return Finding(
            "listen",
            "failed",
            "a transaction-mode pooler: two calls of one session met two server processes",
            POOLER_REMEDY,
        )
    if not heard:
        return Finding(
            "listen",
            "failed",
            f"a NOTIFY did not arrive within {NOTIFY_SECONDS:.0f} s: is it a transaction-mode pooler?",
            POOLER_REMEDY,
        )
    return Finding("listen", "ok", "NOTIFY arrives")


def _session_pid(connection: psycopg.Connection) -> int:
    row = connection.execute(db.query("doctor_session")).fetchone()
    return int(row[0]) if row else 0


def _hears(listener: psycopg.Connection, payload: str) -> bool:
    """Waits for this doctor's own notice. Other doctors may use the same channel at the same time."""
    with closing(listener.notifies(timeout=NOTIFY_SECONDS)) as notifies:
        return any(notify.payload == payload for notify in notifies)


def applied(settings: Settings, connection: psycopg.Connection) -> Iterator[Finding]:
    """Reports flow files that differ from what was applied. A file with mistakes is reported by another check."""
    for path in settings.flows:
        try:
            loaded = flow.load(path, settings, {}, {})
        except DataflowError:
            continue
        asked = {"flow": Jsonb(loaded.document())}
        found = [
            f"{kind} {name} ({', '.join(changed) if action == 'changed' else 'not there'})"
            for kind, name, action, changed in connection.execute(db.query("doctor_flow"), asked)
        ]
        if found:
            more = (
                f" and {counted(len(found) - SHOWN_CHANGES, 'other')}" if len(found) > SHOWN_CHANGES else ""
            )
            yield Finding(
                "applied",
                "warning",
                f"{path} is not what the database knows: {', '.join(found[:SHOWN_CHANGES])}{more}",
                f"`dataflowctl apply {path}`, or undo its change; jobs that differ in their datasets are refused (INVALID_ORDER)",
            )
