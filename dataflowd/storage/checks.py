"""Compiles declared checks into aggregates of the pass that writes the data.

Checks of single rows are one `observe` on the write, together with the row count, so that validation needs no second scan.
The observe counts the rows that break any check. Only if there are some, a second pass over the written files finds which
check, how often and by which value: one count for each check would make every good chunk slower. If a file does not show
exactly what was written (an empty text in CSV is NULL), the observe counts each check. For a large Parquet file the
statistics of the file answer instead (dataflowd.runner.file_checks).

Two kinds cannot be part of the observe. `unique` needs an exact distinct count, which Spark refuses inside observe; its
sketches are approximate. Custom functions may compute anything. Both read the written files, `unique` only its key columns.

NULL passes every check but not_null, as in SQL. A regex must match the whole value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

ROWS = "rows"
BROKEN = "broken"
EXAMPLE_CHARACTERS = 100


@dataclass(frozen=True)
class CheckResult:
    dataset: str
    name: str
    severity: str
    passed: bool
    observed: str
    expected: str

    @property
    def stops(self) -> bool:
        return not self.passed and self.severity == "error"

    def document(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "name": self.name,
            "severity": self.severity,
            "passed": self.passed,
            "observed": self.observed,
            "expected": self.expected,
        }


@dataclass(frozen=True)
class ColumnCheck:
    """A rule about the values of one column."""

    rule: str
    severity: str
    column: str
    violated: Column
    expected: str

    @property
    def name(self) -> str:
        return f"{self.rule}({self.column})"


def column_checks(checks: Mapping[str, Any], schema: StructType, dataset: str) -> list[ColumnCheck]:
    return list(_column_checks(checks, schema.names, dataset))


def _column_checks(checks: Mapping[str, Any], names: Sequence[str], dataset: str) -> Iterator[ColumnCheck]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - Spark's own habit; the SDK imports without Spark

    def column(check: str, name: str) -> Column:
        require(names, name, check, dataset)
        return F.col(quoted(name))

    not_null = checks.get("not_null", {})
    for name in not_null.get("columns", []):
        require(names, name, "not_null", dataset)
        # An expression as text needs one call into the JVM; building it needs several.
        violated = F.expr(f"{quoted(name)} IS NULL")
        yield ColumnCheck("not_null", not_null["severity"], name, violated, "no NULL")
    for name, check in checks.get("accepted_values", {}).items():
        violated = ~column("accepted_values", name).isin(check["values"])
        expected = "one of " + ", ".join(map(str, check["values"]))
        yield ColumnCheck("accepted_values", check["severity"], name, violated, expected)
    for name, check in checks.get("range", {}).items():
        value = column("range", name)
        bounds = [("min", value < F.lit(check["min"]))] if "min" in check else []
        bounds += [("max", value > F.lit(check["max"]))] if "max" in check else []
        violated = bounds[0][1] if len(bounds) == 1 else bounds[0][1] | bounds[1][1]
        expected = ", ".join(f"{bound} {check[bound]}" for bound, _ in bounds)
        yield ColumnCheck("range", check["severity"], name, violated, expected)
    for name, check in checks.get("regex", {}).items():
        whole = rf"\A(?:{check['pattern']})\z"
        violated = ~column("regex", name).cast("string").rlike(whole)
        yield ColumnCheck("regex", check["severity"], name, violated, f"matches {check['pattern']}")


def aggregates(compiled: Sequence[ColumnCheck], *, together: bool = False) -> list[Column]:
    """The row count, and the violations of each check; `together`: the number of rows that break any check."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    rows = F.expr(f"count(1) AS {ROWS}")
    if together and len(compiled) > 1:
        return [rows, F.count_if(any_broken(compiled)).alias(BROKEN)]
    counts = [F.count_if(check.violated).alias(f"violations{index}") for index, check in enumerate(compiled)]
    return [rows, *counts]


def any_broken(compiled: Sequence[ColumnCheck]) -> Column:
    return reduce(or_, (check.violated for check in compiled))


