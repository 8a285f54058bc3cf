"""Maps types between Spark and Postgres. A type without a counterpart is read as text, and written only from text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as spark

if TYPE_CHECKING:
    from dataflowd.storage.tables.catalog import Column

DECIMAL_DIGITS = 38
DECIMAL_SCALE = 18  # for a numeric without a scale, as in Spark's own JDBC source
_TYPMOD_HEADER = 4
_SCALE_BITS = 0x7FF

_PLAIN: dict[str, spark.DataType] = {
    "int2": spark.ShortType(),
    "int4": spark.IntegerType(),
    "int8": spark.LongType(),
    "float4": spark.FloatType(),
    "float8": spark.DoubleType(),
    "bool": spark.BooleanType(),
    "text": spark.StringType(),
    "varchar": spark.StringType(),
    "bpchar": spark.StringType(),
    "name": spark.StringType(),
    "bytea": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampNTZType(),
    "timestamptz": spark.TimestampType(),
}
_INTEGERS = frozenset({"int2", "int4", "int8", "numeric", "float8"})
_TEXTS = frozenset({"text", "varchar", "bpchar", "name"})

# For each type of Spark: the type of a new table's column, and the types of existing columns that accept it.
_STORED: dict[type[spark.DataType], tuple[str, frozenset[str]]] = {
    spark.ByteType: ("smallint", _INTEGERS),
    spark.ShortType: ("smallint", _INTEGERS),
    spark.IntegerType: ("integer", _INTEGERS),
    spark.LongType: ("bigint", _INTEGERS),
    spark.FloatType: ("real", frozenset({"float4", "float8", "numeric"})),
    spark.DoubleType: ("double precision", frozenset({"float4", "float8", "numeric"})),
    spark.BooleanType: ("boolean", frozenset({"bool"})),
    spark.BinaryType: ("bytea", frozenset({"bytea"})),
    spark.DateType: ("date", frozenset({"date"})),
    spark.TimestampType: ("timestamp with time zone", frozenset({"timestamptz"})),
    spark.TimestampNTZType: ("timestamp without time zone", frozenset({"timestamp"})),
}


def is_plain(column: Column) -> bool:
    """Whether the driver returns the type itself. Any other type is selected as text."""
    return column.kind in _PLAIN


def natural(column: Column) -> spark.DataType:
    if column.kind != "numeric":
        return _PLAIN.get(column.kind, spark.StringType())
    if column.modifier < _TYPMOD_HEADER:
        return spark.DecimalType(DECIMAL_DIGITS, DECIMAL_SCALE)
    packed = column.modifier - _TYPMOD_HEADER
    precision, scale = packed >> 16, packed & _SCALE_BITS
    if precision <= DECIMAL_DIGITS and scale <= precision:
        return spark.DecimalType(precision, scale)
    return spark.StringType()


def can_filter(column: Column, declared: spark.DataType) -> bool:
    """Whether Postgres compares values of this column as Spark does."""
    is_exact = column.kind in _PLAIN or (column.kind == "numeric" and column.modifier >= _TYPMOD_HEADER)
    return is_exact and declared == natural(column) and column.kind != "bytea"


def stored(kind: spark.DataType) -> str | None:
    """The type of a new column; None if a table cannot hold it."""
    if isinstance(kind, spark.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, spark.StringType | spark.VarcharType | spark.CharType):
        return "text"
    return _STORED[type(kind)][0] if type(kind) in _STORED else None


def fits(kind: spark.DataType, column: Column) -> bool:
    """Whether a column takes the values without changing their meaning. Text may go to uuid, JSON and enum columns."""
    if isinstance(kind, spark.DecimalType):
        return column.kind == "numeric"
    if isinstance(kind, spark.StringType | spark.VarcharType | spark.CharType):
        return column.kind in _TEXTS or (column.kind not in _PLAIN and column.kind != "numeric")
    return column.kind in _STORED[type(kind)][1]
