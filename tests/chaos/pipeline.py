"""The pipeline that chaos runs: three jobs with fan-out and fan-in, once for each engine.

    raw -> clean -> clean, odd -> join -> joined -> (window of five) total -> total

The files flow runs scripts, the noop flow nothing (it is there for the number of its runs), the deep flow Spark. Each
has datasets and an environment of its own, so that a daemon claims what its engine can do. New code is a new file under
a new name, never a changed one: the hash of an attempt's code says exactly what it computed.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd import codehash
from tests.chaos import steps

if TYPE_CHECKING:
    from collections.abc import Iterable

OUTPUTS = {"clean": ("clean", "odd"), "join": ("joined",), "total": ("total",)}
INPUTS = {"clean": ("raw",), "join": ("clean", "odd"), "total": ("joined",)}

HEAD = """[flow]
name = "{name}"
"""
DATASET = """[dataset.{prefix}_{dataset}]
format = "{format}"
environment = "{name}"
ordering = "number"
{rest}"""
JOB = """[job.{prefix}_{step}]
{code}
outputs = [{outputs}]
max_attempts = 3
max_lost = 50
retry_delay = "1s"
timeout = "{timeout}s"
{rest}[job.{prefix}_{step}.inputs]
{inputs}
"""
SPARK = """[job.{prefix}_{step}.spark]
"spark.driver.memory" = "512m"
"spark.sql.shuffle.partitions" = 1
"""
TABLE = """hostname = "{host}"
database = "{database}"
tablename = "{table}"
username = "postgres"
options = {{ dataid_column = "{column}" }}
"""
WAREHOUSE = "warehouse"
SLICE = "slice"
MAX_RUNNING = {"spark": 2}  # of each job; what waits for a Spark application takes no place from others
COLUMNS = {
    "raw": ("number", "key", "value"),
    "clean": ("number", "key", "value", "made_by"),
    "odd": ("number", "key", "value", "made_by"),
    "joined": ("number", "key", "value", "made_by", "is_odd", "joined_by"),
    "total": ("number", "value", "odd", "joined_by", "made_by"),
}
DEEP = '''"""The steps on Spark, version {version}."""
from pyspark.sql import functions as F
from dataflowd import job


def version():
    return F.lit({version}).cast("bigint")


@job
def clean(ctx):
    value = (F.col("value") * (version() + 1) % {prime}).alias("value")
    cleaned = ctx.read("{prefix}_raw").select("number", "key", value, version().alias("made_by"))
    ctx.write("{prefix}_clean", cleaned)
    ctx.write("{prefix}_odd", cleaned.where("value % 2 = 1 OR key = 0"))


@job
def join(ctx):
    odd = ctx.read("{prefix}_odd").select("key", F.lit(1).cast("bigint").alias("is_odd"))
    joined = ctx.read("{prefix}_clean").join(odd, "key", "left").fillna(0, ["is_odd"])
    columns = ["number", "key", "value", "made_by", "is_odd", version().alias("joined_by")]
    ctx.write("{prefix}_joined", joined.select(*columns))


@job
def total(ctx):
    sums = [F.sum("value").alias("value"), F.sum("is_odd").alias("odd"), F.sum("joined_by").alias("joined_by")]
    totals = ctx.read("{prefix}_joined").groupBy("number").agg(*sums)
    ctx.write("{prefix}_total", totals.withColumn("made_by", version()))
'''


@dataclass
class Branch:
    """The pipeline on one engine."""

    name: str
    prefix: str
    engine: str
    directory: Path
    data: Path
    warehouse: str = ""  # host of the database that holds the totals of the deep flow, as a table
    version: int = 0
    codes: dict[str, dict[str, int]] = field(default_factory=dict)  # job -> hash of its code -> version
    fed: int = 0
    unregistered: list[str] = field(default_factory=list)

    @property
    def flow(self) -> Path:
        return self.directory / f"{self.name}.toml"

    @property
    def jobs(self) -> list[str]:
        return [f"{self.prefix}_{step}" for step in OUTPUTS]

    @property
    def datasets(self) -> list[str]:
        """Those that jobs make."""
        return [f"{self.prefix}_{name}" for names in OUTPUTS.values() for name in names]

    @property
    def raw(self) -> str:
        return f"{self.prefix}_raw"

    def write_next_version(self) -> Path:
        """The next version of the code, and a flow file that names it; `flow` is replaced in one moment."""
        self.version += 1
        module = f"step_v{self.version}"
        if self.engine == "process":
            source = Path(steps.__file__).read_text(encoding="utf-8")
            code = re.sub(r"^VERSION = .*$", f"VERSION = {self.version}", source, count=1, flags=re.MULTILINE)
            (self.directory / f"{module}.py").write_text(code, encoding="utf-8")
        elif self.engine == "spark":
            code = DEEP.format(version=self.version, prefix=self.prefix, prime=steps.PRIME)
            (self.directory / f"{module}.py").write_text(code, encoding="utf-8")
        for step in OUTPUTS:
            self.codes.setdefault(f"{self.prefix}_{step}", {})[self._code_hash(step, module)] = self.version
        fresh = self.flow.with_suffix(".new")
        fresh.write_text(self._toml(module), encoding="utf-8")
        return fresh.replace(self.flow)

    def _words(self, step: str, module: str) -> list[str]:
        return [sys.executable, "-I", "-S", f"{module}.py", step, self.prefix]

    def _code_hash(self, step: str, module: str) -> str:
        if self.engine == "spark":
            return codehash.of_python([f"{module}:{step}"], self.directory)
        return codehash.of_command(self._words(step, module), self.directory)

    def _toml(self, module: str) -> str:
        parts = [HEAD.format(name=self.name)]
        parts += [self._dataset(name) for name in COLUMNS]
        parts += [self._job(step, module) for step in OUTPUTS]
        return "".join(parts)

    def _dataset(self, name: str) -> str:
        if self.engine == "noop":
            form, rest = "none", ""
        elif name == "total" and self.warehouse:
            form = "postgres"
            rest = TABLE.format(
                host=self.warehouse, database=WAREHOUSE, table=f"{self.prefix}_{name}", column=SLICE
            )
        else:
            form = "parquet" if self.engine == "spark" and name != "raw" else "csv"
            place = "/{dataid}.csv" if name == "raw" else ""
            columns = ", ".join(f"{column} bigint" for column in COLUMNS[name])
            rest = f'location = "{self.data}/{self.prefix}_{name}{place}"\n'
            rest += f'schema = "{columns}"\n' if name == "raw" and self.engine == "spark" else ""
        return DATASET.format(prefix=self.prefix, dataset=name, format=form, name=self.name, rest=rest)

    def _job(self, step: str, module: str) -> str:
        words = ", ".join(f'"{word}"' for word in self._words(step, module))
        code = f'python = "{module}:{step}"' if self.engine == "spark" else f"command = [{words}]"
        mapping = f'{{kind = "window", size = {steps.WINDOW}}}' if step == "total" else '"identity"'
        return JOB.format(
            prefix=self.prefix,
            step=step,
            code=code,
            outputs=", ".join(f'"{self.prefix}_{name}"' for name in OUTPUTS[step]),
            inputs="\n".join(f"{self.prefix}_{name} = {mapping}" for name in INPUTS[step]),
            timeout=400 if self.engine == "spark" else 30,
            rest=f"max_running = {MAX_RUNNING[self.engine]}\n" if self.engine in MAX_RUNNING else "",
        ) + (SPARK.format(prefix=self.prefix, step=step) if self.engine == "spark" else "")

    def arrive(self, windows: int) -> list[str]:
        """The files of so many windows of raw chunks; returns their dataids."""
        numbers = range(self.fed, self.fed + windows * steps.WINDOW)
        if self.engine != "noop":
            place = self.data / self.raw
            place.mkdir(parents=True, exist_ok=True)
            for number in numbers:
                fresh = place / f".{number}.new"
                fresh.write_text(steps.text(steps.raw(number)), encoding="ascii")
                fresh.replace(place / f"{number}.csv")
        self.fed = numbers.stop
        return [str(number) for number in numbers]

    def expected_chunks(self) -> set[tuple[str, str]]:
        per_chunk = {
            (f"{self.prefix}_{name}", str(number))
            for name in ("clean", "odd", "joined")
            for number in range(self.fed)
        }
        return per_chunk | {
            (f"{self.prefix}_total", str(number)) for number in range(self.fed // steps.WINDOW)
        }


def step_of(jobid: str) -> str:
    return jobid.partition("_")[2]


def computed(step: str, inputs: dict[str, dict[int, steps.Rows]], version: int) -> dict[str, steps.Rows]:
    """What a run makes of these inputs: output -> rows."""
    if step == "clean":
        [rows] = inputs["raw"].values()
        cleaned, odd = steps.clean(rows, version)
        return {"clean": cleaned, "odd": odd}
    if step == "join":
        [cleaned], [odd] = inputs["clean"].values(), inputs["odd"].values()
        return {"joined": steps.join(cleaned, odd, version)}
    return {"total": steps.total([rows for _, rows in sorted(inputs["joined"].items())], version)}


def short(datasets: Iterable[str]) -> list[str]:
    return [name.partition("_")[2] for name in datasets]
