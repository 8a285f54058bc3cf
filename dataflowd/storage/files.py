"""Reads a chunk of files, writes an attempt's directory, and lists the files that lie there afterwards.

CSV and JSON are always read with an explicit schema and a column for text that could not be parsed, so that a broken
record is noticed. Without a declared schema, Spark infers the names and types first. The footers of Parquet and ORC files
tell how many rows were written.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataflowd.host import allowed_roots
from dataflowd.model import formats
from dataflowd.model.faults import AttemptError
from dataflowd.storage import foreign_types

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from dataflowd.model.work_order import Dataset

WITH_BROKEN_RECORDS = ("csv", "json")
WITH_FOOTERS = ("parquet", "orc")
MOST_FOOTERS = 100
NANOSECONDS_A_MILLISECOND = 1_000_000
SPARK_SCHEMA_KEY = b"org.apache.spark.sql.parquet.row.metadata"

# The class that a format or a scheme needs, from a jar that the user supplies.
JARS = {
    "s3a": ("org.apache.hadoop.fs.s3a.S3AFileSystem", "org.apache.hadoop:hadoop-aws"),
    "gs": ("com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem", "the Cloud Storage connector"),
    "abfs": ("org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem", "org.apache.hadoop:hadoop-azure"),
    "abfss": ("org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem", "org.apache.hadoop:hadoop-azure"),
    "delta": ("io.delta.sql.DeltaSparkSessionExtension", "io.delta:delta-spark"),
    "iceberg": ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg:iceberg-spark-runtime"),
}


@dataclass(frozen=True)
class File:
    path: str  # below the location
    bytes: int
    rows: int | None = None
    modified: int | None = None  # milliseconds since 1970; object stores have no finer time
    digest: str | None = None  # SHA-256, if it was asked for

    def document(self) -> dict[str, Any]:
        """The entry of a manifest. It has no time: a restored copy has another time and is the same data."""
        known = {"path": self.path, "bytes": self.bytes, "rows": self.rows, "digest": self.digest}
        return {name: value for name, value in known.items() if value is not None}


def require_jars(spark: SparkSession, dataset: Dataset, location: str | None) -> None:
    """Raises MISSING_JARS with the name of the jar. Spark itself would only say that a class was not found."""
    scheme = (location or "").partition("://")[0] if "://" in (location or "") else "file"
    for needs in (dataset.format, scheme):
        if needs in JARS and not _has_class(spark, JARS[needs][0]):
            raise AttemptError(
                "MISSING_JARS",
                f"dataset {dataset.name}: {needs} needs {JARS[needs][1]}, and Spark has no {JARS[needs][0]}",
                'add it in the flow: "spark.jars.packages" (or "spark.jars" with a file) in the job\'s spark table',
            )


def _has_class(spark: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return True  # a Connect server has its own jars, and reports a missing one itself
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def read(
    spark: SparkSession, dataset: Dataset, locations: list[str], schema: StructType | None = None
) -> DataFrame:
    """Reads chunks. CSV and JSON get formats.CORRUPT_COLUMN as their last column. `schema`: if the caller knows it."""
    foreign_types.guard()
    reader = spark.read.format(dataset.format).options(
        **formats.read_options(dataset.name, dataset.format, dataset.options)
    )
    if dataset.format not in WITH_BROKEN_RECORDS:
        is_plain = dataset.format == "parquet" and not dataset.options
        known = schema or dataset.columns or (_written_schema(locations) if is_plain else None)
        return reader.schema(known).load(locations) if known else _inferred(reader, dataset, locations)
    if schema is None and not dataset.columns:
        schema = reader.load(locations).schema
    schema = _with_corrupt_column(dataset, schema)
    return (
        reader.option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", formats.CORRUPT_COLUMN)
        .schema(schema)
        .load(locations)
    )


def read_back(spark: SparkSession, dataset: Dataset, location: str, schema: StructType) -> DataFrame:
    """Reads what an attempt wrote, with the schema that it wrote: a CSV file does not tell the names of its columns."""
    return read(spark, dataset, [location], schema).drop(formats.CORRUPT_COLUMN)


def _inferred(reader: DataFrameReader, dataset: Dataset, locations: list[str]) -> DataFrame:
    frame = reader.load(locations)
    try:
        _ = frame.schema
    except Exception as error:
        if (foreign := foreign_types.behind(error)) is None:
            raise
        where = f"dataset {dataset.name}: a file at {locations[0]}"
        raise foreign_types.ForeignTypeError(foreign.name, where) from None
    return frame


def _written_schema(locations: list[str]) -> StructType | None:
    """The schema that Spark wrote into the footer of the first file. Saves the Spark job that would infer the schema.

    Spark takes the schema from one file too. None for several locations, or if a directory could be a partition column:
    then Spark must infer the schema.
    """
    path = allowed_roots.local_path(locations[0]) if len(locations) == 1 else None
    if path is None or not path.is_dir():
        return None
    from pyarrow import parquet  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    found = [item for item in path.iterdir() if not item.name.startswith(("_", "."))]
    first = min((item for item in found if item.suffix == ".parquet"), default=None)
    if first is None or any(item.is_dir() for item in found):
        return None
    try:
        noted = (parquet.read_metadata(first).metadata or {}).get(SPARK_SCHEMA_KEY)
    except (OSError, ValueError):
        return None  # Spark reports what is wrong with the file
    try:
        return StructType.fromJson(json.loads(noted)) if noted else None
    except foreign_types.ForeignTypeError as foreign:
        raise foreign_types.ForeignTypeError(foreign.name, f"the file {first}") from None


def _with_corrupt_column(dataset: Dataset, found: StructType | None) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415

    schema = found if found is not None else StructType.fromDDL(dataset.columns or "")
    fields = [item for item in schema.fields if item.name != "_corrupt_record" or dataset.columns]
    return StructType([*fields, StructField(formats.CORRUPT_COLUMN, StringType())])


def write(frame: DataFrame, dataset: Dataset, location: str) -> None:
    """Writes to a directory that must not exist yet, so that two writers never share one."""
    options = formats.write_options(dataset.name, dataset.format, dataset.options)
    frame.write.format(dataset.format).options(**options).mode("error").save(location)


def exists(spark: SparkSession, location: str) -> bool:
    path = allowed_roots.local_path(location)
    if path is not None:
        return path.exists()
    return bool(_hadoop(spark, location)[0].exists(_hadoop(spark, location)[1]))


def listing(spark: SparkSession, location: str, kind: str = "", *, digest: bool = False) -> list[File]:
    """The data files, without the files that Spark and Hadoop add (_SUCCESS, .crc). `digest`: reads each file completely."""
    path = allowed_roots.local_path(location)
    if path is not None:
        return local_listing(path, kind, digest=digest)
    return _hadoop_listing(spark, location, digest=digest)


def stored_rows(spark: SparkSession, dataset: Dataset, location: str, found: list[File]) -> int | None:
    """The row count by the footers; None for a format without footers. Spark counts files that are not on this host."""
    if dataset.format not in WITH_FOOTERS:
        return None
    if allowed_roots.local_path(location) is None:
        return read(spark, dataset, [location]).count() if found else 0
    return sum(file.rows or 0 for file in found)


def rows_of(kind: str, locations: list[str]) -> int | None:
    """The row count by the footers of files on this host; None if there is no file, or more than MOST_FOOTERS."""
    places = [allowed_roots.local_path(location) for location in locations]
    found = [file for place in places if place is not None for file in local_listing(place)]
    if None in places or not 0 < len(found) <= MOST_FOOTERS:
        return None
    try:
        rows = [file.rows for place in places if place is not None for file in local_listing(place, kind)]
    except (OSError, ValueError):
        return None  # Spark reports what is wrong with a file
    return None if None in rows else sum(count or 0 for count in rows)


def local_bytes(location: str) -> int:
    """The size of the files; 0 if they are not on this host."""
    path = allowed_roots.local_path(location)
    try:
        return sum(file.bytes for file in local_listing(path)) if path is not None else 0
    except OSError:
        return 0


def has_unfinished_files(spark: SparkSession, location: str) -> bool:
    """Whether a committer has left temporary files: then the listing cannot be trusted."""
    return exists(spark, f"{location}/_temporary")


def local_listing(path: Path, kind: str = "", *, digest: bool = False) -> list[File]:
    if path.is_file():
        return [_local_file(path, "", "", digest=digest)]
    found = (
        item
        for item in sorted(path.rglob("*"))
        if item.is_file() and not any(part.startswith(("_", ".")) for part in item.relative_to(path).parts)
    )
    return [_local_file(item, item.relative_to(path).as_posix(), kind, digest=digest) for item in found]


def _local_file(path: Path, name: str, kind: str, *, digest: bool) -> File:
    status = path.stat()
    return File(
        name,
        status.st_size,
        _footer_rows(path, kind),
        status.st_mtime_ns // NANOSECONDS_A_MILLISECOND,
        _digest(path) if digest else None,
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _footer_rows(path: Path, kind: str) -> int | None:
    if kind == "parquet":
        from pyarrow import parquet  # noqa: PLC0415

        return int(parquet.read_metadata(path).num_rows)
    if kind == "orc":
        from pyarrow import orc  # noqa: PLC0415

        return int(orc.ORCFile(path).nrows)
    return None


def _hadoop(spark: SparkSession, location: str) -> tuple[Any, Any]:
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        raise AttemptError(
            "INVALID_PATH",
            f"{location} cannot be looked at through a Connect server",
            "use a path that this host can see, or a master other than sc://",
        )
    path = jvm.org.apache.hadoop.fs.Path(location)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path  # noqa: SLF001 - Spark has no public way


def beginning(spark: SparkSession, location: str, size: int) -> bytes | None:
    """The first bytes of a file, decompressed by its suffix; None without a JVM, or if Hadoop cannot read the file."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    system, path = _hadoop(spark, location)
    codec = jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(system.getConf()).getCodec(path)
    try:
        stream = system.open(path)
        try:
            return bytes((stream if codec is None else codec.createInputStream(stream)).readNBytes(size))
        finally:
            stream.close()
    except Py4JJavaError:
        return None  # Spark reports what is wrong with the file


