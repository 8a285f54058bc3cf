"""One attempt from its order to its result: prepare, run, validate, and what is needed to publish.

Prepare asks the host's side of the five questions before any job code runs. Run calls the author's function. Validate
judges what was observed, compares it with what lies on the disk, and asks the checks that need a look at it. The
manifest goes back with the result: publishing is the daemon's, in one transaction, with a token that is not known here.
Rows of a table are put in their place before that, once the daemon has said that the token still lives (dataflowd.storage.tables).
Whatever happens becomes a result; only the death of the process has none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from dataflowd.host import allowed_roots
from dataflowd.model import formats
from dataflowd.model.endings import told_error
from dataflowd.model.faults import AttemptError
from dataflowd.model.masking import mask
from dataflowd.model.plural import agreeing, counted
from dataflowd.model.work_order import attempt_location
from dataflowd.runner import file_checks, incoming, jobcode
from dataflowd.runner import prepare as preparing
from dataflowd.runner.explain import fault, is_of_spark, line_of, message_of
from dataflowd.runner.validate import judge_schema_and_keys, publishable
from dataflowd.sdk import _quarantine
from dataflowd.sdk._replay import WholeError, columns_of
from dataflowd.sdk.context import Context, Reporter
from dataflowd.sdk.declare import typed_params
from dataflowd.storage import checks, evidence, files, stored_columns
from dataflowd.storage.manifest import manifest
from dataflowd.storage.tables import reading, writing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from dataflowd.model.work_order import Dataset, Input, Order, Output
    from dataflowd.sdk._quarantine import Seen
    from dataflowd.sdk.context import Written
    from dataflowd.storage import manifest_check


class Steps(Reporter, Protocol):
    """Told as each of prepare, run, validate and publish begins."""

    def step(self, name: str) -> None: ...
    def found(self, document: dict[str, Any]) -> None:
        """What prepare has found (dataflowd.storage.evidence), also when it has refused."""
        ...

    def confirm(self) -> bool:
        """Whether the attempt still holds its claim, as the daemon finds it in the database now."""
        ...


def execute(order: Order, spark: SparkSession, reporter: Steps, stop: threading.Event) -> dict[str, Any]:
    """The result as a document: all of dataflowd.model.attempt.Result but the attempt and its token."""
    seen = evidence.Evidence(order)
    result: dict[str, Any] = {
        "outcome": "FAILED",
        "code_hash": order.code_hash,
        "config_hash": order.config_hash,
    }
    try:
        reporter.step("prepare")
        try:
            prepare(order, spark, seen)
        finally:
            reporter.found(seen.document())
        incoming.judge(order, spark, result)
        reporter.step("run")
        ctx = _ran(order, spark, reporter, stop)
        reporter.step("validate")
        result |= _with_checks(result, validate(ctx))
        check_inputs_again(order)
        reporter.step("publish")
        publish_tables(ctx, reporter.confirm)
        return result | {"outcome": "DONE"}
    except BaseException as error:  # noqa: BLE001 - sys.exit and cancellation in job code are results like any other
        said = fault(error)
        for line in f"failed {said.code}: {said}".splitlines():
            reporter.log(line)
        return result | _with_checks(result, told_error(said))


def _with_checks(result: dict[str, Any], details: dict[str, Any]) -> dict[str, Any]:
    """Those of the outputs behind those of the inputs."""
    if "checks" not in result or "checks" not in details:
        return details
    return details | {"checks": [*result["checks"], *details["checks"]]}


def _ran(order: Order, spark: SparkSession, reporter: Steps, stop: threading.Event) -> Context:
    """Repaired records alone where the order says so, and the whole chunk where that cannot be."""
    function = jobcode.function(order)
    if (replay := order.replay) is not None:
        ctx = Context(order, spark, reporter, stop)
        try:
            run(ctx, function)
        except WholeError as error:
            reporter.log(f"replay whole: {error}")
            order = replace(order, replay=None)
        else:
            reporter.log(
                f"replay rows: {counted(len(replay.records), 'record')}, added to version {replay.version}"
            )
            return ctx
    ctx = Context(order, spark, reporter, stop)
    run(ctx, function)
    return ctx


def prepare(order: Order, spark: SparkSession, seen: evidence.Evidence) -> None:
    preparing.prepare(order, seen, _SparkEyes(order, spark))


@dataclass(frozen=True)
class _SparkEyes:
    order: Order
    spark: SparkSession

    def listing(self, dataset: Dataset, location: str) -> list[files.File] | None:
        files.require_jars(self.spark, dataset, location)
        if not files.exists(self.spark, location):
            return None
        return files.listing(self.spark, location, digest=dataset.digest)

    def check_table(self, source: Input) -> None:
        reading.check_input(source, self.order.allowed_hosts)

    def check_files(self, source: Input, places: manifest_check.Places) -> None:
        if source.dataset.format not in {*formats.FILES, *formats.LAKES}:
            return
        formats.read_options(source.name, source.dataset.format, source.dataset.options)
        for chunk in source.chunks:
            if chunk.location is not None:
                places.check(source, chunk, chunk.location)
        stored_columns.check(self.spark, source.dataset, source.chunks)

    def take_place(self, output: Output) -> None:
        order = self.order
        if output.dataset.format in formats.TABLES:
            writing.take(order, output)
        if output.dataset.format in formats.TABLES or output.location is None:
            return
        location = attempt_location(output.location, order.dataid, order.attempt, order.allowed_roots)
        files.require_jars(self.spark, output.dataset, location)
        formats.write_options(output.name, output.dataset.format, output.dataset.options)
        if files.exists(self.spark, location):
            raise preparing.occupied(location)
        allowed_roots.require_writable(location)


def run(ctx: Context, function: Callable[[Context], Any]) -> None:
    """Calls the author's function and sees that it has written what the flow declares."""
    ctx.params = typed_params(function, ctx.order.params)
    returned = function(ctx)
    missing = [name for name in ctx.order.outputs if name not in ctx.written()]
    if not missing:
        return
    is_frame = type(returned).__name__ == "DataFrame"
    hint = "the DataFrame that it returned was not written; " if is_frame else ""
    raise AttemptError(
        "NO_OUTPUT",
        f"the job returned without writing {', '.join(missing)}",
        f'{hint}call ctx.write("{missing[0]}", frame) before the function returns',
    )


