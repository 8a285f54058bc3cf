"""The pipeline of chaos, once for each engine; shape.py says what it declares.

The files flow runs scripts, the noop flow runs nothing (it adds many runs), the deep flow runs Spark. Each has its own
datasets and environment, so that a daemon claims only what its engine can run. New code is always a new file with a new name:
so the hash of an attempt's code says exactly what it computed.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from dataflowd.flow import codehash
from tests.chaos import shape, steps

if TYPE_CHECKING:
    from datetime import date

HEAD = """[flow]
name = "{name}"
"""
DATASET = """[dataset.{prefix}_{dataset}]
environment = "{name}"
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
CALENDAR = """calendar = "daily"
zone = "{zone}"
start = {start}
"""
WAREHOUSE = "warehouse"
SLICE = "slice"
COLUMNS = {
    "raw": ("number", "key", "value"),
    "clean": ("number", "key", "value", "made_by"),
    "odd": ("number", "key", "value", "made_by"),
    "joined": ("number", "key", "value", "made_by", "is_odd", "joined_by"),
    "total": ("number", "value", "odd", "joined_by", "made_by"),
    "report": ("number", "value", "made_by"),
}
RENAMED = frozenset({"joined", "trend"})  # published at a fixed path too
NUMBERED = frozenset({"clean", "odd", "joined", "trend"})  # one chunk for each raw one
CLOCK_ZONE = "America/St_Johns"
CLOCK_DAYS = 3  # days that are due at the start; each version of the flow begins a day earlier
WINDOWS_A_DAY = 2  # the hours of one more day arrive with so many windows of raw chunks
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


@job
def report(ctx):
    rows = ctx.read("{prefix}_total").select("number", "value", version().alias("made_by"))
    ctx.write("{prefix}_report", rows)
