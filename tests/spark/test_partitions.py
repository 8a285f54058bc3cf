"""Batches of tables and of files: together they are the whole source, and no two overlap."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from dataflowd.model.errors import EXIT
from dataflowd.model.work_order import Batch, Chunk, Dataset
from dataflowd.storage.partition import batches, plan
from dataflowd.storage.partition.files import FileSource
from dataflowd.storage.partition.plan import Split
from dataflowd.storage.partition.table import TableSource
from dataflowd.storage.tables import catalog, reading
from dataflowd.storage.tables.place import table_of
from dataflowd.storage.tables.slices import Conditions
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import psycopg
    from pyspark.sql import DataFrame, SparkSession

    from tests.fix_postgres import RunCtl, Server
    from tests.fix_tables import Warehouse

SPLITS: list[tuple[plan.Kind, int]] = [("size", 3), ("size", 1000), ("every", 4), ("count", 3)]
# Gaps, duplicates (also across a boundary), a NULL key, quotes, and numbers that sort differently as text.
ROWS = [
    *(
        (number, f"k{number % 7}", dt.date(2026, 1, 1 + number % 3))
        for number in (1, 2, 3, 3, 3, 3, 10, 11, 200)
    ),
    (None, "none", dt.date(2026, 1, 1)),
    (5, 'O\'Neil "x" %s {} ü', None),
]
COLUMNS = "id int, name text, day date"
OTHER_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def split_table(warehouse: Warehouse, dataset: Dataset, split: Split) -> list[dict[str, Any]]:
    with catalog.connection(table_of(dataset, [warehouse.host])) as opened:
        return plan.batches(TableSource(opened, dataset, split.columns, [warehouse.host]), split)


def rows_of(warehouse: Warehouse, dataset: Dataset, split: Split, bounds: dict[str, Any]) -> list[Any]:
    """The rows that the condition of a batch finds in the table."""
    chunk = Chunk(dataid="x", batch=Batch(columns=split.columns, bounds=bounds))
    table = table_of(dataset, [warehouse.host])
    with catalog.connection(table) as opened:
        there = {column.name: column for column in catalog.columns(opened, table)}
        conditions = Conditions(reading._batches(table, there, dataset, [chunk]))
        bind = "SELECT set_config(key, value, false) FROM json_each_text(%s::json)"
        opened.execute(bind, [json.dumps(conditions.values)])
        what = catalog.statement(
            "read", columns=_all(there), source=table.identifier, condition=conditions.sql
        )
        return catalog.rows(opened, what)


def _all(there: dict[str, Any]) -> Any:
    return sql.SQL(", ").join(map(sql.Identifier, there))


def fill(warehouse: Warehouse, rows: Sequence[tuple[Any, ...]]) -> Dataset:
    warehouse.do("DROP TABLE IF EXISTS source")
    warehouse.do("CREATE TABLE source (id int, name text, day date)")
    with warehouse.connection.cursor() as cursor:
        cursor.executemany("INSERT INTO source VALUES (%s, %s, %s)", list(rows))
    return warehouse.dataset("source")


def assert_whole(
    warehouse: Warehouse, dataset: Dataset, split: Split, rows: Sequence[tuple[Any, ...]]
) -> None:
    made = split_table(warehouse, dataset, split)
    assert made == split_table(warehouse, dataset, split)
    found = [rows_of(warehouse, dataset, split, batch["bounds"]) for batch in made]
    assert Counter(row for batch in found for row in batch) == Counter(rows)
    for batch, there in zip(made, found, strict=True):
        assert there, batch
        assert batch["items"] in {None, len(there)}, batch


@pytest.mark.parametrize(("kind", "size"), SPLITS)
@pytest.mark.parametrize("columns", [("id",), ("name",), ("name", "id"), ("day", "name")])
def test_the_batches_of_a_table_are_the_table(
    warehouse: Warehouse, kind: plan.Kind, size: int, columns: tuple[str, ...]
) -> None:
    assert_whole(warehouse, fill(warehouse, ROWS), Split("p", columns, kind, size), ROWS)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.integers(-5, 20),
            st.none()
            | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3),
            st.none() | st.dates(dt.date(1990, 1, 1), dt.date(1990, 1, 4)),
        ),
        max_size=25,
    ),
    columns=st.permutations(["id", "name", "day"]).flatmap(
        lambda names: st.integers(1, 3).map(lambda width: tuple(names[:width]))
    ),
    kind=st.sampled_from(["size", "every", "count"]),
    size=st.integers(1, 30),
)
def test_batches_of_any_rows_lose_nothing_and_double_nothing(
    warehouse: Warehouse,
    rows: list[tuple[Any, ...]],
    columns: tuple[str, ...],
    kind: plan.Kind,
    size: int,
) -> None:
    assert_whole(warehouse, fill(warehouse, rows), Split("p", columns, kind, size), rows)


@pytest.mark.parametrize(
    ("rows", "columns", "is_walked"),
    [
        (range(1000), ("id",), True),
        ([*range(1000), None], ("name", "id"), True),
        (range(100), ("id",), True),
        ([], ("id",), True),
        ([number // 3 for number in range(1000)], ("id",), False),
        # Equal keys that do not lie across a boundary.
        ([*range(50), 50, 50, *range(51, 400)], ("id",), True),
    ],
)
def test_boundaries_are_found_by_index_when_no_key_lies_across_them(
    warehouse: Warehouse, rows: Sequence[int | None], columns: tuple[str, ...], is_walked: bool
) -> None:
    table = [(number, f"k{(number or 0) % 7}", None) for number in rows]
    dataset, split = fill(warehouse, table), Split("p", columns, "size", 100)
    with catalog.connection(table_of(dataset, [warehouse.host])) as opened:
        source = TableSource(opened, dataset, columns, [warehouse.host])
        assert source._walked(100) == (source._ranked(100) if is_walked else None)
    assert_whole(warehouse, dataset, split, table)


@pytest.mark.parametrize("columns", [("id",), ("region", "id")])
def test_a_batch_of_5000_is_read_by_the_index_however_large_the_table(
    warehouse: Warehouse, columns: tuple[str, ...]
) -> None:
    for rows in (50_000, 200_000):
        warehouse.do("DROP TABLE IF EXISTS source")
        warehouse.do("CREATE TABLE source (region text, id int, filler text)")
        warehouse.do(
            "INSERT INTO source SELECT 'r' || i * 4 / %s, i, repeat('x', 50) FROM generate_series(1, %s) i",
            *(rows, rows),
        )
        key = sql.SQL(", ").join(map(sql.Identifier, columns))
        warehouse.connection.execute(sql.SQL("ALTER TABLE source ADD PRIMARY KEY ({})").format(key))
        warehouse.do("ANALYZE source")
        dataset, split = warehouse.dataset("source"), Split("p", columns, "size", 5000)
        made = split_table(warehouse, dataset, split)
        assert len(made) == rows // 5000
        before = _pages(warehouse)
        assert len(rows_of(warehouse, dataset, split, made[5]["bounds"])) == 5000
        # 5,000 rows fill about 60 pages, and their part of the index 20 more.
        assert _pages(warehouse) - before < 150


def _pages(warehouse: Warehouse) -> int:
    """The pages of the table that were touched so far. A session adds its count when it ends."""
    eventually(lambda: warehouse.do(OTHER_SESSIONS) == [(0,)])
    warehouse.do("SELECT pg_stat_force_next_flush()")
    [[pages]] = warehouse.do(
        "SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit FROM pg_statio_user_tables WHERE relname = 'source'"
    )
    return int(pages)


def test_spark_reads_ranges_in_parallel_parts_and_ranked_batches_in_one(
    spark: SparkSession, warehouse: Warehouse
) -> None:
    dataset = fill(warehouse, ROWS)
    parallel = Dataset(
        name="source",
        format="postgres",
        connection=dataset.connection,
        options={"partition_column": "id", "partitions": "2"},
    )
    for kind, parts in (("size", {1, 2}), ("every", {1})):
        split = Split("p", ("name", "id"), kind, 3)  # type: ignore[arg-type]
        found: Counter[Any] = Counter()
        counted = set()
        for batch in split_table(warehouse, dataset, split):
            chunk = Chunk(dataid=batch["dataid"], batch=Batch(columns=split.columns, bounds=batch["bounds"]))
            frame = reading.read(spark.newSession(), parallel, [chunk], [warehouse.host])
            found.update(tuple(row) for row in frame.collect())
            counted.add(frame.rdd.getNumPartitions())
        assert found == Counter(ROWS)
        # For every 3rd record the server ranks all keys. One part only, so that it ranks them once.
        assert counted == parts


@pytest.mark.parametrize(("kind", "size"), SPLITS)
def test_the_batches_of_files_are_the_files(
    spark: SparkSession, tmp_path: Path, kind: plan.Kind, size: int
) -> None:
    location = str(tmp_path / "source")
    spark.createDataFrame(ROWS, "id int, name string, day date").coalesce(1).write.parquet(location)
    dataset, split = Dataset(name="source", location=location), Split("p", ("name", "id"), kind, size)
    made = plan.batches(FileSource(spark, dataset, location, split.columns), split)
    found: Counter[Any] = Counter()
    for batch in made:
        chunk = Chunk(dataid=batch["dataid"], batch=Batch(columns=split.columns, bounds=batch["bounds"]))
        there = batches.chosen(spark.read.parquet(location), [chunk]).collect()
        assert there
        assert batch["items"] in {None, len(there)}
        found.update(tuple(row) for row in there)
    assert found == Counter(ROWS)


def test_the_batches_of_csv_files_are_the_files_and_an_empty_source_has_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = tmp_path / "source"
    location.mkdir()
    dataset = Dataset(name="source", format="csv", location=str(location), columns="id int, name string")
    split = Split("p", ("name",), "size", 2)
    (location / "a.csv").write_text("1,b\n2,a\n3,c\n3,c\n4,c\n")
    (location / "b.csv").write_text("7,\n5,ä\n")
    assert plan.batches(FileSource(spark, dataset, str(location), split.columns), split) == [
        {"dataid": "p.1", "bounds": {"low": None, "high": ["c"]}, "items": 2},
        {"dataid": "p.2", "bounds": {"low": ["c"], "high": None}, "items": 4},
        {"dataid": "p.null", "bounds": {"null": True}, "items": 1},
    ]
    for file in location.iterdir():
        file.write_text("")
    for kind in ("size", "every", "count"):
        empty = Split("p", ("name",), kind, 2)
        assert plan.batches(FileSource(spark, dataset, str(location), ("name",)), empty) == []


def test_a_batch_of_parquet_reads_only_files_whose_statistics_reach_into_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path / "source")
    keyed = spark.range(0, 40_000, 1, 1).selectExpr("concat('r', id div 10000) AS region", "id")
    keyed.repartitionByRange(8, "id").sortWithinPartitions("id").write.parquet(location)
    dataset = Dataset(name="source", location=location)
    for columns in (("id",), ("region", "id")):
        split = Split("p", columns, "size", 5000)
        made = plan.batches(FileSource(spark, dataset, location, columns), split)
        assert len(made) == 8
        chunk = Chunk(dataid="x", batch=Batch(columns=columns, bounds=made[3]["bounds"]))
        frame = batches.chosen(spark.read.parquet(location), [chunk])
        assert len(frame.collect()) == 5000
        # Half of the 40,000 rows: a file is about as large as a batch, and their boundaries differ.
        assert _scanned(frame) <= 20_000


def _scanned(frame: DataFrame) -> int:
    """The number of rows that Spark read from the files."""
    plan = frame._jdf.queryExecution().executedPlan()
    if plan.nodeName().startswith("AdaptiveSparkPlan"):
        plan = plan.executedPlan()
    while plan.children().size():
        plan = plan.children().head()
    return int(plan.metrics().apply("numOutputRows").value())


@pytest.fixture
def operator(server: Server, dsn: str) -> Iterator[str]:
    with server.login(dsn, "dataflow_operator") as theirs:
        yield theirs


def test_a_source_is_split_listed_and_forgotten_from_the_command_line(
    warehouse: Warehouse, connection: psycopg.Connection, operator: str, run_ctl: RunCtl, tmp_path: Path
) -> None:
    fill(warehouse, ROWS)
    there = warehouse.there
    connection.execute(
        "INSERT INTO dataflow.dataset (datasetid, format, hostname, port, database, tablename, username)"
        " VALUES ('customers', 'postgres', %s, %s, %s, 'source', %s)",
        [there["hostname"], there["port"], there["database"], there["username"]],
    )
    env = {"DATAFLOW_ALLOWED_HOSTS": warehouse.host, "DATAFLOW_DSN": operator}

    def create(name: str, *how: str, key: str = "id") -> Any:
        return run_ctl(
            "partition", "create", name, "--dataset", "customers", "--key", key, *how, "--json", env=env
        )

    made = create("size_3", "--size", "3")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout) == {
        "datasetid": "customers",
        "partitioning": "size_3",
        "batches": 5,
        "items": 11,
    }
    (tmp_path / "ids.txt").write_text("3\n200\n")
    assert json.loads(create("test1", "--ids", str(tmp_path / "ids.txt"), "--hold").stdout)["items"] == 2
    listed = json.loads(run_ctl("partition", "list", "--json").stdout)
    assert [(row["partitioning"], row["ready"], row["held"]) for row in listed] == [
        ("size_3", 5, 0),
        ("test1", 0, 1),
    ]
    for wrong, said in (
        (create("size_3", "--size", "3"), "has a partitioning size_3 already"),
        (create("other", "--size", "3", key="idd"), "has no column 'idd'"),
        (create("other", "--size", "3", "--count", "2"), "say one of --size"),
        (create("0bad", "--size", "3"), "0bad"),
    ):
        assert wrong.returncode in {EXIT["NOT_ALLOWED"], EXIT["USAGE"], EXIT["FAILED"]}, wrong.stderr
        assert said in wrong.stderr
    gone = run_ctl("partition", "delete", "size_3", "--dataset", "customers", "--yes")
    assert "deleted 5 batches" in gone.stdout
    assert connection.execute("SELECT count(*) FROM dataflow.datastatus").fetchall() == [(1,)]
