"""The doctor's checks of a host and its database.

`examine` yields one Finding after another, in the order in which a person would look: the host first, then the
database. A failed check stops a run; a warning does not. A check that cannot be made because another failed says so
instead of guessing. The checks write only a file that they remove, the default root, and one NOTIFY.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psycopg
from psycopg import conninfo

from dataflowd.cli.doctor import attackers
from dataflowd.database import db, migrate
from dataflowd.host import private
from dataflowd.model.errors import DataflowError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.host.settings import Loaded, Settings

NOTIFY_SECONDS = 3.0
SPARK_SECONDS = 180.0
CLOCK_TOLERANCE = timedelta(seconds=5)
GIB = 1024**3
LITTLE_DISK = 5 * GIB
NO_DISK = 500 * 1024**2
ROLES = "roles"
SHOWN_CHANGES = 5
RUNS_JOBS = {"dataflow_daemon", "dataflow_admin"}
POOLER_REMEDY = "let DATAFLOW_DSN name Postgres itself, or a pooler in session mode"


@dataclass(frozen=True)
class Finding:
    check: str
    state: Literal["ok", "warning", "failed", "skipped"]
    detail: str
    remedy: str = ""


def examine(loaded: Loaded, *, spark: bool = True) -> Iterator[Finding]:
    settings = loaded.settings
    yield from _java_and_spark(settings, spark=spark)
    yield from spark_network(settings)
    yield disk(settings.data_dir)
    yield from roots(settings)
    yield from flows(settings)
    yield from database(settings)
    yield Finding("promise", *attackers.judged(loaded))


def disk(data_dir: Path) -> Finding:
    existing = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            "disk",
            "failed",
            f"{existing} is not writable",
            "choose another DATAFLOW_DATA_DIR, or change its owner",
        )
    free = shutil.disk_usage(existing).free
    detail = f"{free / GIB:.1f} GiB free in {data_dir}"
    if free < NO_DISK:
        return Finding(
            "disk", "failed", detail, "free some space, or set DATAFLOW_DATA_DIR to a larger file system"
        )
    if free < LITTLE_DISK:
        return Finding("disk", "warning", detail, "Spark spills and shuffles to disk: keep 5 GiB free")
    return Finding("disk", "ok", detail)


def roots(settings: Settings) -> Iterator[Finding]:
    if not settings.root:
        try:
            private.make_passage(settings.data_dir)
            Path(settings.effective_root).mkdir(exist_ok=True)
        except OSError as error:
            yield Finding(
                "roots",
                "failed",
                f"{settings.effective_root} cannot be made: {error.strerror}",
                "set DATAFLOW_ROOT",
            )
            return
    for root in settings.effective_allowed_roots:
        yield _root(root)


def _root(root: str) -> Finding:
    if "://" in root and not root.startswith("file://"):
        return Finding(
            "roots", "skipped", f"{root} is not on this host; the runner checks it before each run"
        )
    directory = Path(root.removeprefix("file://"))
    if not directory.is_dir():
        return Finding(
            "roots",
            "failed",
            f"{directory} is not a directory",
            "create it, or correct DATAFLOW_ALLOWED_ROOTS",
        )
    try:
        with tempfile.TemporaryFile(dir=directory):
            return Finding("roots", "ok", f"{directory} is writable")
    except OSError as error:
        return Finding(
            "roots",
            "failed",
            f"{directory} is not writable: {error.strerror}",
            "change its owner, or remount it read-write",
        )


def flows(settings: Settings) -> Iterator[Finding]:
    from dataflowd import flow

    for path in settings.flows:
        elsewhere: dict[str, flow.Mistake] = {}
        try:
            loaded = flow.load(path, settings, elsewhere=elsewhere)
        except DataflowError as error:
            yield Finding(
                "flows",
                "failed",
                "; ".join(error.message.splitlines()),
                error.remedy or f"correct it; `dataflowctl apply --check {path}`",
            )
        else:
            yield Finding(
                "flows",
                "ok",
                f"{path} declares {counted(len(loaded.jobs), 'job')} for this host"
                if elsewhere
                else f"{path} declares {counted(len(loaded.jobs), 'job')}",
            )
            for job, mistake in elsewhere.items():
                yield Finding(
                    "flows",
                    "failed",
                    f"{path}:{mistake.line}: the job {job} does not run here: {mistake.what}",
                    mistake.remedy,
                )


def applied(settings: Settings, connection: psycopg.Connection) -> Iterator[Finding]:
    """Reports flow files that differ from what was applied. A file with mistakes is reported by another check."""
    from psycopg.types.json import Jsonb

    from dataflowd import flow

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


def _java_and_spark(settings: Settings, *, spark: bool) -> Iterator[Finding]:
    from dataflowd.host.embedded import java
    from dataflowd.runner import session

    if session.is_connect(settings.master):
        yield Finding("java", "skipped", "the Connect server has its own Java")
        yield Finding("spark", "skipped", "the Connect server has its own Spark")
        return

    try:
        found = java.find(settings)
    except DataflowError as error:
        yield Finding("java", "failed", error.message, error.remedy)
        yield Finding("spark", "skipped", "needs Java")
        return
    passed_over = "".join(f"; passed over: {reason}" for reason in found.skipped)
    yield Finding("java", "ok", f"Java {found.version} in {found.home} ({found.source}){passed_over}")
    if spark:
        yield spark_starts(java.environment(found))
    else:
        yield Finding("spark", "skipped", "not asked for")


def spark_starts(environment: dict[str, str]) -> Finding:
    """Counts a few rows with a Spark of its own, in a directory that is removed with all it left there."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dataflowd-doctor-") as directory:
        probe = subprocess.Popen(
            [sys.executable, "-m", "dataflowd.runner.spark_probe"],
            env=os.environ | environment | {"SPARK_LOCAL_DIRS": directory},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        try:
            out, err = probe.communicate(timeout=SPARK_SECONDS)
        except subprocess.TimeoutExpired:
            return Finding(
                "spark",
                "failed",
                f"Spark did not start within {SPARK_SECONDS:.0f} s",
                "look for a host that is short of memory",
            )
        finally:
            _end(probe)
    if probe.returncode == 0:
        return Finding("spark", "ok", f"Spark {out.split()[-1]} counted in {time.monotonic() - began:.1f} s")
    return Finding(
        "spark",
        "failed",
        f"Spark does not start: {_last_words(err)}",
        "run `python -m dataflowd.runner.spark_probe`",
    )


def spark_network(settings: Settings) -> Iterator[Finding]:
    """Reports which ports of a runner's Spark are open to others, and which jobs open more than the host's configuration does."""
    from dataflowd.runner import protection

    if protection.is_local(settings.master):
        yield Finding("spark_network", "ok", "Spark listens on loopback alone, and demands a secret")
        return
    import pyspark

    from dataflowd import flow

    found = dict.fromkeys(protection.openings(settings.master, {}, pyspark.__version__), "")
    for path in settings.flows:
        with suppress(DataflowError):  # another check reports mistakes of a flow
            for name, job in flow.load(path, settings).jobs.items():
                for opening in protection.openings(settings.master, job.spark, pyspark.__version__):
                    found.setdefault(opening, f"job {name}: ")
    for (detail, remedy), job_name in found.items():
        yield Finding("spark_network", "warning", f"{job_name}{detail}", remedy)
    if not found:
        yield Finding("spark_network", "ok", "authenticated and encrypted, as far as this host configures it")


def _end(probe: subprocess.Popen[str]) -> None:
    """Kills the process group of the probe and its JVM. After a probe that ended by itself the group is gone."""
    try:
        os.killpg(probe.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    probe.communicate()


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or lines or ["it printed nothing"])[-1]


def database(settings: Settings) -> Iterator[Finding]:
    from dataflowd.cli.doctor import keys

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