'''


@dataclass
class Branch:
    """The pipeline on one engine."""

    name: str
    prefix: str
    engine: str
    directory: Path
    data: Path
    warehouse: str = ""  # host of the database with the table of the deep flow's totals
    version: int = 0
    is_last: bool = False
    codes: dict[str, dict[str, int]] = field(default_factory=dict)  # job -> hash of its code -> version
    fed: int = 0
    days: int = 0
    unregistered: dict[str, list[str]] = field(default_factory=dict)  # dataset -> dataids
    today: date = field(default_factory=lambda: datetime.now(ZoneInfo(CLOCK_ZONE)).date())

    @property
    def flow(self) -> Path:
        return self.directory / f"{self.name}.toml"

    @property
    def declared(self) -> list[shape.Job]:
        """The jobs of the present version."""
        return shape.jobs(self.engine, self.version, is_last=self.is_last)

    @property
    def jobs(self) -> list[str]:
        """The jobs of any version."""
        return [f"{self.prefix}_{step}" for step in shape.every_job(self.engine)]

    @property
    def made(self) -> list[str]:
        """The datasets that jobs of any version make, without the prefix."""
        forms = [form for forms in shape.every_job(self.engine).values() for form in forms]
        return list(dict.fromkeys(name for form in forms for name in form.outputs))

    @property
    def datasets(self) -> list[str]:
        return [f"{self.prefix}_{name}" for name in self.made]

    @property
    def raw(self) -> str:
        return f"{self.prefix}_raw"

    @property
    def has_references(self) -> bool:
        return self.engine != "spark"

    @property
    def rates(self) -> str:
        return f"{self.prefix}_rates"

    def write_next_version(self, *, is_last: bool = False) -> Path:
        """Writes the next version of the code, and a flow file that names it. A rename replaces the flow file."""
        self.version += 1
        self.is_last = is_last
        module = f"step_v{self.version}"
        if self.engine == "process":
            source = Path(steps.__file__).read_text(encoding="utf-8")
            code = re.sub(r"^VERSION = .*$", f"VERSION = {self.version}", source, count=1, flags=re.MULTILINE)
            (self.directory / f"{module}.py").write_text(code, encoding="utf-8")
        elif self.engine == "spark":
            code = DEEP.format(version=self.version, prefix=self.prefix, prime=steps.PRIME)
            (self.directory / f"{module}.py").write_text(code, encoding="utf-8")
        for job in self.declared:
            known = self.codes.setdefault(f"{self.prefix}_{job.step}", {})
            known[self._code_hash(job.step, module)] = self.version
        fresh = self.flow.with_suffix(".new")
        fresh.write_text(self._toml(module), encoding="utf-8")
        return fresh.replace(self.flow)

    def _words(self, step: str, module: str) -> list[str]:
        return [sys.executable, "-I", "-S", f"{module}.py", step, self.prefix]

    def _code_hash(self, step: str, module: str) -> str:
        if self.engine == "spark":
            return codehash.of_python([f"{module}:{step}"], self.directory).hash
        return codehash.of_command(self._words(step, module), self.directory).hash

    def _toml(self, module: str) -> str:
        outside = ("raw", "rates", "hours", "clock") if self.has_references else ("raw",)
        parts = [HEAD.format(name=self.name)]
        parts += [self._dataset(name) for name in (*outside, *self.made)]
        parts += [self._job(job, module) for job in self.declared]
        return "".join(parts)

    def _dataset(self, name: str) -> str:
        is_numbered = name not in {"rates", "hours", "clock", "daily", "stamp", "summary"}
        rest = 'ordering = "number"\n' if is_numbered else ""
        if name == "clock":
            start = self.today - timedelta(days=CLOCK_DAYS + self.version)
            rest += CALENDAR.format(zone=CLOCK_ZONE, start=start.isoformat())
        elif self.engine == "noop" or name == "hours":
            rest += 'format = "none"\n'
        elif name == "total" and self.warehouse:
            rest += 'format = "postgres"\n' + TABLE.format(
                host=self.warehouse, database=WAREHOUSE, table=f"{self.prefix}_{name}", column=SLICE
            )
        else:
            is_parquet = self.engine == "spark" and name != "raw"
            rest += f'format = "{"parquet" if is_parquet else "csv"}"\n'
            place = "/{dataid}.csv" if name in {"raw", "rates"} else ""
            rest += f'location = "{self.data}/{self.prefix}_{name}{place}"\n'
            if name == "raw" and self.engine == "spark":
                columns = ", ".join(f"{column} bigint" for column in COLUMNS[name])
                rest += f'schema = "{columns}"\n'
            rest += 'publish = "rename"\n' if name in RENAMED else ""
        return DATASET.format(prefix=self.prefix, dataset=name, name=self.name, rest=rest)

    def _job(self, job: shape.Job, module: str) -> str:
        words = ", ".join(f'"{word}"' for word in self._words(job.step, module))
        code = f'python = "{module}:{job.step}"' if self.engine == "spark" else f"command = [{words}]"
        rest = f"max_running = {job.max_running}\n" if job.max_running is not None else ""
        rest += "strict_order = true\n" if job.is_strict else ""
        return JOB.format(
            prefix=self.prefix,
            step=job.step,
            code=code,
            outputs=", ".join(f'"{self.prefix}_{name}"' for name in job.outputs),
            inputs="\n".join(f"{self.prefix}_{name} = {_inline(each)}" for name, each in job.inputs.items()),
            timeout=400 if self.engine == "spark" else 30,
            rest=rest,
        ) + (SPARK.format(prefix=self.prefix, step=job.step) if self.engine == "spark" else "")

    # --- chunks from outside ---

    def arrive(self, windows: int) -> None:
        """Writes the files of so many windows of raw chunks and of their hours. They are not registered yet."""
        numbers = range(self.fed, self.fed + windows * steps.WINDOW)
        for number in numbers:
            self._put(self.raw, str(number), steps.raw(number))
        self.fed = numbers.stop
        self._expect(self.raw, [str(number) for number in numbers])
        while self.has_references and self.days < self.fed // steps.WINDOW // WINDOWS_A_DAY:
            self._expect(f"{self.prefix}_hours", shape.hours_of(self._day(self.days)))
            self.days += 1

    def bring_reference(self) -> None:
        self._put(self.rates, shape.REFERENCE, steps.reference())

    def _expect(self, dataset: str, dataids: list[str]) -> None:
        self.unregistered.setdefault(dataset, []).extend(dataids)

    def _put(self, dataset: str, dataid: str, rows: steps.Rows) -> None:
        if self.engine == "noop":
            return
        place = self.data / dataset
        place.mkdir(parents=True, exist_ok=True)
        fresh = place / f".{dataid}.new"
        fresh.write_text(steps.text(rows), encoding="ascii")
        fresh.replace(place / f"{dataid}.csv")

    @staticmethod
    def _day(number: int) -> date:
        return shape.FIRST_DAY + timedelta(days=number)

    def periods(self) -> list[str]:
        """The days of the present version's calendar that are over by now."""
        start = self.today - timedelta(days=CLOCK_DAYS + self.version)
        until = datetime.now(ZoneInfo(CLOCK_ZONE)).date()
        return [(start + timedelta(days=day)).isoformat() for day in range((until - start).days)]

    def expected_chunks(self) -> set[tuple[str, str]]:
        return {(f"{self.prefix}_{name}", dataid) for name in self.made for dataid in self.dataids(name)}

    def dataids(self, name: str) -> list[str]:
        if name == "summary":
            return [shape.ALL]
        if name == "daily":
            return [self._day(number).isoformat() for number in range(self.days)]
        if name == "stamp":
            return self.periods()
        if name in NUMBERED:
            # The first chunk has no chunk before it.
            return [str(number) for number in range(int(name == "trend"), self.fed)]
        return [str(number) for number in range(self.fed // steps.WINDOW)]


def _inline(mapping: shape.Mapping) -> str:
    return "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in mapping.items()) + "}"


def step_of(jobid: str) -> str:
    return jobid.partition("_")[2]


def computed(step: str, inputs: steps.Inputs, version: int) -> dict[str, steps.Rows]:
    """The rows that a run makes from these inputs, by output."""
    if step == "report":
        rows = [row for rows in inputs["total"].values() for row in rows]
        return {"report": [(number, value, version) for number, value, *_ in rows]}
    return steps.computed(step, inputs, version)