def _hadoop_listing(spark: SparkSession, location: str, *, digest: bool) -> list[File]:
    system, root = _hadoop(spark, location)
    prefix = str(system.makeQualified(root).toString()).rstrip("/") + "/"
    found, files = [], system.listFiles(root, True)
    while files.hasNext():
        status = files.next()
        name = str(status.getPath().toString()).removeprefix(prefix)
        if not any(part.startswith(("_", ".")) for part in name.split("/")):
            found.append(
                File(
                    "" if prefix.startswith(name) else name,
                    int(status.getLen()),
                    modified=int(status.getModificationTime()) or None,
                    digest=_hadoop_digest(spark, system, status.getPath()) if digest else None,
                )
            )
    return sorted(found, key=lambda file: file.path)


def _hadoop_digest(spark: SparkSession, system: Any, path: Any) -> str:
    jvm: Any = getattr(spark, "_jvm", None)
    stream = system.open(path)
    try:
        return str(jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))
    finally:
        stream.close()


def duplicates(
    spark: SparkSession, dataset: Dataset, location: str, schema: StructType, columns: list[str]
) -> int:
    """How many rows repeat the key of another row; one pass over the key columns of the written files.

    Keys of a local Parquet chunk that fit into memory are compared here: for a small chunk a Spark job takes a hundred times
    as long, and for a large chunk it shuffles all keys.
    """
    from dataflowd.storage.checks import quoted  # noqa: PLC0415

    path = allowed_roots.local_path(location)
    if path is not None and dataset.format == "parquet" and _keys_fit(path, schema, columns):
        return _local_duplicates(path, columns)
    return duplicates_of(read_back(spark, dataset, location, schema).select(*map(quoted, columns)))


