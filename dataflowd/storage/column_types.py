"""Compares the types of stored columns with the declared types.

A stored type agrees with a declared one if Spark reads it as such without loss. A type that this module does not know
always agrees: Spark decides when it reads the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataflowd.model.masking import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql.types import DataType, StructType

SHOWN = 5
NAME_CHARACTERS = 60

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_DIGITS = {
    "tinyint": 10,
    "smallint": 10,
    "int": 10,
    "bigint": 20,
}  # digits that a decimal needs for any of its values
_WIDER = {
    ("float", "double"),
    ("tinyint", "double"),
    ("smallint", "double"),
    ("int", "double"),
    ("date", "timestamp_ntz"),
}
_KNOWN = {*_WHOLE, "float", "double", "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz"}
# Spark reads the types of each group as each other: bytes as text, and times with or without a zone.
_ALIKE = ({"string", "binary"}, {"timestamp", "timestamp_ntz"})
_JSON_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def of_footer(path: Path, kind: str) -> StructType | None:
    """The columns of a file by its footer; None if the footer cannot be used. A type unknown to Spark becomes NullType."""
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415
    from pyspark.sql.types import NullType, StructField, StructType  # noqa: PLC0415

    try:
        schema = _arrow_schema(path, kind)
    except (OSError, ValueError):
        return None  # Spark reports what is wrong with the file
    fields = []
    for field in schema:
        try:
            found = from_arrow_type(field.type)
        except Exception:  # noqa: BLE001 - PySpark raises many kinds of errors for an unknown type
            found = NullType()
        fields.append(StructField(field.name, found))
    # Old versions of Hive wrote no names; Spark then reads the columns by position.
    is_nameless = kind == "orc" and all(field.name.startswith("_col") for field in fields)
    return None if is_nameless else StructType(fields)


def _arrow_schema(path: Path, kind: str) -> Any:
    if kind == "orc":
        from pyarrow import orc  # noqa: PLC0415

        return orc.ORCFile(path).schema
    from pyarrow import parquet  # noqa: PLC0415

    return parquet.read_schema(path)


def differences(stored: StructType, declared: StructType, names: Sequence[str]) -> list[str]:
    """Sentences about the differences. `names`: the columns of the schema that must be in the file."""
    from pyspark.sql.types import StructType  # noqa: PLC0415

    wanted = StructType([field for field in declared if field.name in set(names)])
    found = list(_compared(stored, wanted, ""))
    missing = [quoted(name) for name, said in found if said is None]
    retyped = [f"{quoted(name)} is {said}" for name, said in found if said is not None]
    kinds = [(f"missing: {listed(missing)}", missing), (listed(retyped), retyped)]
    return [text for text, of in kinds if of]


def _compared(stored: StructType, declared: StructType, above: str) -> Iterator[tuple[str, str | None]]:
    """Each column that differs: None if it is missing, else a text about its type. Spark ignores the case of names."""
    there = {field.name.lower(): field.dataType for field in stored}
    for field in declared:
        name = f"{above}{field.name}"
        if field.name.lower() not in there:
            yield name, None
        else:
            yield from _retyped(there[field.name.lower()], field.dataType, name)


def _retyped(stored: DataType, declared: DataType, name: str) -> Iterator[tuple[str, str | None]]:
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415

    if isinstance(stored, StructType) and isinstance(declared, StructType):
        yield from _compared(stored, declared, f"{name}.")
    elif isinstance(stored, ArrayType) and isinstance(declared, ArrayType):
        yield from _retyped(stored.elementType, declared.elementType, f"{name}.element")
    elif isinstance(stored, MapType) and isinstance(declared, MapType):
        yield from _retyped(stored.keyType, declared.keyType, f"{name}.key")
        yield from _retyped(stored.valueType, declared.valueType, f"{name}.value")
    elif not _is_read_as(stored, declared):
        yield name, f"{stored.simpleString()}, the schema says {declared.simpleString()}"


def _is_read_as(stored: DataType, declared: DataType) -> bool:
    """Whether Spark reads the stored type as the declared one without loss."""
    from pyspark.sql.types import DecimalType  # noqa: PLC0415

    one, other = _plain(stored), _plain(declared)
    if not (_is_known(stored) and _is_known(declared)) or one == other or (one, other) in _WIDER:
        return True
    if any({one, other} <= alike for alike in _ALIKE):
        return True
    if one in _WHOLE and other in _WHOLE:
        return _WHOLE.index(one) <= _WHOLE.index(other)
    if not isinstance(declared, DecimalType):
        return False
    room = declared.precision - declared.scale
    if isinstance(stored, DecimalType):
        return bool(stored.scale <= declared.scale and stored.precision - stored.scale <= room)
    return one in _DIGITS and bool(room >= _DIGITS[one])


def _is_known(found: DataType) -> bool:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415

    return _plain(found) in _KNOWN or isinstance(found, ArrayType | DecimalType | MapType | StructType)


def _plain(found: DataType) -> str:
    name = found.simpleString()
    return "string" if name.startswith(("char(", "varchar(", "string collate")) else name


def is_json_of(value: Any, declared: DataType) -> bool:
    """Whether Spark can read a JSON value as this type. A text may be a date, a time or an infinite number."""
    kind = _plain(declared).partition("<")[0].partition("(")[0]
    if kind in _WHOLE:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in {"float", "double", "decimal", "date", "timestamp", "timestamp_ntz"}:
        return isinstance(value, int | float | str) and not isinstance(value, bool)
    if kind == "array":
        return isinstance(value, list)
    if kind in {"struct", "map"}:
        return isinstance(value, dict | list)
    return True


def json_kind(value: Any) -> str:
    return _JSON_KINDS.get(type(value), "NULL")


def quoted(name: str, mark: str = "`") -> str:
    text = printable(name)
    return f"{mark}{text if len(text) <= NAME_CHARACTERS else text[:NAME_CHARACTERS] + '...'}{mark}"


def listed(texts: Sequence[str]) -> str:
    more = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" and {more} more" if more > 0 else "")