def validate(ctx: Context) -> dict[str, Any]:
    """Outputs, checks, nodes and quarantine of a result; raises when something forbids publication."""
    seen = ctx.seen()
    written = ctx.written()
    results = [result for item in written.values() for result in _judged(ctx, item, seen)]
    details: dict[str, Any] = {
        "checks": [result.document() for result in results],
        "nodes": [vars(node) for node in ctx.nodes(seen)],
    }
    if ctx.order.trial is not None:
        details |= {
            "quarantine": _quarantine.documents(seen),
            "preview": _preview(ctx, ctx.order.trial.shown),
        }
    # Of a replay the whole chunk has passed the limit, and no more records are bad now.
    limit = ctx.order.quarantine if ctx.order.replay is None else None
    with publishable(details, results, seen, limit, ctx.rows_read() if limit is not None else 0):
        outputs = {name: _manifest(ctx, item) for name, item in written.items()}
    applied = {"applied": True} if ctx.order.resolved else {}
    applied |= {"replayed": True} if ctx.order.replay is not None else {}
    return details | {"outputs": outputs, "quarantine": _quarantine.documents(seen)} | applied


def _preview(ctx: Context, most: int) -> dict[str, list[Any]]:
    """The first rows of each output, as JSON can carry them."""
    frames = {name: _stored(ctx, item) for name, item in ctx.written().items()}
    return {
        name: [json.loads(row[0]) for row in frame.limit(most).selectExpr("to_json(struct(*))").collect()]
        for name, frame in frames.items()
    }


def _judged(ctx: Context, item: Written, seen: list[Seen]) -> Iterator[checks.CheckResult]:
    name = item.dataset.name
    observed = _counted(ctx, item)
    yield from checks.judge_columns(name, item.compiled, observed, _examples(ctx, item, observed))
    fates = ctx.set_aside(name, seen) if "row_count" in item.checks else checks.SetAside()
    yield from checks.judge_rows(name, item.checks, item.rows, fates, ctx.input_rows())
    yield from judge_schema_and_keys(
        name, item.checks, item.schema, lambda columns: _duplicates(ctx, item, columns)
    )
    for custom in item.dataset.custom_checks:
        frame = _stored(ctx, item)
        yield _custom(name, custom, ctx.order.directory, frame)


def _counted(ctx: Context, item: Written) -> Mapping[str, Any]:
    """What was observed, check by check."""
    is_broken = item.observed.get(checks.BROKEN, 0) if item.is_asked else _is_broken(ctx, item)
    if not is_broken:
        return dict.fromkeys((f"violations{index}" for index in range(len(item.compiled))), 0) | item.observed
    row = _stored(ctx, item).agg(*checks.aggregates(item.compiled)).first()
    counts = {} if row is None else row.asDict(recursive=False)
    is_found = any(count for name, count in counts.items() if name != checks.ROWS)
    if item.is_asked and not is_found:
        raise AttemptError(
            "WRONG_DATA",
            f"{item.dataset.name}: {counted(item.observed[checks.BROKEN], 'row')} broke a check as they were written, "
            "and none of those that were written does",
            "the job's rows differ from one look to the next: make it deterministic",
        )
    return counts