def examples(compiled: Sequence[ColumnCheck], observed: Mapping[str, Any]) -> list[Column]:
    """For each broken check the least value that breaks it. not_null has no value to show."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    found = []
    for index, check in enumerate(compiled):
        if observed[f"violations{index}"] and check.rule != "not_null":
            value = F.left(F.col(quoted(check.column)).cast("string"), F.lit(EXAMPLE_CHARACTERS))
            found.append(F.min(F.when(check.violated, value)).alias(f"example{index}"))
    return found


def judge_columns(
    dataset: str, compiled: Sequence[ColumnCheck], observed: Mapping[str, Any], shown: Mapping[str, Any]
) -> Iterator[CheckResult]:
    """`shown`: the values of `examples`."""
    for index, check in enumerate(compiled):
        violations, example = observed[f"violations{index}"], shown.get(f"example{index}")
        said = f"{violations} of {observed[ROWS]} rows"
        if example is not None:
            said += f", such as {example!r}"
        yield CheckResult(dataset, check.name, check.severity, violations == 0, said, check.expected)


@dataclass(frozen=True)
class SetAside:
    """How many records were read but are not in an output."""

    quarantined: int = 0  # waiting for a person
    dropped: int = 0  # a person has dropped them

    def __str__(self) -> str:
        said = [f"{self.quarantined} in quarantine"] if self.quarantined else []
        said += [f"{self.dropped} dropped"] if self.dropped else []
        return ", ".join(said)


def judge_rows(
    dataset: str, checks: Mapping[str, Any], rows: int, aside: SetAside, inputs: Mapping[str, int | None]
) -> Iterator[CheckResult]:
    if low := checks.get("min_rows"):
        yield CheckResult(
            dataset, "min_rows", low["severity"], rows >= low["value"], str(rows), f"at least {low['value']}"
        )
    if high := checks.get("max_rows"):
        yield CheckResult(
            dataset,
            "max_rows",
            high["severity"],
            rows <= high["value"],
            str(rows),
            f"at most {high['value']}",
        )
    if compared := checks.get("row_count"):
        source, tolerance = compared["input"], compared["tolerance"]
        there = inputs.get(source)
        accounted = rows + aside.quarantined + aside.dropped
        passed = there is not None and abs(accounted - there) <= tolerance * there
        expected = f"rows of {source}, which are not known" if there is None else f"{there} rows of {source}"
        if tolerance:
            expected += f", within {tolerance:.2%}"
        observed = f"{rows}" if rows == accounted else f"{rows}, {aside}"
        yield CheckResult(dataset, "row_count", compared["severity"], passed, observed, expected)


def stop_on(results: Sequence[CheckResult]) -> None:
    broken = [result for result in results if result.stops]
    if broken:
        said = "; ".join(
            f"{result.dataset}: {result.name}: observed {result.observed}, expected {result.expected}"
            for result in broken
        )
        raise AttemptError("CHECK_FAILED", said, "correct the data or the job")


def judge_schema(dataset: str, check: Mapping[str, Any], schema: StructType) -> CheckResult:
    from pyspark.sql.types import StructType as Struct  # noqa: PLC0415

    expected = [(item.name, item.dataType.simpleString()) for item in Struct.fromDDL(check["columns"])]
    found = [(item.name, item.dataType.simpleString()) for item in schema]
    return CheckResult(
        dataset, "schema", check["severity"], found == expected, _shown(found), _shown(expected)
    )


def judge_unique(dataset: str, check: Mapping[str, Any], duplicates: int) -> CheckResult:
    name = f"unique({', '.join(check['columns'])})"
    return CheckResult(
        dataset, name, check["severity"], duplicates == 0, f"{duplicates} rows too many", "each key once"
    )


def require(names: Sequence[str], column: str, check: str, dataset: str) -> None:
    if column not in names:
        raise AttemptError(
            "CHECK_FAILED",
            f"the check {check} of {dataset} names the column {column!r}, which the output does not have"
            f"{did_you_mean(column, names)}",
            f"write it, or correct the check; the output has {', '.join(names)}",
        )


def quoted(name: str) -> str:
    """Quotes a column's name, so that a dot in it does not mean a field of a structure."""
    return "`" + name.replace("`", "``") + "`"


def _shown(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
