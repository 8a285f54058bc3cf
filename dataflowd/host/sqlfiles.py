"""Finds and reads the files of sql/: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_NAMED_QUERY = re.compile(r"^-- (?P<name>[a-z_]+): .+$", re.MULTILINE)


@functools.cache
def sql_dir() -> Path:
    inside, beside = _PACKAGE / "sql", _PACKAGE.parent / "sql"
    return inside if inside.is_dir() else beside


def migrations() -> list[Path]:
    return sorted((sql_dir() / "migrations").glob("[0-9][0-9][0-9][0-9]_*.sql"))


def functions() -> list[Path]:
    """In the order in which they are applied: roles.sql is last, because it grants rights on the objects of the others."""
    return sorted(
        (sql_dir() / "functions").glob("*.sql"), key=lambda path: (path.name == "roles.sql", path.name)
    )


@functools.cache
def _named(file: str) -> dict[str, str]:
    text = (sql_dir() / file).read_text(encoding="utf-8")
    heads = list(_NAMED_QUERY.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return {head["name"]: text[head.end() : end].strip() for head, end in zip(heads, ends, strict=True)}


def query(name: str) -> str:
    """The text of one named query of sql/queries.sql."""
    return _named("queries.sql")[name]


def query_names() -> list[str]:
    return list(_named("queries.sql"))


def table_statement(name: str) -> str:
    """The text of one named statement of sql/tables.sql, with its {placeholders}."""
    return _named("tables.sql")[name]


def table_statement_names() -> list[str]:
    return list(_named("tables.sql"))
