"""Rules that both SQL and Python implement: these tests compare the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from dataflowd.flow import checks
from dataflowd.model import check_shapes, formats, masking
from dataflowd.model.identifiers import DATAID, NAME

if TYPE_CHECKING:
    import re

    from tests.fix_world import World

# The CHECK expression of a domain. The tests evaluate it directly, because a violation would end the transaction.
DOMAIN = """
    SELECT pg_get_expr(c.conbin, 0) FROM pg_constraint c JOIN pg_type t ON t.oid = c.contypid
    WHERE t.typnamespace = 'dataflow'::regnamespace AND t.typname = %s
"""
JUDGED = "SELECT array_agg(coalesce({rule}, false) ORDER BY place) FROM unnest(%s::text[]) WITH ORDINALITY AS given (value, place)"
EDGES = [
    *(
        "",
        "a",
        "A9_.-",
        "9a",
        "_a",
        ".a",
        "-a",
        "a b",
        "a\n",
        "\na",
        "a\nb",
        "ä",
        "a/b",
        "a:b",
        "a+b=c",
        "{a}",
    ),
    *("a" * length for length in (62, 63, 64, 127, 128, 129)),
    *("2026-01-31", "2026-01-31T05", "size_5.1", ":", "+", "=", "..", "a..b", "\u0661", "a\u200b", "*", "a?"),
]
# Mostly characters that the rules name, so that some texts are valid.
texts = st.text(alphabet="aZ09_.:+=- \n/ä", max_size=6) | st.text(
    alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=140
)
KEYS = [
    *("password", "PGPASSWORD", "db_password", "password_file", "passwd", "passphrase", "my_secret", "token"),
    *(
        "tokens",
        "private_key",
        "privatekey",
        "private-key",
        "access_key",
        "aws-access-key",
        "API_KEY",
        "x-api-key",
    ),
    *("credential", "credentials", "encryptedpass", "key", "pass", "user", "keyid", "hostname", "monkey", ""),
]
TEXTS = [
    *(
        "postgresql://u:p@h/db",
        "postgresql://u:p@ss@h/db",
        "a s3a://u:p@h b",
        "http://h/x",
        "http://u@h",
        "u:p@h",
    ),
    *(
        "jdbc:postgresql://u:p@h:5432/x?y=z",
        "two http://a:b@c and ftp://d:e@f",
        "http://:p@h",
        "",
        "http://u:p@",
    ),
]


def judged(connection: psycopg.Connection, rule: str, values: list[str]) -> list[bool]:
    row = connection.execute(JUDGED.format(rule=rule).encode(), (values,)).fetchone()
    assert row is not None
    found: list[bool] = row[0]
    return found


@pytest.mark.parametrize(
    ("domain", "function", "pattern"),
    [("name", "dataflow._is_name", NAME), ("chunkid", "dataflow._is_chunkid", DATAID)],
)
def test_sql_and_python_accept_the_same_names_and_dataids(
    world: World, domain: str, function: str, pattern: re.Pattern[str]
) -> None:
    [[rule]] = world.rows(DOMAIN, domain)

    @given(st.lists(texts, min_size=20, max_size=50))
    def agree(values: list[str]) -> None:
        wanted = [pattern.fullmatch(value) is not None for value in values]
        assert judged(world.connection, rule.replace("VALUE", "value"), values) == wanted
        assert judged(world.connection, f"{function}(value)", values) == wanted

    agree()
    wanted = [pattern.fullmatch(value) is not None for value in EDGES]
    assert judged(world.connection, rule.replace("VALUE", "value"), EDGES) == wanted
    assert judged(world.connection, f"{function}(value)", EDGES) == wanted
    assert len(set(wanted)) == 2
    assert world.value(f"SELECT {function}(NULL)") is False


def test_sql_and_python_know_the_same_formats(world: World) -> None:
    rule = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'dataflow.dataset'::regclass AND conname = 'dataset_format_check'"
    listed = world.value(rule)
    for name in formats.OPTIONS:
        assert f"'{name}'::text" in listed
    assert listed.count("::text") == len(formats.OPTIONS)
    is_files = "SELECT array_agg(f ORDER BY place) FROM unnest(%s::text[]) WITH ORDINALITY AS n (f, place) WHERE dataflow._is_files(f)"
    assert world.value(is_files, list(formats.OPTIONS)) == list(formats.FILES)
    with pytest.raises(psycopg.Error) as refused:
        world.rows("SELECT dataflow.declare_dataset('x', 'excel')")
    assert refused.value.diag.message_hint == "write one of " + ", ".join(formats.OPTIONS)


def test_sql_and_python_know_the_same_checks(world: World) -> None:
    assert list(checks._READERS) == list(check_shapes.SHAPES)
    with pytest.raises(psycopg.Error) as refused:
        world.rows("SELECT dataflow._normal_checks(%s)", Jsonb({"nope": 1}))
    assert refused.value.diag.message_hint == "write one of " + ", ".join(sorted(check_shapes.SHAPES))


SHORT: dict[str, Any] = {
    "min_rows": 1, "max_rows": 2, "not_null": ["a"], "unique": ["a", "b"], "accepted_values": {"a": ["x"]}, "range": {"a": {"min": 0}},
    "regex": {"a": "x+"}, "schema": "a bigint", "row_count": "raw",
}  # fmt: skip


@pytest.mark.parametrize("name", check_shapes.SHAPES)
def test_a_check_has_the_shape_that_a_work_order_needs(world: World, name: str) -> None:
    made = world.value("SELECT dataflow._normal_checks(%s)", Jsonb({name: SHORT[name]}))[name]
    for one in made.values() if name in check_shapes.BY_COLUMN else [made]:
        assert one["severity"] in check_shapes.SEVERITIES
        for key, kinds in check_shapes.SHAPES[name].items():
            assert isinstance(one[key], kinds)
        for severity in ("fatal", None):
            wrong = one | {"severity": severity}
            given = {name: {"a": wrong} if name in check_shapes.BY_COLUMN else wrong}
            with pytest.raises(psycopg.Error, match="not of its form"):
                world.rows("SELECT dataflow._normal_checks(%s)", Jsonb(given))


def test_sql_and_python_mask_the_same_keys(world: World) -> None:
    assert world.value("SELECT dataflow._secret_names()") == f"({'|'.join(masking.SECRET_NAMES)})"
    found = world.value("SELECT dataflow._without_secrets(%s)", Jsonb(dict.fromkeys(KEYS, "x")))
    assert found == {key: masking.MASK if masking.is_secret_name(key) else "x" for key in KEYS}
    assert len(set(found.values())) == 2
    told = world.value("SELECT dataflow._without_secrets(%s)", Jsonb(TEXTS))
    assert told == [masking.mask(text) for text in TEXTS]
