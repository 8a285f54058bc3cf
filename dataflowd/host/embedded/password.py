"""The password of the embedded server's superuser, in `<data_dir>/postgres/password` (0600, in the form of libpq's passfile).

initdb makes a cluster with `trust`; clusters of release 0.1 still have it. Before the DSN is given to anybody, `demand`
moves the cluster to scram-sha-256, under the lock: it sets the password, replaces `trust` in pg_hba.conf, makes the server
read that file, and renames `password.new` to `password`. After a crash in between, `password.new` is left, and the next
start continues from there. Later changes of pg_hba.conf by the user are kept.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import conninfo, sql

from dataflowd.host import private, sqlfiles
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
    """Makes the server demand the password from every client. Safe to repeat; the caller holds the lock."""
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
        # If the user keeps the rules in another file, they stay as they are.
        if rules == base / "data" / "pg_hba.conf":
            _replace_trust(rules, owner)
            connection.execute(sqlfiles.query("embedded_reload"))
            _await_closed(dsn, base)
    unfinished.rename(base / FILE)


def _password(unfinished: Path, owner: Account) -> str:
    """The password of an earlier try if there is one, because the server may have it already; else a new one."""
    if unfinished.exists():
        return account.read(unfinished).rstrip("\n").rpartition(":")[2]
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    private.replace_file(unfinished, f"*:*:*:postgres:{password}\n", owner=owner.ids)
    return password


def _replace_trust(rules: Path, owner: Account) -> None:
    text = _TRUST.sub(rf"\g<rule>{METHOD}\g<rest>", account.read(rules))
    private.replace_file(rules, text, owner=owner.ids)


def _await_closed(dsn: str, base: Path) -> None:
    """Waits until the server refuses a client without a password: it reads its rules some time after the reload."""
    # With an empty password libpq ignores PGPASSWORD and reads the passfile, which does not exist.
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
