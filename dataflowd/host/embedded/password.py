"""The password of the embedded server's superuser, in `<data_dir>/postgres/password` (0600, as libpq's passfile has it).

A cluster is made with `trust`, as those of release 0.1 are, and moved to scram-sha-256 under the lock before anybody is told
how to reach it: the password is set, `trust` leaves pg_hba.conf, the server reads that, and then the file gets its name. A
crash in between leaves `password.new`, from which the next start goes on. Later changes of pg_hba.conf are the user's own.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import conninfo, sql

from dataflowd.host import sqlfiles
from dataflowd.host.embedded import account
from dataflowd.model.errors import EmbeddedError

if TYPE_CHECKING:
    from pathlib import Path

    from dataflowd.host.embedded.account import Account

FILE = "password"
UNFINISHED = "password.new"
METHOD = "scram-sha-256"
PASSWORD_BYTES = 32
CONNECT_SECONDS = 10
CLOSE_SECONDS = 30.0
POLL_SECONDS = 0.05
_TRUST = re.compile(
    r"^(?P<rule>[ \t]*(?:local|host)\w*[ \t].*[ \t])trust(?P<rest>[ \t]*(?:#.*)?)$", re.MULTILINE
)


def is_demanded(base: Path) -> bool:
    return (base / FILE).exists()


def demand(base: Path, owner: Account, dsn: str) -> None:
    """From now on the server lets nobody in without it. Safe to repeat; the caller holds the lock."""
    unfinished = base / UNFINISHED
    try:
        connection = psycopg.connect(
            dsn, passfile=str(unfinished), autocommit=True, connect_timeout=CONNECT_SECONDS
        )
    except psycopg.OperationalError as error:
        if not (error.pgconn and (error.pgconn.needs_password or error.pgconn.used_password)):
            raise EmbeddedError(
                f"the embedded Postgres in {base} does not answer: {error}", f"look into {base / 'log'}"
            ) from error
        raise EmbeddedError(
            f"the embedded Postgres demands a password, and {base / FILE} is gone",
            f"bring the file back, or write trust for {METHOD} in {base / 'data' / 'pg_hba.conf'} and run "
            "`dataflowctl embedded stop`: the next command makes a new password",
        ) from error
    with connection:
        password = _password(unfinished, owner)
        user = connection.info.user
        verifier = connection.pgconn.encrypt_password(password.encode(), user.encode(), METHOD.encode())
        connection.execute(
            sql.SQL(sqlfiles.query("embedded_password")).format(
                role=sql.Identifier(user), text=verifier.decode()
            )
        )
        row = connection.execute(sqlfiles.query("embedded_rules")).fetchone()
        rules = account.by_name(str(row[0]), base) if row else None
        # Rules that a person keeps elsewhere are that person's.
        if rules == base / "data" / "pg_hba.conf":
            _close(rules, owner)
            connection.execute(sqlfiles.query("embedded_reload"))
            _await_closed(dsn, base)
    unfinished.rename(base / FILE)


def _password(unfinished: Path, owner: Account) -> str:
    """Of an earlier try, if there was one: it may be in force."""
    if unfinished.exists():
        return account.read(unfinished).rstrip("\n").rpartition(":")[2]
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    _write(unfinished, f"*:*:*:postgres:{password}\n", owner)
    return password


def _close(rules: Path, owner: Account) -> None:
    text = _TRUST.sub(rf"\g<rule>{METHOD}\g<rest>", account.read(rules))
    _write(rules.with_name("pg_hba.conf.new"), text, owner)
    rules.with_name("pg_hba.conf.new").rename(rules)


def _write(path: Path, text: str, owner: Account) -> None:
    """Complete or not there. The directory is the account's: root follows no link in it."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            if owner.is_other:
                os.fchown(handle, owner.uid, owner.gid)
            file.write(text)
            file.flush()
            os.fsync(handle)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _await_closed(dsn: str, base: Path) -> None:
    """The server reads its rules when it gets round to it."""
    # An empty password keeps libpq from PGPASSWORD, and it looks into the file instead, which does not exist.
    without = conninfo.make_conninfo(dsn, password="", passfile=str(base / "no-password"))
    deadline = time.monotonic() + CLOSE_SECONDS
    while True:
        try:
            psycopg.connect(without, connect_timeout=CONNECT_SECONDS).close()
        except psycopg.OperationalError:
            return
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the embedded Postgres in {base} still lets everybody in who reaches its socket",
                f"look into {base / 'data' / 'pg_hba.conf'} and {base / 'log'}",
            )
        time.sleep(POLL_SECONDS)
