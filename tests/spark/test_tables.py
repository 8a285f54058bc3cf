"""Tables in Postgres as datasets, on the shared Spark, in another database than the control database."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from dataflowd.host import keyfile, passwords, seal
from dataflowd.model.errors import EXIT
from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import Chunk, Dataset, Input, Output
from dataflowd.runner.execute import execute, prepare
from dataflowd.runner.rehearsal import Recorded
from dataflowd.sdk.context import Context
from dataflowd.storage.evidence import Evidence
from dataflowd.storage.partition.table import TableSource
from dataflowd.storage.tables import catalog, ledger, reading, writing
from dataflowd.storage.tables.place import table_of
from tests.fix_tables import DAY, PASSWORD, ROLE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from dataflowd.model.work_order import Order
    from tests.fix_postgres import RunCtl, Server
    from tests.fix_tables import Warehouse
    from tests.fix_world import World

BY_DAY = {"dataid_column": "day"}
EVERY_TYPE = """
    b tinyint, s smallint, i int, l bigint, f float, d double, yes boolean, t string, raw binary, day date,
    at timestamp, local timestamp_ntz, amount decimal(12,2), big decimal(38,18)
"""
VALUES = (
    (
        *(1, -2, 2**31 - 1, -(2**63), 1.5, 2.5e300, True, 'O\'Neil "x";\n\tline\\N ü 漢 🙂', b"\x00\xff'"),
        *(
            dt.date(2026, 1, 1),
            dt.datetime(1999, 12, 31, 23, 59, 59, 999999, dt.UTC),
            dt.datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001 - it has none
        ),
        *(Decimal("-1234567890.12"), Decimal("12345678901234567890.000000000000000001")),
    ),
    (None,) * 9 + (dt.date(2026, 1, 1),) + (None,) * 4,
    (0, 0, 0, 0, 0.0, float("-inf"), False, "", b"", dt.date(2026, 1, 1), *(None,) * 4),
)


def files(name: str, path: Path, **known: Any) -> Input:
    return Input(dataset=Dataset(name=name, **known), chunks=(Chunk(dataid=DAY, location=str(path)),))


def run(order: Order, spark: SparkSession, *, alive: bool = True) -> dict[str, Any]:
    class Told(Recorded):
        def confirm(self) -> bool:
            return alive

    return execute(order, spark.newSession(), Told(), threading.Event())


def context(order: Order, spark: SparkSession, **frames: DataFrame) -> Context:
    return Context(order, spark.newSession(), Recorded(), threading.Event(), frames=frames)


def staged(order: Order, spark: SparkSession, frame: DataFrame) -> Context:
    """An attempt that has written its rows, and is about to publish them."""
    prepare(order, spark, Evidence(order))
    ctx = context(order, spark)
    ctx.write(next(iter(order.outputs)), frame)
    return ctx


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> Path:
    spark.range(100).selectExpr("id", "cast(id % 10 AS int) AS digit").write.parquet(
        str(tmp_path / "numbers")
    )
    return tmp_path / "numbers"


def test_every_type_goes_from_files_to_a_table_to_another_table_and_back(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    spark.createDataFrame(VALUES, EVERY_TYPE).coalesce(1).write.parquet(str(tmp_path / "in"))
    first = warehouse.dataset('first "quoted" Table', "first", options=BY_DAY)
    second = warehouse.dataset("second", options=BY_DAY)
    done = run(warehouse.order(files("source", tmp_path / "in"), first), spark)
    assert done["outcome"] == "DONE", done["error"]
    manifest = done["outputs"]["first"]
    assert manifest["location"].startswith("postgres://")
    assert manifest["location"].endswith(f"{warehouse.there['database']}/public.first%20%22quoted%22%20Table")
    [listed] = manifest["files"]
    assert (manifest["rows"], listed["rows"], listed["attempt"]) == (3, 3, 7)
    assert manifest["bytes"] == listed["bytes"] > 0
    assert manifest["columns"].startswith("b tinyint, s smallint")
    found = warehouse.do('SELECT * FROM "first ""quoted"" Table"')
    assert {row[7]: row for row in found} == {row[7]: row for row in VALUES}

    published = Input(dataset=first, chunks=(Chunk(dataid=DAY, files=(listed,), rows=3),))
    done = run(warehouse.order(published, second, attempt=8), spark)
    assert done["outcome"] == "DONE", done["error"]
    assert done["outputs"]["second"]["columns"].startswith("b smallint, s smallint")
    back = Output(dataset=Dataset(name="back"), location=str(tmp_path / "back"))
    done = run(warehouse.order(second, back, attempt=9), spark)
    assert done["outcome"] == "DONE", done["error"]
    frame = spark.read.parquet(done["outputs"]["back"]["location"])
    assert (
        frame.schema.simpleString()
        == spark.createDataFrame([], EVERY_TYPE.replace("tinyint", "smallint")).schema.simpleString()
    )
    original = spark.createDataFrame(VALUES, EVERY_TYPE).collect()
    assert {row.t: tuple(row) for row in frame.collect()} == {row.t: tuple(row) for row in original}
    assert warehouse.tables() == {'first "quoted" Table', "second", "dataflow_published"}


def test_csv_is_checked_quarantined_and_fitted_into_a_table_that_is_there(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    warehouse.do(
        "CREATE TABLE orders (order_id int PRIMARY KEY, customer varchar(10), loaded timestamptz NOT NULL DEFAULT now(), day date NOT NULL, more jsonb)"
    )
    warehouse.do(
        "INSERT INTO orders VALUES (90, 'old', now(), '2026-01-01'), (91, 'other day', now(), '2026-01-02')"
    )
    (tmp_path / "raw.csv").write_text('1,ann,"{""a"": 1}"\n2,bob,\nx,eve,\n', encoding="utf-8")
    raw = files(
        "raw",
        tmp_path / "raw.csv",
        format="csv",
        columns="order_id bigint, customer string, more string",
        options={"escape": '"'},
    )
    checks = {
        "unique": {"columns": ["order_id"], "severity": "error"},
        "min_rows": {"value": 2, "severity": "error"},
    }
    orders = warehouse.dataset("orders", options=BY_DAY, checks=checks)
    done = run(warehouse.order(raw, orders), spark)
    assert done["outcome"] == "DONE", done["error"]
    assert {check["name"]: check["passed"] for check in done["checks"]} == {
        "unique(order_id)": True,
        "min_rows": True,
    }
    assert [item["details"]["record"] for item in done["quarantine"]] == ["x,eve,"]
    day = dt.date(2026, 1, 1)
    assert warehouse.do("SELECT order_id, customer, day, more FROM orders ORDER BY 1") == [
        (1, "ann", day, {"a": 1}),
        (2, "bob", day, None),
        (91, "other day", dt.date(2026, 1, 2), None),
    ]

    (tmp_path / "raw.csv").write_text("1,ann,\n1,bob,\n")
    failed = run(warehouse.order(raw, orders, attempt=8), spark)
    assert failed["code"] == "CHECK_FAILED"
    assert "orders: unique(order_id): observed 1 rows too many" in failed["error"]
    (tmp_path / "raw.csv").write_text("1,a name that is too long,\n2,bob,\n")
    refused = run(warehouse.order(raw, orders, attempt=9), spark)
    assert refused["code"] == "WRONG_DATA"
    assert "value too long for type character varying(10)" in refused["error"]
    assert warehouse.do("SELECT count(*) FROM orders WHERE day = '2026-01-01'") == [(2,)]
    assert "orders__attempt_8" not in warehouse.tables()


def test_a_replay_changes_nothing_and_a_zombie_replaces_nothing(
    spark: SparkSession, warehouse: Warehouse, numbers: Path
) -> None:
    out = warehouse.dataset("out", options=BY_DAY)
    source = files("numbers", numbers)
    frame = spark.read.parquet(str(numbers))
    first, second = (warehouse.order(source, out, attempt=attempt) for attempt in (7, 8))
    ctx = staged(first, spark, frame)
    assert "out__attempt_7" in warehouse.tables()
    for _ in range(2):
        writing.publish(out, first, ctx.written()["out"].rows, lambda: True)
    assert warehouse.do("SELECT count(*), min(day), max(day) FROM out") == [(100, DAY, DAY)]

    zombie, third = replace(second, attempt=9), replace(second, attempt=10)
    staged(zombie, spark, frame.limit(5))
    with pytest.raises(AttemptError, match="no longer this attempt's") as dead:
        writing.publish(out, zombie, 5, lambda: False)
    assert dead.value.code == "LOCKED"
    staged(third, spark, frame.limit(3))
    assert "out__attempt_9" not in warehouse.tables(), "a successor drops the staging table of a dead attempt"
    with pytest.raises(AttemptError, match="attempt 10 has taken 2026-01-01") as fenced:
        writing.publish(out, zombie, 5, lambda: True)
    assert fenced.value.code == "LOCKED"
    assert warehouse.do("SELECT count(*) FROM out") == [(100,)]
    writing.publish(out, third, 3, lambda: True)
    assert warehouse.do("SELECT count(*) FROM out") == [(3,)]
    with pytest.raises(AttemptError, match="attempt 10 has taken"):
        prepare(second, spark, Evidence(second))
    assert warehouse.do("SELECT tablename, dataid, fence, attempt, rows FROM dataflow_published") == [
        ("out", DAY, 10, 10, 3)
    ]
    assert warehouse.tables() == {"out", "dataflow_published"}


def test_rows_that_are_not_those_of_the_manifest_are_wrong_data(
    spark: SparkSession, warehouse: Warehouse, numbers: Path, tmp_path: Path
) -> None:
    out = warehouse.dataset("out", options=BY_DAY)
    done = run(warehouse.order(files("numbers", numbers), out), spark)
    back = Output(dataset=Dataset(name="back"), location=str(tmp_path / "back"))
    chunk = Chunk(dataid=DAY, files=tuple(done["outputs"]["out"]["files"]))
    warehouse.do("UPDATE dataflow_published SET attempt = 5")
    wrong = run(warehouse.order(Input(dataset=out, chunks=(chunk,)), back), spark)
    assert wrong["code"] == "WRONG_DATA"
    assert "was published by attempt 7, and public.out in" in wrong["error"]
    assert "holds the rows of attempt 5" in wrong["error"]


def test_only_what_is_needed_leaves_the_server_and_no_value_stands_in_a_statement(
    spark: SparkSession, warehouse: Warehouse, server: Server
) -> None:
    warehouse.do(
        "CREATE TABLE t AS SELECT i AS id, 'n' || i AS name, DATE '2026-01-01' + i % 4 AS day, i::numeric(12,2) AS amount, 'x' AS unused FROM generate_series(1, 1000) i"
    )
    dataset = warehouse.dataset("t", options=BY_DAY)
    ctx = context(warehouse.order(dataset, Output(dataset=Dataset(name="o"), location="/o")), spark)
    warehouse.do("SELECT set_config('log_statement', 'all', false)")
    warehouse.connection.execute(
        psycopg.sql.SQL("ALTER DATABASE {} SET log_statement = 'all'").format(
            psycopg.sql.Identifier(warehouse.there["database"])
        )
    )
    frame = ctx.read("t", columns=["id", "name", "amount"])
    found = frame.where("amount > 990.5 AND name <> 'n992' AND id IN (992, 996, 1000)").select("id").collect()
    assert sorted(row.id for row in found) == [996, 1000]
    log = "\n".join(path.read_text() for path in (server.data_dir / "postgres" / "log").glob("server-*.log"))
    [statement] = [line.partition("COPY (")[2] for line in log.splitlines() if 'COPY (SELECT "id"' in line]
    assert statement.startswith(
        'SELECT "id", "name", "amount"::text AS "amount" FROM "public"."t" WHERE "day" IN (current_setting('
    )
    assert """"amount" > current_setting('dataflow.value_""" in statement
    assert """"id" IN (current_setting('dataflow.value_""" in statement
    assert not any(value in statement for value in ("990.5", "992", "2026-01-01", "unused"))


def test_parts_of_a_chunk_are_read_side_by_side(spark: SparkSession, warehouse: Warehouse) -> None:
    warehouse.do("CREATE SEQUENCE came")
    warehouse.do(
        """
        CREATE FUNCTION meet() RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            IF current_query() NOT LIKE 'COPY (%' THEN
                RETURN true;
            END IF;
            PERFORM nextval('came');
            FOR i IN 1..3000 LOOP
                IF (SELECT last_value FROM came) >= 2 THEN
                    RETURN true;
                END IF;
                PERFORM pg_sleep(0.01);
            END LOOP;
            RAISE EXCEPTION 'nobody else came';
        END $$
        """
    )
    warehouse.do("CREATE TABLE t AS SELECT nullif(i, 5) AS id FROM generate_series(1, 10) i")
    warehouse.do("CREATE VIEW v AS SELECT id, (SELECT meet()) AS met FROM t")
    options = {"partitions": 2, "partition_column": "id"}
    ctx = context(
        warehouse.order(
            warehouse.dataset("v", options=options), Output(dataset=Dataset(name="o"), location="/o")
        ),
        spark,
    )
    frame = ctx.read("v")
    found = frame.selectExpr("id", "spark_partition_id() AS part").collect()
    assert sorted(row.id or 0 for row in found) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert {row.part for row in found} == {0, 1}


def test_a_window_reads_its_chunks_and_a_table_without_dataids_is_one_chunk(
    spark: SparkSession, warehouse: Warehouse
) -> None:
    warehouse.do("CREATE TABLE t AS SELECT i AS id, 'shard' || i % 3 AS shard FROM generate_series(1, 9) i")
    out = Output(dataset=Dataset(name="o"), location="/o")
    by_shard = warehouse.dataset("t", options={"dataid_column": "shard"}, columns="id bigint")
    two = Input(dataset=by_shard, chunks=(Chunk(dataid="shard0"), Chunk(dataid="shard1")))
    frame = context(warehouse.order(two, out), spark).read("t")
    assert frame.schema.simpleString() == "struct<id:bigint>"
    assert sorted(row.id for row in frame.collect()) == [1, 3, 4, 6, 7, 9]
    whole = warehouse.dataset("t")
    assert context(warehouse.order(whole, out), spark).read("t").count() == 9
    with pytest.raises(AttemptError, match="2 chunks are wanted, and without a dataid_column"):
        reading.read(spark, whole, [Chunk(dataid="a"), Chunk(dataid="b")], [warehouse.host])


def test_a_password_opens_the_table_and_only_the_server_sees_it(
    spark: SparkSession,
    locked_warehouse: Warehouse,
    numbers: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warehouse, key = locked_warehouse, seal.generate(seal.PLAIN)
    keyfile.add(tmp_path / "key", [keyfile.line(key)])
    for name, value in passwords.offer(keyfile.KeySource(key_file=str(tmp_path / "key"))).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(passwords, "_ring", [])
    plain = warehouse.dataset("out", options={**BY_DAY, "partitions": 2, "partition_column": "id"})
    login = replace(plain.connection, username=ROLE)
    bound = seal.Binding("out", login.username, login.hostname, login.database, login.port)

    def sealed(password: str) -> Dataset:
        closed = seal.seal(password, key.public, bound)
        return replace(plain, connection=replace(login, encryptedpass=closed))

    source = files("numbers", numbers)
    for dataset, says in (
        (replace(plain, connection=login), "no password supplied"),
        (sealed("another one"), 'password authentication failed for user "loader"'),
    ):
        refused = run(warehouse.order(source, dataset), spark)
        assert refused["code"] == "INVALID_CREDENTIAL"
        assert says in refused["error"]
        assert "dataflowctl seal" in refused["error"]
    out = sealed(PASSWORD)
    assert table_of(out, [warehouse.host]).login.password == PASSWORD
    done = run(warehouse.order(source, out), spark)
    assert done["outcome"] == "DONE", done["error"]
    assert warehouse.do("SELECT count(*) FROM out") == [(100,)]
    frame = context(warehouse.order(out, Output(dataset=Dataset(name="o"), location="/o")), spark).read("out")
    assert len(frame.where("id > 5").collect()) == 94
    plans = frame._jdf.queryExecution()
    store = spark._jsparkSession.sharedState().statusStore().executionsList()
    executions = "\n".join(store.apply(i).physicalPlanDescription() for i in range(store.size()))
    shown = [
        plans.toString(),
        plans.logical().toJSON(),
        plans.executedPlan().treeString(),
        executions,
        str(spark.sparkContext.getConf().getAll()),
        str(frame.sparkSession.conf.getAll),
        str(done),
        repr(table_of(out, [warehouse.host])),
    ]
    assert "postgres_out" in shown[0]
    assert "postgres_out__attempt_7" in executions
    assert not [text for text in shown if PASSWORD in text]


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"hostname": "evil.example"}, "INVALID_PATH", "evil.example is no host that tables may be on here"),
        ({"hostname": "{host},evil.example"}, "INVALID_PATH", "is no host that tables may be on"),
        ({"hostname": None}, "INVALID_PATH", "localhost is no host that tables may be on"),
        ({"database": "gone"}, "DATABASE_UNREACHABLE", 'database "gone" does not exist'),
        ({"tablename": "gone"}, "INVALID_PATH", "there is no table public.gone"),
        ({"schemaname": "gone"}, "INVALID_PATH", "there is no table gone.t"),
        ({"encryptedpass": "sealed"}, "INVALID_CREDENTIAL", "this process was given no key"),
        ({"options": {"dataid_column": "dya"}}, "WRONG_DATA", "no dataid_column 'dya' (did you mean 'day'?)"),
        ({"options": {"dataid_column": "id"}}, "WRONG_DATA", "'2026-01-01' is no integer"),
        ({"options": {"dbtable": "x"}}, "INVALID_OPTION", "takes no option 'dbtable'"),
        ({"options": {"partition_column": "name", "partitions": 2}}, "INVALID_OPTION", "is of the type text"),
        ({"columns": "id int, nam string"}, "WRONG_DATA", "no column 'nam' (did you mean 'name'?)"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_before_job_code(  # noqa: PLR0913, PLR0917
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, changes: dict[str, Any], code: str, says: str
) -> None:
    warehouse.do("CREATE TABLE t (id int, name text, day date)")
    changes = {
        name: value.format(host=warehouse.host) if name == "hostname" and value else value
        for name, value in changes.items()
    }
    of_dataset = {name: changes.pop(name) for name in ("options", "columns") if name in changes}
    dataset = replace(warehouse.dataset("t", options=BY_DAY), **of_dataset)
    dataset = replace(dataset, connection=replace(dataset.connection, **changes))
    said = Recorded()
    order = warehouse.order(dataset, Output(dataset=Dataset(name="out"), location=str(tmp_path / "out")))
    result = execute(order, spark, said, threading.Event())
    assert (result["code"], said.steps) == (code, ["prepare"])
    assert says in result["error"]


@pytest.mark.parametrize(
    ("table", "columns", "says"),
    [
        ("id bigint, day text", "id bigint, digit int", "it has no column digit"),
        (
            "id bigint, digit int, more text, day text",
            "id bigint, digit int",
            "more would get nothing, and has no default",
        ),
        ("id text, digit int, day text", "id bigint, digit int", "id is text and would get bigint"),
        ("id bigint, digit bool, day text", "id bigint, digit int", "digit is boolean and would get int"),
        (
            "id bigint, digit int, day date",
            "id bigint, list array<int>",
            "cannot hold the column list array<int>",
        ),
        ("id bigint, day text", "id bigint, day string", "1 row has another day than the dataid"),
    ],
)
def test_rows_that_a_table_cannot_take_are_refused_with_the_reason(
    spark: SparkSession, warehouse: Warehouse, table: str, columns: str, says: str
) -> None:
    warehouse.connection.execute(psycopg.sql.SQL("CREATE TABLE t ({})").format(psycopg.sql.SQL(table)))
    frame = spark.createDataFrame([(1, None)], columns)
    dataset = warehouse.dataset("t", options=BY_DAY)
    order = warehouse.order(Dataset(name="unused"), dataset)

    def write() -> None:
        writing.take(order, order.outputs["t"])
        context(order, spark).write("t", frame)
        writing.publish(dataset, order, 1, lambda: True)

    with pytest.raises(AttemptError) as refused:
        write()
    assert refused.value.code == "WRONG_DATA"
    assert says in str(refused.value)
    assert warehouse.do("SELECT count(*) FROM t") == [(0,)]


def test_staging_tables_of_dead_attempts_are_collected_and_nothing_else(
    spark: SparkSession, warehouse: Warehouse, numbers: Path
) -> None:
    long = "a_table_whose_name_is_as_long_as_postgres_lets_a_name_ever_be__"
    frame = spark.read.parquet(str(numbers))
    out, other = (warehouse.dataset(name, options=BY_DAY) for name in (long, "other"))
    for dataset, attempt in ((out, 7), (other, 8)):
        staged(warehouse.order(files("numbers", numbers), dataset, attempt=attempt), spark, frame)
    warehouse.do("CREATE TABLE other__attempt_3 ()")
    mine = {name for name in warehouse.tables() if "__attempt_7" in name}
    assert len(mine) == 1
    assert writing.collect(other, [warehouse.host], lambda _dataid, _attempt: False) == []
    with psycopg.connect(warehouse.dsn) as busy:
        busy.execute("LOCK other__attempt_8 IN ROW EXCLUSIVE MODE")
        assert (
            writing.collect(other, [warehouse.host], lambda dataid, attempt: (dataid, attempt) == (DAY, 8))
            == []
        )
    assert writing.collect(
        other, [warehouse.host], lambda dataid, attempt: (dataid, attempt) == (DAY, 8)
    ) == ["other__attempt_8"]
    assert warehouse.tables() == {long, "other", "other__attempt_3", "dataflow_published", *mine}


def test_the_job_validate_publishes_existing_rows_in_place(spark: SparkSession, warehouse: Warehouse) -> None:
    warehouse.do("CREATE TABLE t (id int, day text)")
    checks = {"unique": {"columns": ["id"], "severity": "error"}}
    dataset = warehouse.dataset("t", options=BY_DAY, checks=checks)
    order = replace(warehouse.order(dataset, dataset), inputs={}, code="dataflowd.jobs:validate")
    assert run(order, spark)["code"] == "DATA_NOT_READY"
    warehouse.do("INSERT INTO t VALUES (1, %s), (2, %s), (2, 'another day')", DAY, DAY)
    done = run(replace(order, attempt=8), spark)
    assert done["outcome"] == "DONE", done["error"]
    assert (done["outputs"]["t"]["rows"], done["outputs"]["t"]["files"]) == (2, [])
    assert warehouse.do("SELECT count(*) FROM t") == [(3,)]


MEDDLER = """
import psycopg
from dataflowd import job

@job
def work(ctx):
    ctx.write("target", ctx.read("first"))
    with psycopg.connect({dsn!r}) as other:
        other.execute("UPDATE dataflow_published SET attempt = {attempt} WHERE tablename = 'first'")
"""


@pytest.mark.parametrize("attempt", ["NULL", "9", "7"])
def test_rows_that_are_replaced_while_they_are_read_are_read_again_by_another_attempt(
    spark: SparkSession, warehouse: Warehouse, numbers: Path, tmp_path: Path, attempt: str
) -> None:
    first = warehouse.dataset("first", options=BY_DAY)
    target = warehouse.dataset("target", options=BY_DAY)
    done = run(warehouse.order(files("source", numbers), first), spark)
    assert done["outcome"] == "DONE", done["error"]
    module = f"meddler_{attempt.lower()}"
    (tmp_path / f"{module}.py").write_text(
        MEDDLER.format(dsn=warehouse.dsn, attempt=attempt), encoding="utf-8"
    )
    published = Input(
        dataset=first, chunks=(Chunk(dataid=DAY, files=tuple(done["outputs"]["first"]["files"]), rows=100),)
    )
    order = warehouse.order(published, target, attempt=8, code=f"{module}:work")
    read = run(replace(order, directory=str(tmp_path)), spark)
    if attempt == "7":
        assert read["outcome"] == "DONE", read["error"]
        return
    assert (read["outcome"], read["code"], read["retry"]) == ("FAILED", "INPUT_CHANGED", True)
    assert warehouse.do("SELECT count(*) FROM target") == [(0,)]


@pytest.mark.parametrize("column", ["d%y", "per%cent"])
def test_names_with_a_percent_sign_work(spark: SparkSession, warehouse: Warehouse, column: str) -> None:
    """Once the job writes the column of the dataid itself, and once dataflowd fills it in."""
    warehouse.do('CREATE TABLE "odd%s name" ("per%cent" text, "n%(b)s" numeric)')
    warehouse.do(
        'INSERT INTO "odd%%s name" SELECT %s, i FROM (VALUES (1.0), (1.00), (2), (3), (4)) AS v (i)', DAY
    )
    source = warehouse.dataset("odd%s name", "source", options={"dataid_column": "per%cent"})
    target = warehouse.dataset("odd%s target", "target", options={"dataid_column": column})
    done = run(warehouse.order(source, target), spark)
    assert done["outcome"] == "DONE", done["error"]
    again = run(warehouse.order(source, target, attempt=8), spark)
    assert again["outcome"] == "DONE", again["error"]
    counted = sql.SQL("SELECT count(*) FROM {} WHERE {} = {}")
    name = sql.Identifier("odd%s target")
    there = warehouse.connection.execute(counted.format(name, sql.Identifier(column), DAY)).fetchall()
    assert there == [(5,)]

    table = table_of(source, [warehouse.host])
    with catalog.connection(table) as opened:
        ranges = TableSource(opened, source, ["n%(b)s"], [warehouse.host]).ranges(2)
    assert [records for _, records in ranges] == [2, 2, 1]
    assert writing.remove(target, [DAY], [warehouse.host]) == 5


def test_delete_with_data_removes_the_rows_of_its_chunks_and_fences_who_wrote_them(
    warehouse: Warehouse, world: World, run_ctl: RunCtl
) -> None:
    warehouse.do("CREATE TABLE loaded (id int, shard text)")
    target = warehouse.dataset("loaded", options={"dataid_column": "shard"})
    with catalog.connection(table_of(target, [warehouse.host])) as opened:
        table = table_of(target, [warehouse.host])
        ledger.make(opened, table)
        for dataid, attempt in (("a", 1), ("b", 2), ("before", 3)):
            ledger.take(opened, table, dataid, attempt)
            warehouse.do("INSERT INTO loaded SELECT i, %s FROM generate_series(1, 10) i", dataid)
            if dataid != "before":
                ledger.enter(opened, table, dataid, attempt, 10)
    there = warehouse.there
    world.dataset("loaded", location=None, format="postgres", tablename="loaded", **there)
    world.do(
        """UPDATE dataflow.dataset SET options = '{"dataid_column": "shard"}' WHERE datasetid = 'loaded'"""
    )
    world.job("load", "raw", "loaded")
    world.ready("raw", "a", "b", "before")
    daemon = world.daemon()
    assert daemon.finish(*daemon.claim()) == "accepted"

    words = ["delete", "load", "--dataid", "a", "--dataid", "before", "--data", "--yes"]
    refused = run_ctl(*words, env={"DATAFLOW_ALLOWED_HOSTS": "elsewhere"})
    assert refused.returncode == EXIT["NOT_ALLOWED"]
    assert "the runs of load stay" in refused.stderr
    assert world.status("loaded", "a") == "READY"
    done = run_ctl(*words, env={"DATAFLOW_ALLOWED_HOSTS": warehouse.host})
    assert done.returncode == 0, done.stderr
    assert "deleted 10 rows of loaded" in done.stdout
    # Rows that were in the table before any attempt published stay.
    assert warehouse.do("SELECT shard, count(*) FROM loaded GROUP BY 1 ORDER BY 1") == [
        ("b", 10),
        ("before", 10),
    ]
    assert [world.status("loaded", dataid) for dataid in ("a", "b")] == [None, "READY"]
    assert warehouse.do("SELECT fence, attempt FROM dataflow_published WHERE dataid = 'a'") == [(2, None)]
