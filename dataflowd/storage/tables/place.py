"""Where a table is, and how to log in. All code gets a table from `table_of`, which first checks that its host is allowed.

A password is in the memory of this process and of the executors. The repr of a Login does not show it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from psycopg import conninfo, sql

from dataflowd.host.allowed_hosts import DEFAULT_PORT, LOCAL, SCHEME, check
from dataflowd.host.passwords import may_ask_in_clear, password_of
from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.model.work_order import Dataset

NAME_BYTES = 63
CONNECT_SECONDS = 10
LEDGER = "dataflow_published"
NOT_IN_CLEAR = "!password"
LOCAL_HOSTS = (None, "", LOCAL, "127.0.0.1", "::1")


@dataclass(frozen=True)
class Login:
    host: str | None
    port: int | None
    database: str | None
    username: str | None
    password: str | None = field(repr=False)
    may_be_clear: bool = False  # the server may ask for the password in clear text

    def conninfo(self) -> str:
        """For libpq. Without a password libpq uses its own sources (a password file, trust, peer).

        A server that asks for the password in clear text gets none: otherwise anybody with a port on an allowed host could
        ask for it. If this host's settings allow clear text, the server must show a valid certificate first.
        """
        is_far = self.host not in LOCAL_HOSTS and not str(self.host).startswith(("/", "@"))
        return conninfo.make_conninfo(
            require_auth=None if self.may_be_clear else NOT_IN_CLEAR,
            sslmode="verify-full" if self.may_be_clear and is_far else None,
            host=self.host,
            port=self.port,
            dbname=self.database,
            user=self.username,
            password=self.password,
            connect_timeout=CONNECT_SECONDS,
            application_name="dataflowd table",
        )


@dataclass(frozen=True)
class Table:
    login: Login
    schema: str
    name: str

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def ledger(self) -> sql.Identifier:
        return sql.Identifier(self.schema, LEDGER)

    @property
    def url(self) -> str:
        """The table's location in a manifest. The directory of a socket counts as a host."""
        port = f":{self.login.port}" if self.login.port not in {None, DEFAULT_PORT} else ""
        host = quote(self.login.host or LOCAL, safe="")
        database = quote(self.login.database or "", safe="")
        return f"{SCHEME}{host}{port}/{database}/{quote(self.schema, safe='')}.{quote(self.name, safe='')}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name} in {self.login.database or 'the default database'} on {self.login.host or LOCAL}"

    def staging(self, attempt: int) -> Table:
        """The staging table of an attempt. Postgres cuts long names, and two could become equal: a digest replaces the rest."""
        name, ending = self.name, f"__attempt_{attempt}"
        if len((name + ending).encode()) > NAME_BYTES:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            room = NAME_BYTES - len(ending) - len(digest) - 1
            name = f"{name.encode()[:room].decode(errors='ignore')}_{digest}"
        return replace(self, name=name + ending)


def table_of(dataset: Dataset, allowed_hosts: Sequence[str]) -> Table:
    """Raises INVALID_PATH, before a password is opened, if the host is not allowed."""
    there = dataset.connection
    if not there.tablename:
        raise AttemptError(
            "INVALID_PATH", f"dataset {dataset.name} names no table", "write tablename in the flow file"
        )
    check(dataset, allowed_hosts)
    login = Login(
        there.hostname,
        there.port,
        there.database,
        there.username,
        password=password_of(dataset),
        may_be_clear=may_ask_in_clear(dataset),
    )
    return Table(login, there.schemaname or "public", there.tablename)