def duplicates_of(keys: DataFrame) -> int:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from dataflowd.storage.checks import quoted  # noqa: PLC0415

    whole = keys.dropna()
    counted = whole.agg(F.count(F.lit(1)), F.count_distinct(*map(F.col, map(quoted, keys.columns)))).first()
    return int(counted[0] - counted[1]) if counted is not None else 0


SMALL_BYTES = 64 * 1024 * 1024
VALUE_BYTES = 8
# A value has at most VALUE_BYTES, and equal values have equal bits: so they can be sorted as numbers.
_PLAIN_TYPES = {"tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz"}


def _is_plain(schema: StructType, columns: list[str]) -> bool:
    return all(schema[name].dataType.simpleString() in _PLAIN_TYPES for name in columns)


def _keys_fit(path: Path, schema: StructType, columns: list[str]) -> bool:
    """Whether the keys fit into memory. Texts may need far more memory than disk, so for them the whole files must be small."""
    if _is_plain(schema, columns):
        rows = sum(file.rows or 0 for file in local_listing(path, "parquet"))
        return rows * VALUE_BYTES * len(columns) <= SMALL_BYTES
    return sum(file.bytes for file in local_listing(path)) <= SMALL_BYTES


def _repeated(values: Any) -> int:
    """How many values of a numpy array repeat: by order, by a bitmap if the range is small, else by sorting."""
    import numpy  # noqa: ICN001, PLC0415

    if (values[1:] > values[:-1]).all():
        return 0
    values = values.view(numpy.int64) if values.dtype.itemsize == VALUE_BYTES else values.astype(numpy.int64)
    low = int(values.min())
    room = int(values.max()) - low + 1
    if room <= VALUE_BYTES * len(values):
        seen = numpy.zeros(room, dtype=bool)
        seen[values - low] = True
        return int(len(values) - numpy.count_nonzero(seen))
    values = numpy.sort(values)
    return int((values[1:] == values[:-1]).sum())


def _local_duplicates(path: Path, columns: list[str]) -> int:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    table = parquet.read_table(path, columns=columns, partitioning=None).drop_null()
    if len(columns) == 1 and (
        pa.types.is_integer(kind := table.schema.types[0]) or pa.types.is_temporal(kind)
    ):
        return _repeated(table.column(0).to_numpy())
    return int(table.num_rows - table.group_by(columns).aggregate([]).num_rows)
