"""Commands ask the database by named queries; `--explain` prints a query, filled in, instead of sending it.

A command holds no rule of its own: it sends one query of sql/queries.sql, which calls one function or view, and shows
what comes back.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import typer

from dataflowd.cli.output import say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import json_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

Row: TypeAlias = dict[str, Any]

_PLACEHOLDER = re.compile(r"%\(([a-z_]+)\)s")


@dataclass(frozen=True)
class Call:
    """A named query with its parameters."""

    name: str
    parameters: dict[str, Any]

    def text(self) -> str:
        """The SQL with the values filled in, as a person would type it into psql."""
        from psycopg import sql

        from dataflowd.database import db

        values = {key: _adapted(value) for key, value in self.parameters.items()}
        return _PLACEHOLDER.sub(
            lambda found: sql.Literal(values[found[1]]).as_string(None), db.query(self.name)
        )

    def send(self, connection: psycopg.Connection) -> list[Row]:
        from psycopg.rows import dict_row

        from dataflowd.database import db

        values = {key: _adapted(value) for key, value in self.parameters.items()}
        with db.translated(), connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(db.query(self.name), values).fetchall()

    def stream(self, connection: psycopg.Connection) -> Iterator[Row]:
        """Yields the rows as they arrive, so that a million of them need not be in memory at once."""
        from psycopg.rows import dict_row

        from dataflowd.database import db

        values = {key: _adapted(value) for key, value in self.parameters.items()}
        with db.translated(), connection.cursor(row_factory=dict_row) as cursor:
            yield from cursor.stream(db.query(self.name), values)


def call(name: str, /, **parameters: Any) -> Call:
    return Call(name, parameters)


def explain(*calls: Call) -> NoReturn:
    """Prints the queries that the command would send, and ends the command."""
    for each in calls:
        say(each.text())
    raise typer.Exit


@contextmanager
def connected(context: typer.Context) -> Iterator[psycopg.Connection]:
    """A connection to a schema that this program can use. `init` and `doctor` take any schema and connect without this check."""
    from dataflowd.database import db, migrate

    with db.connect(settings_of(context)) as connection:
        migrate.require_release(connection)
        yield connection


def ask(context: typer.Context, asked: Call, *, explained: bool) -> list[Row]:
    """The rows that one query returns."""
    if explained:
        explain(asked)
    with connected(context) as connection:
        return asked.send(connection)


def print_rows(context: typer.Context, asked: Call, limit: int | None, *, explained: bool) -> None:
    """Prints a list that may be long as JSON, row by row. After `limit` rows it stops, and says on stderr that there are more.

    `asked` asks for one row more than the limit: if that row comes, there are more.
    """
    if explained:
        explain(asked)
    with connected(context) as connection:
        printed = 0
        for row in asked.stream(connection):
            if printed == limit:
                sys.stderr.write(
                    f"truncated: there are more than the {limit:,} of --limit; without it all are printed\n"
                )
                break
            say(f"{'[' if not printed else ','}\n{json_row(row)}")
            printed += 1
        say("]" if printed else "[]")


def _adapted(value: Any) -> Any:
    from psycopg.types.json import Jsonb

    return Jsonb(value) if isinstance(value, dict) else value
