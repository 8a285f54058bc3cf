"""Deeds of a superuser of the control database: any column gets hostile values, any function another body.

The deeds are enumerated from the catalogue, so that a new column or function is attacked without a change here. Each deed is
undone, so that every round begins with the same database.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from dataflowd.host import sqlfiles
from tests.hostile import corpus
from tests.hostile.stage import FOREIGN

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tests.hostile.stage import Stage

LARGE = 10_000_000
MANY = 3000
DEEP = 1500  # levels of JSON: Postgres stores it, and recursive parsers fail on it
COLUMN_WAYS = ("values", "null", "large")
ROW_WAYS = 3  # change several columns at once: a constraint may refuse a change of one alone
FUNCTION_WAYS = ("values", "texts", "nulls", "none", "many", "error", "large")
KEPT = "__kept"
_CALLED = re.compile(r"dataflow\.(_?[a-z_]+)\(")
_NUMBERS = {
    "smallint": ["-1", "32767", "0"],
    "integer": ["-1", "2147483647", "-2147483648", "0"],
    "bigint": ["-1", "9223372036854775807", "-9223372036854775808", "0"],
    "double precision": ["NaN", "Infinity", "-Infinity", "-1", "1e308"],
    "numeric": ["NaN", "-1", "9" * 5000, "1e-300"],
    "boolean": ["true", "false"],
    "timestamp with time zone": [
        "infinity",
        "-infinity",
        "0001-01-01 00:00Z",
        "9999-12-31 23:59Z",
        "1970-01-01Z",
    ],
    "interval": ["-1 day", "100000 years", "0", "1 microsecond"],
    "uuid": ["00000000-0000-0000-0000-000000000000"],
    "inet": ["203.0.113.1"],
}
_NAMES = {
    "jobid": ["work", "live"],
    "datasetid": ["raw", "src", "clean", "shown"],
    "dataid": ["d1", "d2"],
    "format": ["csv", "postgres", "jdbc", "none", "parquet"],
    "verdict": ["accepted", "fenced", "busy"],
}


@dataclass(frozen=True)
class Deed:
    kind: str  # column, rows or function
    name: str  # table.column, table, or the function with its arguments
    way: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.way}"


class Superuser:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._connection = stage.connection
        self._texts = [
            text for text in corpus.texts(stage.marker) if not re.search("[\x00\ud800-\udfff]", text)
        ]
        self._locations = [
            each
            for each in [
                *corpus.locations(stage.root, stage.outside),
                f"{stage.outside}",
                f"{stage.outside}/secret.csv",
            ]
            if not re.search("[\x00\ud800-\udfff]", each)
        ]
        self._functions = self._list_functions()
        self._twins: list[str] = []
        self._drop_rules()
        self._keep_tables()

    def deeds(self) -> list[Deed]:
        """All deeds, in the order of their names."""
        columns = [
            Deed("column", f"{table}.{column}", way)
            for table, column, _ in self._columns()
            for way in COLUMN_WAYS
        ]
        functions = [Deed("function", name, way) for name in sorted(self._functions) for way in FUNCTION_WAYS]
        rows = [
            Deed("rows", table, f"several-{number}") for table in self._tables() for number in range(ROW_WAYS)
        ]
        return [*columns, *rows, *functions]

    def do(self, deed: Deed, chance: random.Random) -> bool:
        """Does the deed. False: the database itself refuses it."""
        try:
            with self._connection.transaction():
                if deed.kind == "column":
                    table, _, column = deed.name.partition(".")
                    self._rewrite(table, column, deed.way, chance)
                elif deed.kind == "rows":
                    self._connection.execute("SET LOCAL session_replication_role = replica")
                    names = self._tables()[deed.name]
                    for column in chance.sample(names, min(len(names), chance.randint(2, 5))):
                        self._rewrite(deed.name, column, "values", chance)
                else:
                    self._replace(deed.name, deed.way, chance)
        except psycopg.Error:
            return False
        return True

    def undo(self) -> None:
        """Undoes the deed. Tries again if another session holds a lock for a moment."""
        for _ in range(20):
            with (
                suppress(psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable),
                self._connection.transaction(),
            ):
                self._connection.execute("SET LOCAL lock_timeout = '5s'")
                self._connection.execute("SET LOCAL session_replication_role = replica")
                for name in self._twins:
                    self._connection.execute(self._put_back(name))
                for table, columns in self._tables().items():
                    place, listed = sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
                    self._connection.execute(sql.SQL("DELETE FROM dataflow.{}").format(place))
                    self._connection.execute(
                        sql.SQL(
                            "INSERT INTO dataflow.{0} ({1}) OVERRIDING SYSTEM VALUE SELECT {1} FROM kept.{0}"
                        ).format(place, listed)
                    )
                self._twins.clear()
                return
        raise AssertionError("the database could not be put right")

    def _rewrite(self, table: str, column: str, way: str, chance: random.Random) -> None:
        kinds = {(each, name): kind for each, name, kind in self._columns()}
        kind = kinds[table, column]
        self._connection.execute("SET LOCAL session_replication_role = replica")
        if not self._connection.execute(
            sql.SQL("SELECT 1 FROM dataflow.{} LIMIT 1").format(sql.Identifier(table))
        ).fetchone():
            self._fill(table, chance)
        value = self._value(column, kind, way, chance)
        place = sql.Identifier(table)
        update = sql.SQL("UPDATE dataflow.{} SET {} = {}").format(place, sql.Identifier(column), value)
        try:
            with self._connection.transaction():
                self._connection.execute(update)
        except psycopg.errors.UniqueViolation:
            one = sql.SQL(" WHERE ctid = (SELECT ctid FROM dataflow.{} LIMIT 1)").format(place)
            self._connection.execute(update + one)

    def _fill(self, table: str, chance: random.Random) -> None:
        columns = [(name, kind) for each, name, kind in self._columns() if each == table]
        self._connection.execute(
            sql.SQL("INSERT INTO dataflow.{} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
                sql.Identifier(table),
                sql.SQL(", ").join(sql.Identifier(name) for name, _ in columns),
                sql.SQL(", ").join(self._value(name, kind, "values", chance) for name, kind in columns),
            )
        )

    def _replace(self, name: str, way: str, chance: random.Random) -> None:
        arguments, is_set, columns = self._functions[name]
        if way == "texts":
            columns = [(column, "text") for column, _ in columns]
        bare = name.partition("(")[0]
        if name not in self._twins:
            self._connection.execute(f"ALTER FUNCTION dataflow.{name} RENAME TO {bare}{KEPT}".encode())
        else:
            self._connection.execute(f"DROP FUNCTION dataflow.{name}".encode())
        returned = ", ".join(f'"{column}" {kind}' for column, kind in columns)
        result = f"TABLE ({returned})" if is_set else columns[0][1]
        rows = {"none": 0, "many": MANY}.get(way, chance.randint(1, 3))
        made = sql.SQL(", ").join(self._value(column, kind, way, chance, name) for column, kind in columns)
        body = sql.SQL("SELECT {} FROM generate_series(1, {})").format(
            made, rows if is_set or not rows else 1
        )
        head = f"CREATE FUNCTION dataflow.{bare}({arguments}) RETURNS {result} LANGUAGE "
        if way == "error":
            message = sql.Literal(chance.choice(self._texts)[:1000])
            raising = sql.SQL(
                "BEGIN RAISE EXCEPTION USING MESSAGE = {0}, HINT = {0}, ERRCODE = {1}; END"
            ).format(
                message,
                sql.Literal(
                    chance.choice(
                        ["P0001", "DF400", "DF404", "DF409", "DF423", "23505", "57014", "53300", "XX000"]
                    )
                ),
            )
            head, body = head + "plpgsql", raising
        else:
            head += "sql"
        text = body.as_string(self._connection)
        self._connection.execute(f"{head} AS {sql.Literal(text).as_string(self._connection)}".encode())
        if name not in self._twins:
            self._twins.append(name)

    def _put_back(self, name: str) -> bytes:
        bare, _, arguments = name.partition("(")
        return f"DROP FUNCTION dataflow.{name}; ALTER FUNCTION dataflow.{bare}{KEPT}({arguments} RENAME TO {bare}".encode()

    def _value(
        self, column: str, kind: str, way: str, chance: random.Random, function: str = ""
    ) -> sql.Composable:
        if way in {"null", "nulls"}:
            return sql.SQL("NULL::{}").format(sql.SQL(kind))
        is_plain = kind in {"text", "character varying", "name"}
        if way == "large" and is_plain:
            return sql.SQL("repeat('x', {})").format(LARGE)
        if way == "many" and kind == "bigint":
            return sql.SQL("generate_series")
        value: Any
        if kind in {"json", "jsonb"}:
            value = self._document(way, function, chance)
        elif is_plain:
            value = self._text(column, chance)
        elif kind.endswith("[]"):
            several = [self._text(column, chance) for _ in range(chance.randint(0, 4))]
            value = several if kind.startswith("text") else "{}"
        elif kind in _NUMBERS:
            value = chance.choice(_NUMBERS[kind])
        else:
            value = self._text(column, chance)
        return sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(kind))

    def _text(self, column: str, chance: random.Random) -> str:
        if column in _NAMES and chance.random() < 0.6:
            return chance.choice(_NAMES[column])
        if column in {"location", "current"}:
            return chance.choice(self._locations)
        if column == "hostname":
            return chance.choice([FOREIGN, FOREIGN, *corpus.HOSTS[:10]]).replace("\0", "")
        return chance.choice(self._texts if chance.random() < 0.8 else self._locations)

    def _document(self, way: str, function: str, chance: random.Random) -> str:
        """For a work order: a good one with one value replaced. Otherwise any JSON."""
        if way == "large":
            return json.dumps({"a": "x" * LARGE})
        if (
            function.startswith(
                ("work_order(", "attempt_order(", "take_order(", "preview_order(", "trial_order(")
            )
            and chance.random() < 0.9
        ):
            row = self._connection.execute("SELECT dataflow.preview_order('work', 'd1')").fetchone()
            document = row[0] if row else {}
            for _ in range(chance.randint(1, 3)):
                self._spoil(document, chance)
            return json.dumps(document).replace("\\u0000", "")
        wild = [
            "[" * DEEP + "]" * DEEP,
            "9" * 5000,
            '{"a": 1e999999}'.replace("1e999999", "1e300"),
            "null",
            "[]",
            '"x"',
            "{}",
            "-1",
        ]
        return chance.choice([*wild, json.dumps({self._text("", chance): self._text("", chance)})])

    def _spoil(self, document: Any, chance: random.Random) -> None:
        places = list(_places(document))
        holder, key = chance.choice(places)
        column = str(key)
        holder[key] = chance.choice([None, -1, True, [], {}, 1 << 62, *[self._text(column, chance)] * 6])

    def _columns(self) -> list[tuple[str, str, str]]:
        return self._connection.execute(
            "SELECT c.table_name::text, c.column_name::text, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL)"
            " FROM information_schema.columns c JOIN pg_type t ON t.typname = coalesce(c.domain_name, c.udt_name)"
            " JOIN pg_namespace n ON n.oid = t.typnamespace AND n.nspname = coalesce(c.domain_schema, c.udt_schema)"
            " JOIN information_schema.tables b USING (table_schema, table_name)"
            " WHERE c.table_schema = 'dataflow' AND b.table_type = 'BASE TABLE' AND c.is_generated = 'NEVER' ORDER BY 1, 2"
        ).fetchall()

    def _tables(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for table, column, _ in self._columns():
            found.setdefault(table, []).append(column)
        return found

    def _list_functions(self) -> dict[str, tuple[str, bool, list[tuple[str, str]]]]:
        """The functions that our programs call: name(types) -> arguments, whether it returns rows, and their columns."""
        called = {name for query in sqlfiles.query_names() for name in _CALLED.findall(sqlfiles.query(query))}
        rows = self._connection.execute(
            "SELECT p.proname || '(' || oidvectortypes(p.proargtypes) || ')', pg_get_function_arguments(p.oid), p.proretset,"
            " ARRAY(SELECT ARRAY[p.proargnames[i], format_type(p.proallargtypes[i], NULL)] FROM generate_subscripts(p.proargmodes, 1) i"
            "   WHERE p.proargmodes[i] = 't' ORDER BY i), format_type(p.prorettype, NULL)"
            " FROM pg_proc p WHERE p.pronamespace = 'dataflow'::regnamespace AND p.prokind = 'f' AND p.proname = ANY (%s)",
            [list(called)],
        ).fetchall()
        return {
            name: (
                arguments,
                bool(columns),
                [(c, k) for c, k in columns] or [(name.partition("(")[0], result)],
            )
            for name, arguments, is_set, columns, result in rows
            if (columns or not is_set) and not result.startswith("dataflow.")
        }

    def _drop_rules(self) -> None:
        """Drops the constraints that forbid other values. Keys stay, because our functions do not work without them."""
        statements = self._connection.execute(
            "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I CASCADE', conrelid::regclass, conname) FROM pg_constraint"
            " WHERE connamespace = 'dataflow'::regnamespace AND contype IN ('c', 'f') AND conrelid <> 0 AND conparentid = 0"
            " UNION ALL SELECT format('ALTER DOMAIN %s DROP CONSTRAINT %I', contypid::regtype, conname) FROM pg_constraint"
            " WHERE connamespace = 'dataflow'::regnamespace AND contypid <> 0"
            " UNION ALL SELECT format('ALTER TABLE %s ALTER %I DROP NOT NULL', attrelid::regclass, attname) FROM pg_attribute a"
            " JOIN pg_class c ON c.oid = attrelid WHERE c.relnamespace = 'dataflow'::regnamespace AND c.relkind IN ('r', 'p')"
            " AND NOT c.relispartition AND attnum > 0 AND attnotnull AND attidentity = ''"
            " AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = attrelid AND i.indisprimary AND attnum = ANY (i.indkey))"
        ).fetchall()
        for [statement] in statements:
            with suppress(psycopg.Error):
                self._connection.execute(statement.encode())

    def _keep_tables(self) -> None:
        self._connection.execute("CREATE SCHEMA kept")
        for table in self._tables():
            self._connection.execute(
                sql.SQL("CREATE TABLE kept.{0} AS TABLE dataflow.{0}").format(sql.Identifier(table))
            )


def _places(document: Any) -> Sequence[tuple[Any, Any]]:
    """Every place in a document: the container, and the key or index in it."""
    pairs = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    found: list[tuple[Any, Any]] = []
    for key, item in pairs:
        found.append((document, key))
        found += _places(item)
    return found
