"""The Context: the one argument of a job's function. It reads this chunk, and writes where only this attempt writes.

`read` and `quarantine` put watches into the plan, and `write` adds the checks; the write itself computes their values. Other
jobs see the output only later, when the runner has validated it and the daemon has published it. Nothing here can publish.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dataflowd.host import allowed_roots
from dataflowd.model import formats
from dataflowd.model.faults import AttemptError, name_node
from dataflowd.model.masking import mask, printable
from dataflowd.model.suggest import did_you_mean
from dataflowd.model.work_order import Chunk, Input, attempt_location
from dataflowd.sdk import _quarantine as sieves
from dataflowd.sdk import _repairs
from dataflowd.sdk._replay import Replaying
from dataflowd.sdk._sample import sampled
from dataflowd.sdk._watch import Watch, plan_of
from dataflowd.storage import checks as declared_checks
from dataflowd.storage import files, stored_columns
from dataflowd.storage.partition import batches
from dataflowd.storage.tables import reading, writing
from dataflowd.storage.tables.place import table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dataflowd.model.work_order import Dataset, Order, Output

T = TypeVar("T")

LARGE_BYTES = 32 * 1024 * 1024  # from about this size on, checking each row costs more than opening the files


class Reporter(Protocol):
    """Receives the log lines and the progress of a job while it runs."""

    def log(self, line: str) -> None: ...
    def progress(self, done: int, total: int | None) -> None: ...


@dataclass
class Node:
    """The statistics of one named step."""

    node: str
    parent: str | None = None  # the node inside which this one began
    sources: list[str] = field(default_factory=list)  # the nodes that this one gets its rows from
    items: int = 0
    successes: int = 0
    failures: int = 0
    seconds: float = 0.0

    def count(self, successes: int = 0, failures: int = 0) -> None:
        self.successes += successes
        self.failures += failures
        self.items += successes + failures


@dataclass(frozen=True)
class Written:
    """An output that was written, and the values that were observed during the write."""

    dataset: Dataset
    location: str
    schema: StructType
    checks: Mapping[str, Any]
    compiled: list[declared_checks.ColumnCheck]
    observed: dict[str, Any]
    is_asked: bool = True  # its checks were observed during the write
    is_adopted: bool = False  # another program put the data at the final location
    plan: str = ""  # of its rows, if row_count must know which sieves they passed

    @property
    def rows(self) -> int:
        return int(self.observed[declared_checks.ROWS])


class Log:
    """`ctx.log.info("loaded", rows=10)`: writes events with keys to the attempt's own log."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def debug(self, event: str, **keys: Any) -> None:
        self._write("debug", event, keys)

    def info(self, event: str, **keys: Any) -> None:
        self._write("info", event, keys)

    def warning(self, event: str, **keys: Any) -> None:
        self._write("warning", event, keys)

    def error(self, event: str, **keys: Any) -> None:
        self._write("error", event, keys)

    def _write(self, level: str, event: str, keys: dict[str, Any]) -> None:
        line = " ".join([level, event, *(f"{key}={value!r}" for key, value in keys.items())])
        self._reporter.log(mask(printable(line, keep="\t")))


