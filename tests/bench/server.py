"""The measured server: an embedded Postgres with full durability, and with memory for a million chunks.

One server runs for all benches of a command, so that compared figures come from the same server. Each bench makes its
databases on it, from a template with the schema and the pipeline, and drops them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from dataflowd.database import migrate
from tests.bench import pipeline
from tests.fix_postgres import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Server

# No checkpoint happens inside a window. Every commit is on the disk.
SERVER_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "200",
}
TEMPLATE = "bench_template"


@dataclass(frozen=True)
class Place:
    """The server of a bench, and the largest size to measure."""

    server: Server
    largest: int

    def sizes(self, *wanted: int) -> list[int]:
        """The sizes that are not too large; always the smallest."""
        return [size for size in sorted(wanted) if size <= max(self.largest, min(wanted))]

    @contextmanager
    def database(self, name: str, template: str = TEMPLATE) -> Iterator[str]:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self.server.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield self.server.database(name)
        finally:
            self.server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def place(largest: int) -> Iterator[Place]:
    with running_server(SERVER_SETTINGS) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
        with psycopg.connect(server.database(TEMPLATE), autocommit=True) as connection:
            migrate.init(connection)
            pipeline.create(connection)
        yield Place(server, largest)