def _is_broken(ctx: Context, item: Written) -> bool:
    path = allowed_roots.local_path(item.location)
    assert path is not None  # noqa: S101 - only of such files the checks are left for later
    return file_checks.is_broken(ctx.spark, path, item.schema, item.compiled, rows=lambda: _stored(ctx, item))


def _examples(ctx: Context, item: Written, observed: Mapping[str, Any]) -> dict[str, Any]:
    asked = checks.examples(item.compiled, observed)
    row = _stored(ctx, item).agg(*asked).first() if asked else None
    return {} if row is None else dict(row.asDict(recursive=False))


def _stored(ctx: Context, item: Written) -> DataFrame:
    """What was written, as nobody else sees it yet."""
    if item.dataset.format in formats.TABLES:
        return ctx.stored(item.dataset, item.location, is_staged=not item.is_adopted)
    is_plain = item.dataset.format in files.WITH_FOOTERS and not item.is_adopted
    # Options say how a reader is to read it; these files are as they were written.
    dataset = replace(item.dataset, options={}) if is_plain else item.dataset
    return files.read_back(ctx.spark, dataset, item.location, item.schema)


def _duplicates(ctx: Context, item: Written, columns: list[str]) -> int:
    if item.dataset.format in formats.TABLES:
        keys = ctx.stored(item.dataset, item.location, is_staged=not item.is_adopted, columns=columns)
        return files.duplicates_of(keys)
    return files.duplicates(ctx.spark, item.dataset, item.location, item.schema, columns)


def _custom(dataset: str, custom: Mapping[str, str], directory: str, frame: DataFrame) -> checks.CheckResult:
    """A function of the written DataFrame: True or None is good; False, a sentence or an error is not."""
    function = jobcode.named(custom["function"], directory)
    try:
        answer = function(frame)
    except AssertionError as error:
        answer = str(error) or f"an assertion failed{line_of(error)}"
    except Exception as error:
        if is_of_spark(error):
            raise  # no answer of the check: a worker died, or the JVM; another attempt may get one
        answer = f"it raised {message_of(error)}{line_of(error)}"
    passed = answer is None or answer is True
    observed = answer if isinstance(answer, str) else ("passed" if passed else "it returned " + repr(answer))
    return checks.CheckResult(
        dataset, custom["function"], custom["severity"], passed, mask(observed), "custom check passes"
    )


def _manifest(ctx: Context, item: Written) -> dict[str, Any]:
    """What was written; its rows must be those that were observed."""
    listed = (
        _table_listed(ctx, item) if item.dataset.format in formats.TABLES else _files_listed(ctx.spark, item)
    )
    return manifest(item.location, listed, item.rows, columns_of(item.schema))


def _table_listed(ctx: Context, item: Written) -> list[dict[str, Any]]:
    if item.is_adopted:
        return []
    return writing.measure(item.dataset, ctx.attempt, item.rows, ctx.order.allowed_hosts)


def _files_listed(spark: SparkSession, item: Written) -> list[dict[str, Any]]:
    if files.has_unfinished_files(spark, item.location):
        raise AttemptError(
            "WRONG_DATA", f"the write to {item.location} was not committed", "look into the attempt's log"
        )
    found = files.listing(spark, item.location, item.dataset.format, digest=item.dataset.digest)
    rows = files.stored_rows(spark, item.dataset, item.location, found)
    if rows is not None and rows != item.rows:
        raise AttemptError(
            "WRONG_DATA",
            f"{item.dataset.name}: {agreeing(item.rows, 'row', 'was', 'were')} observed, and the files hold {rows}",
            "a task may have been counted twice: the attempt is to be repeated",
        )
    return [file.document() for file in found]


def check_inputs_again(order: Order) -> None:
    """Files of a version never change; the rows of a table may have been replaced or deleted while they were read."""
    for source in order.inputs.values():
        if source.dataset.format in formats.TABLES:
            reading.check_unchanged(source, order.allowed_hosts)


def publish_tables(ctx: Context, confirm: Callable[[], bool]) -> None:
    """Files are published by the flip of their manifest alone; rows have to be where readers look by then."""
    for item in ctx.written().values():
        if item.dataset.format in formats.TABLES and not item.is_adopted:
            writing.publish(item.dataset, ctx.order, item.rows, confirm)