@dataclass
class Context:
    order: Order
    spark: SparkSession
    reporter: Reporter
    stop: threading.Event
    params: Any = None
    frames: Mapping[str, DataFrame] = field(default_factory=dict)  # inputs that a test gives as frames
    _written: dict[str, Written] = field(default_factory=dict)
    _sieves: list[sieves.Sieve] = field(default_factory=list)
    _counts: dict[str, Watch] = field(default_factory=dict)
    _stored_rows: dict[str, int] = field(default_factory=dict)
    _passages: list[tuple[str, Watch]] = field(default_factory=list)
    _endings: list[tuple[str, Watch]] = field(default_factory=list)  # of the outputs that were written
    _nodes: dict[str, Node] = field(default_factory=dict)
    _wholes: dict[str, str] = field(default_factory=dict)  # by branch, the node that it is a branch of
    _inside: threading.local = field(default_factory=threading.local)  # nodes that are open in this thread
    _read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.log = Log(self.reporter)
        self._replaying = None if self.order.replay is None else Replaying(self.order.replay)

    @property
    def dataid(self) -> str:
        """The slice that this run makes."""
        return self.order.dataid

    @property
    def jobid(self) -> str:
        """The job's name in the flow file."""
        return self.order.jobid

    @property
    def attempt(self) -> int:
        """The attempt's id, as logs and directories name it."""
        return self.order.attempt

    @property
    def cancelled(self) -> bool:
        """True if the attempt was cancelled. A long loop of Python code should check this and return."""
        return self.stop.is_set()

    def input(self, name: str) -> Input:
        """An input of this run: its chunks, their locations, and the connection of its source."""
        return _named(self.order.inputs, name, "input", self.jobid)

    def output(self, name: str) -> Output:
        """An output as the flow declares it."""
        return _named(self.order.outputs, name, "output", self.jobid)

    def progress(self, done: int, total: int | None = None) -> None:
        """Writes the progress of the job's own loop to the attempt's log: `progress 3 of 10`."""
        self.reporter.progress(done, total)

    @contextmanager
    def node(self, name: str) -> Iterator[Node]:
        """Names a step. Its time, and the counts of `node.count`, are stored with the attempt and summed per job."""
        found = self._step(name)
        outside: tuple[str, ...] = getattr(self._inside, "names", ())
        self._inside.names = (*outside, name)
        began = time.monotonic()
        try:
            yield found
        except BaseException as error:
            name_node(error, name)
            raise
        finally:
            self._inside.names = outside
            found.seconds += time.monotonic() - began

    def counted(self, name: str, frame: DataFrame, branch: str | None = None) -> DataFrame:
        """The frame, with its rows counted as items of a node, and of a branch of the node."""
        watch = _count_rows(frame)
        taken = name if branch is None else f"{name}: {branch}"
        if branch is not None:
            self._nodes.setdefault(taken, Node(taken, name))
            self._wholes[taken] = name
        self._passages.append((taken, watch))
        return watch.frame

    def read(self, name: str, *, columns: Sequence[str] | None = None) -> DataFrame:
        """Reads this chunk of an input. Broken records of CSV and JSON go to quarantine, never silently to NULL.

        `columns`: only these. This saves work for a table. From files Spark reads only the columns that it needs anyway.
        """
        source = self.input(name)
        if columns is not None and (name in self.frames or source.dataset.format not in formats.TABLES):
            return self.read(name).select(*map(declared_checks.quoted, columns))
        self._read.add(name)
        frame = self.frames[name] if name in self.frames else self._load(source, columns)
        if self.order.trial is not None:
            frame = sampled(frame, self.order.trial)
        if self._replaying is not None and name in self._replaying.told.inputs:
            frame = self._nothing_of(source, frame)
        if formats.CORRUPT_COLUMN in frame.columns:
            return self._without_broken(source, frame)
        if self._replaying is None and self._must_count(source) and not self._knows_rows(source):
            self._counts[name] = _count_rows(frame)
            return self._counts[name].frame
        return frame

    def quarantine(
        self, frame: DataFrame, *, unless: str | Column, item: str | Column | None = None, reason: str = ""
    ) -> DataFrame:
        """The rows for which the condition is true. All others, also those for which it is NULL, go to quarantine."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        condition = F.expr(unless) if isinstance(unless, str) else unless
        is_bad = ~F.coalesce(condition, F.lit(False))
        said = reason or (f"not {unless}" if isinstance(unless, str) else "the condition does not hold")
        name = self._free_name(reason or "quarantine")
        found, good = sieves.sieve(
            self._repaired(frame, name=name, code="BAD_RECORD", reason=said),
            name=name,
            is_bad=is_bad,
            code="BAD_RECORD",
            reason=said,
            item=F.col(declared_checks.quoted(item)) if isinstance(item, str) else item,
        )
        self._place(found)
        return good

    def write(self, name: str, frame: DataFrame) -> None:
        """Writes an output and observes its checks in the same pass. Each output is written once."""
        output = self.output(name)
        if name in self._written:
            raise AttemptError(
                "JOB_FAILED", f"the output {name!r} is written twice", "union the parts and write them once"
            )
        if not self._written:
            counts = [*self._counts.values(), *(watch for _, watch in self._passages)]
            for watch in [*counts, *(one.watch for one in self._sieves)]:
                watch.expire()
        if self._replaying is not None:
            frame = self._replaying.merged(self.spark, output, self.order, frame)
        watch, describe = self._observed(output, frame, is_asked=not self._is_told_by_files(output))
        location = self._store(watch.frame, output)
        self._written[name] = describe(location)

    def adopt(self, name: str) -> None:
        """Makes data that another program has put at the output's location the output, and observes its checks."""
        if self.order.trial is not None:
            raise AttemptError(
                "JOB_FAILED",
                "a job that publishes data where it lies cannot be tried on a part of it",
                "run it on a copy of the data",
            )
        output = self.output(name)
        location = self._adoptable(output)
        if output.dataset.format in formats.FILES:
            stored_columns.check(self.spark, output.dataset, [Chunk(dataid=self.dataid, location=location)])
        frame = self.stored(output.dataset, location)
        if formats.CORRUPT_COLUMN in frame.columns:
            frame = self._without_broken(Input(dataset=output.dataset, chunks=()), frame)
        watch, describe = self._observed(output, frame)
        watch.frame.write.format("noop").mode("overwrite").save()
        found = replace(describe(location), is_adopted=True)
        if output.dataset.format in formats.TABLES and found.rows == 0:
            raise _nothing_at(f"{location} for {self.dataid}")
        self._written[name] = found

    def stored(
        self,
        dataset: Dataset,
        location: str,
        *,
        is_staged: bool = False,
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """Reads an output that is written but not yet published."""
        if dataset.format not in formats.TABLES:
            frame = files.read(self.spark, dataset, [location])
            return frame if columns is None else frame.select(*map(declared_checks.quoted, columns))
        hosts = self.order.allowed_hosts
        if is_staged:
            return reading.read_staged(self.spark, dataset, self.attempt, hosts, columns)
        return reading.read(self.spark, dataset, [Chunk(dataid=self.dataid)], hosts, columns)

    def written(self) -> dict[str, Written]:
        """The outputs that were written so far."""
        return dict(self._written)

    def seen(self) -> list[sieves.Seen]:
        """What each sieve has seen."""
        return [one.seen() for one in self._sieves]

    def set_aside(self, name: str, seen: Sequence[sieves.Seen]) -> declared_checks.SetAside:
        """How many records the sieves in this output's plan have set aside.

        A sieve that is in no output's plan (a checkpoint of the job cut the plan) counts for every output.
        """
        if self._replaying is not None:
            told = self._replaying.told
            return declared_checks.SetAside(told.aside + sum(one.bad for one in seen), told.dropped)
        plans = [item.plan for item in self._written.values()]
        counted = [
            one
            for one, sieve in zip(seen, self._sieves, strict=True)
            if sieve.watch.is_in(self._written[name].plan) or not any(map(sieve.watch.is_in, plans))
        ]
        return declared_checks.SetAside(sum(one.bad for one in counted), sum(one.dropped for one in counted))

    def nodes(self, seen: Sequence[sieves.Seen]) -> list[Node]:
        """The nodes in the order in which they began, with their row counts."""
        found = {name: replace(node) for name, node in self._nodes.items()}
        for one in seen:
            found[one.name].count(successes=one.rows - one.bad - one.dropped, failures=one.bad)
        for name, watch in self._passages:
            rows = int((watch.passing() or {"rows": 0})["rows"])
            found[name].count(successes=rows)
            if (whole := self._wholes.get(name)) is not None:
                found[whole].count(successes=rows)
        for name, sources in self._sources().items():
            found[name].sources = sources
        if self._replaying is not None:
            self._add_earlier(found, self._replaying)
        return list(found.values())

    def _add_earlier(self, found: dict[str, Node], replaying: Replaying) -> None:
        """Adds the earlier attempt's counts, so that the nodes count the whole chunk. Resolved records count once."""
        written = {name for name, _ in self._endings}
        for earlier in replaying.told.nodes:
            node = found.setdefault(
                earlier["node"], Node(earlier["node"], earlier["parent"], list(earlier["sources"]))
            )
            node.seconds += earlier["seconds"]
            if node.node not in written:
                gone = replaying.counts.get(node.node, 0)
                node.items += earlier["items"] - gone
                node.successes += earlier["successes"]
                node.failures += earlier["failures"] - gone

    def _sources(self) -> dict[str, list[str]]:
        """For each node the nearest nodes before it in Spark's plan."""
        placed = [
            *((one.name, one.watch) for one in self._sieves),
            *self._passages,
            *self._endings,
        ]
        # For each watch the watches in the plan of its rows.
        before = (
            {
                place: {
                    other for other, (_, known) in enumerate(placed) if other != place and known.is_in(plan)
                }
                for place, plan in enumerate(watch.plan_before() for _, watch in placed)
            }
            if len(placed) > 1
            else {}
        )
        found: dict[str, list[str]] = {}
        for place, above in before.items():
            nearest = above - {further for other in above for further in before[other]}
            name = placed[place][0]
            whole = self._wholes.get(name)
            # The sources of a branch are sources of its node; the branch itself has the node as its source.
            known = found.setdefault(whole or name, [])
            known += [
                source
                for source in dict.fromkeys(placed[other][0] for other in sorted(nearest))
                if source not in {*known, name, whole}
            ]
            if whole is not None:
                found[name] = [whole]
        return found

    def input_rows(self) -> dict[str, int | None]:
        """The row count of each input: from its manifest, its files, or a watch on the read."""
        return {
            name: int(self._counts[name].values()["rows"])
            if name in self._counts
            else self._stored_rows.get(name, source.rows)
            for name, source in self.order.inputs.items()
        }

    def rows_read(self) -> int:
        """The rows of all inputs that the job has read, as far as they are known."""
        return sum(rows or 0 for name, rows in self.input_rows().items() if name in self._read)

    def _observed(
        self, output: Output, frame: DataFrame, *, is_asked: bool = True
    ) -> tuple[Watch, Callable[[str], Written]]:
        """The frame with a watch for its checks, and a function to call with the location after the write."""
        declared = dict(output.dataset.checks)
        if output.dataset.columns and "schema" not in declared:
            declared["schema"] = {"columns": output.dataset.columns, "severity": "error"}
        compiled = declared_checks.column_checks(declared, frame.schema, output.name)
        for column in declared.get("unique", {}).get("columns", []):
            declared_checks.require(frame.columns, column, "unique", output.name)
        together = output.dataset.format in files.WITH_FOOTERS
        watch = Watch(frame, declared_checks.aggregates(compiled if is_asked else [], together=together))
        plan = plan_of(frame) if self._is_counted_apart() else ""
        began = time.monotonic()

        def describe(location: str) -> Written:
            node = self._step(f"write {output.name}")
            self._endings.append((node.node, watch))
            found = Written(
                output.dataset,
                location,
                frame.schema,
                declared,
                compiled,
                watch.values(),
                is_asked=is_asked,
                plan=plan,
            )
            node.count(successes=found.rows)
            node.seconds += time.monotonic() - began
            return found

        return watch, describe

    def _is_counted_apart(self) -> bool:
        """Whether row_count must know, for each output, which records were set aside in its own plan."""
        checks = (output.dataset.checks for output in self.order.outputs.values())
        return len(self.order.outputs) > 1 and any("row_count" in declared for declared in checks)

    def _is_told_by_files(self, output: Output) -> bool:
        """Whether the metadata of the written files can answer the checks. For a small chunk the watch is faster."""
        is_plain = output.dataset.format == "parquet" and self.order.trial is None
        is_local = output.location is not None and allowed_roots.local_path(output.location) is not None
        return is_plain and is_local and self._bytes_read() >= LARGE_BYTES

    def _bytes_read(self) -> int:
        """The bytes of the inputs that the job has read, as far as they are files on this host."""
        sources = (self.order.inputs[name] for name in self._read if name not in self.frames)
        return sum(
            files.local_bytes(chunk.location)
            for source in sources
            for chunk in source.chunks
            if chunk.batch is None and chunk.location is not None and source.dataset.format in formats.FILES
        )

    def _adoptable(self, output: Output) -> str:
        if output.dataset.format in formats.TABLES:
            return table_of(output.dataset, self.order.allowed_hosts).url
        location = _located(output).replace("{dataid}", self.dataid)
        allowed_roots.check(location, self.order.allowed_roots)
        if not files.exists(self.spark, location):
            raise _nothing_at(location)
        allowed_roots.check_below(location, self.order.allowed_roots)
        return location

    def _load(self, source: Input, columns: Sequence[str] | None) -> DataFrame:
        kind = source.dataset.format
        if kind in formats.FILES or kind in formats.LAKES:
            frame = files.read(self.spark, source.dataset, source.locations)
            return batches.chosen(frame, source.chunks)
        if kind in formats.TABLES:
            return reading.read(self.spark, source.dataset, source.chunks, self.order.allowed_hosts, columns)
        raise AttemptError(
            "INVALID_PATH",
            f"the input {source.name!r} has the format {source.dataset.format!r}, which ctx.read does not read",
            "use ctx.input(name).connection and read it in the job",
        )

    def _store(self, frame: DataFrame, output: Output) -> str:
        if output.dataset.format in formats.TABLES:
            return writing.stage(frame, output, self.order)
        location = attempt_location(_located(output), self.dataid, self.attempt, self.order.allowed_roots)
        files.write(frame, output.dataset, location)
        return location

    def _without_broken(self, source: Input, frame: DataFrame) -> DataFrame:
        place = {
            "name": f"read {source.name}",
            "code": "MALFORMED",
            "reason": f"does not fit the schema of {source.name}",
        }
        found, good = sieves.unbroken(self._repaired(frame, **place), **place)
        self._place(found)
        if source.rows is None and self._replaying is None:
            self._counts[source.name] = found.watch
        return good

    def _repaired(self, frame: DataFrame, *, name: str, code: str, reason: str) -> DataFrame:
        if self._replaying is None:
            return _repairs.applied(frame, self.order.resolved)
        return self._replaying.judged(frame, name=name, code=code, reason=reason)

    def _nothing_of(self, source: Input, frame: DataFrame) -> DataFrame:
        """An empty frame for the input whose records are replayed. Its rows are counted if row_count compares them."""
        if source.rows is None and self._is_compared(source) and not self._knows_rows(source):
            self._counts[source.name] = _count_rows(frame)
        return frame.limit(0)

    def _must_count(self, source: Input) -> bool:
        """Whether the rows must be counted: for the check row_count, or for a limit of bad records that is a share."""
        is_share = isinstance(self.order.quarantine, float)
        return source.rows is None and (is_share or self._is_compared(source))

    def _is_compared(self, source: Input) -> bool:
        """Whether the check row_count of an output compares with this input."""
        checks = (output.dataset.checks.get("row_count", {}) for output in self.order.outputs.values())
        return any(check.get("input") == source.name for check in checks)

    def _knows_rows(self, source: Input) -> bool:
        """Whether the footers of the files tell how many rows the job reads. That costs less than a watch."""
        is_whole = self.order.trial is None and all(chunk.batch is None for chunk in source.chunks)
        is_plain = source.dataset.format in files.WITH_FOOTERS and not source.dataset.options
        if source.name in self.frames or not is_plain or not is_whole:
            return False
        rows = files.rows_of(source.dataset.format, source.locations)
        if rows is not None:
            self._stored_rows[source.name] = rows
        return rows is not None

    def _place(self, sieve: sieves.Sieve) -> None:
        self._sieves.append(sieve)
        self._step(sieve.name)

    def _step(self, name: str) -> Node:
        """The node of that name. A new node gets the innermost open node as its parent."""
        open_ones: tuple[str, ...] = getattr(self._inside, "names", ())
        return self._nodes.setdefault(name, Node(name, open_ones[-1] if open_ones else None))

    def _free_name(self, name: str) -> str:
        taken = {one.name for one in self._sieves}
        return name if name not in taken else f"{name} ({len(taken)})"


def _count_rows(frame: DataFrame) -> Watch:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return Watch(frame, [F.count(F.lit(1)).alias("rows")])


def _located(output: Output) -> str:
    if output.location is None:
        raise AttemptError(
            "INVALID_PATH",
            f"the output {output.name!r} has no location, and the format {output.dataset.format!r} needs one",
            "give the dataset a location in the flow file",
        )
    return output.location


def _nothing_at(where: str) -> AttemptError:
    return AttemptError("DATA_NOT_READY", f"there is nothing at {where}", "put the data there")


def _named(known: Mapping[str, T], name: str, what: str, jobid: str) -> T:
    if name not in known:
        raise AttemptError(
            "JOB_FAILED",
            f"job {jobid} has no {what} {name!r}{did_you_mean(name, known)}",
            f"declare it in the flow file; its {what}s are {', '.join(known) or 'none'}",
        )
    return known[name]
