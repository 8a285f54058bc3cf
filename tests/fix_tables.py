"""A database with tables of datasets: on the same server as the control database, but another database."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg import conninfo, sql

from dataflowd.model.work_order import Chunk, Connection, Dataset, Input, Order, Output
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Server

DAY = "2026-01-01"
ROLE = "loader"
PASSWORD = "hunter2 'and' \\more\\"  # noqa: S105


@dataclass
class Warehouse:
    dsn: str
    connection: psycopg.Connection

    @property
    def there(self) -> dict[str, Any]:
        """The columns of a dataset in this database."""
        known = conninfo.conninfo_to_dict(self.dsn)
        return {
            "hostname": known["host"],
            "port": int(known["port"] or 0),
            "database": known["dbname"],
            "username": known["user"],
        }

    @property
    def host(self) -> str:
        return str(self.there["hostname"])

    def do(self, statement: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
        found = self.connection.execute(statement, parameters or None)
        return found.fetchall() if found.description else []

    def tables(self) -> set[str]:
        return {
            name
            for [name] in self.do(
                "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
            )
        }

    def dataset(self, table: str, name: str | None = None, **known: Any) -> Dataset:
        login = Connection(**self.there, tablename=table)
        return Dataset(name=name or table, format="postgres", connection=login, **known)

    def order(
        self, source: Input | Dataset, target: Output | Dataset, attempt: int = 7, **known: Any
    ) -> Order:
        """A work order that copies one dataset to the other, for the same day."""
        reads = source if isinstance(source, Input) else Input(dataset=source, chunks=(Chunk(dataid=DAY),))
        writes = target if isinstance(target, Output) else Output(dataset=target, location=None)
        settings = {"jobid": "copy", "dataid": DAY, "tag": "dataflow-test", "code": "dataflowd.jobs:copy"}
        return Order(
            attempt=attempt,
            directory="",
            inputs={reads.name: reads},
            outputs={writes.name: writes},
            allowed_roots=("/",),
            allowed_hosts=(self.host,),
            **settings | known,
        )


@pytest.fixture
def warehouse(empty_dsn: str) -> Iterator[Warehouse]:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        yield Warehouse(empty_dsn, connection)


@pytest.fixture
def locked_warehouse(warehouse: Warehouse, server: Server) -> Iterator[Warehouse]:
    """New logins to this database need a password; open connections stay. The role `loader` has one, and may make tables."""
    rules = server.data_dir / "pg_hba.conf"
    before = rules.read_text(encoding="utf-8")
    create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(ROLE), PASSWORD)
    warehouse.connection.execute(create)
    warehouse.do("GRANT CREATE ON SCHEMA public TO loader")
    try:
        rules.write_text(f"local {warehouse.there['database']} all scram-sha-256\n{before}", encoding="utf-8")
        warehouse.do("SELECT pg_reload_conf()")
        eventually(lambda: not _opens(warehouse.dsn))
        yield warehouse
    finally:
        rules.write_text(before, encoding="utf-8")
        warehouse.do("SELECT pg_reload_conf()")
        warehouse.do("DROP OWNED BY loader")
        warehouse.do("DROP ROLE loader")


def _opens(dsn: str) -> bool:
    """Connects without the password file that the DSN names, which has the password of the server's owner."""
    try:
        psycopg.connect(dsn, passfile=os.devnull).close()
    except psycopg.OperationalError:
        return False
    return True
