"""Executes one attempt, from its order to its result: prepare, run, validate, and the runner's part of publish.

Prepare asks the host's side of the five questions before any job code runs. Run calls the author's function. Validate
judges the declared checks by what Spark observed during the write, compares the counts with the files on the disk, and reads
the written rows for the checks that need them. The manifest goes back with the result. The daemon publishes it, in one
transaction, with a token that the runner does not know. Rows of a table are moved to their place before that, after the
daemon has confirmed the claim (dataflowd.storage.tables). Every error becomes a result; only when the process dies there is none.
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
    """Receives the steps of an attempt (prepare, run, validate, publish) as each of them begins."""

    def step(self, name: str) -> None: ...
    def found(self, document: dict[str, Any]) -> None:
        """Receives what prepare has found (dataflowd.storage.evidence), also when prepare has refused the attempt."""
        ...

    def confirm(self) -> bool:
        """Asks the daemon, which asks the database, whether the attempt still holds its claim."""
        ...


def execute(order: Order, spark: SparkSession, reporter: Steps, stop: threading.Event) -> dict[str, Any]:
    """Returns the result as a document: all fields of dataflowd.model.attempt.Result except the attempt and its token."""
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
        ctx = _run_or_replay(order, spark, reporter, stop)
        reporter.step("validate")
        result |= _with_checks(result, validate(ctx))
        check_inputs_again(order)
        reporter.step("publish")
        publish_tables(ctx, reporter.confirm)
        return result | {"outcome": "DONE"}
    except BaseException as error:  # noqa: BLE001 - sys.exit and cancellation in job code are results like any other
        failure = fault(error)
        for line in f"failed {failure.code}: {failure}".splitlines():
            reporter.log(line)
        return result | _with_checks(result, told_error(failure))


def _with_checks(result: dict[str, Any], details: dict[str, Any]) -> dict[str, Any]:
    """Returns the details with the checks of the inputs (in `result`) before those of the outputs (in `details`)."""
    if "checks" not in result or "checks" not in details:
        return details
    return details | {"checks": [*result["checks"], *details["checks"]]}


def _run_or_replay(order: Order, spark: SparkSession, reporter: Steps, stop: threading.Event) -> Context:
    """Runs the job on the repaired records alone if the order has a replay and the job allows it, else on the whole chunk."""
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
    """Calls the author's function; raises NO_OUTPUT unless it has written every output that the flow declares."""
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
    """Returns outputs, checks, nodes and quarantine of the result; raises if the chunk must not be published."""
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
    # A replay has no limit: the whole chunk has passed it before, and a repair adds no bad records.
    limit = ctx.order.quarantine if ctx.order.replay is None else None
    with publishable(details, results, seen, limit, ctx.rows_read() if limit is not None else 0):
        outputs = {name: _manifest(ctx, item) for name, item in written.items()}
    applied = {"applied": True} if ctx.order.resolved else {}
    applied |= {"replayed": True} if ctx.order.replay is not None else {}
    return details | {"outputs": outputs, "quarantine": _quarantine.documents(seen)} | applied


def _preview(ctx: Context, most: int) -> dict[str, list[Any]]:
    """Returns the first rows of each output, converted to JSON by Spark."""
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
    """Returns the counts for each check. Reads the rows again, to tell the checks apart, only if some row broke one."""
    is_broken = item.observed.get(checks.BROKEN, 0) if item.is_asked else _is_broken(ctx, item)
    if not is_broken:
        return dict.fromkeys((f"violations{index}" for index in range(len(item.compiled))), 0) | item.observed
    row = _stored(ctx, item).agg(*checks.aggregates(item.compiled)).first()
    counts = {} if row is None else row.asDict(recursive=False)
    is_found = any(count for name, count in counts.items() if name != checks.ROWS)
    if item.is_asked and not is_found:
        raise AttemptError(
            "WRONG_DATA",
            f"{item.dataset.name}: {counted(item.observed[checks.BROKEN], 'row')} broke a check during the write, "
            "and no row breaks a check when the files are read again",
            "the job computes other rows each time: make it deterministic",
        )
    return counts


def _is_broken(ctx: Context, item: Written) -> bool:
    path = allowed_roots.local_path(item.location)
    assert path is not None  # noqa: S101 - only checks of local files are left for after the write
    return file_checks.is_broken(ctx.spark, path, item.schema, item.compiled, rows=lambda: _stored(ctx, item))


def _examples(ctx: Context, item: Written, observed: Mapping[str, Any]) -> dict[str, Any]:
    wanted = checks.examples(item.compiled, observed)
    row = _stored(ctx, item).agg(*wanted).first() if wanted else None
    return {} if row is None else dict(row.asDict(recursive=False))


def _stored(ctx: Context, item: Written) -> DataFrame:
    """Reads what the attempt has written. Nobody else can see it yet."""
    if item.dataset.format in formats.TABLES:
        return ctx.stored(item.dataset, item.location, is_staged=not item.is_adopted)
    is_plain = item.dataset.format in files.WITH_FOOTERS and not item.is_adopted
    # The dataset's options are for readers of the published chunk; these files are read without them.
    dataset = replace(item.dataset, options={}) if is_plain else item.dataset
    return files.read_back(ctx.spark, dataset, item.location, item.schema)


def _duplicates(ctx: Context, item: Written, columns: list[str]) -> int:
    if item.dataset.format in formats.TABLES:
        keys = ctx.stored(item.dataset, item.location, is_staged=not item.is_adopted, columns=columns)
        return files.duplicates_of(keys)
    return files.duplicates(ctx.spark, item.dataset, item.location, item.schema, columns)


def _custom(dataset: str, custom: Mapping[str, str], directory: str, frame: DataFrame) -> checks.CheckResult:
    """Calls a custom check with the written DataFrame. True or None passes; False, a sentence or an error does not."""
    function = jobcode.named(custom["function"], directory)
    try:
        answer = function(frame)
    except AssertionError as error:
        answer = str(error) or f"an assertion failed{line_of(error)}"
    except Exception as error:
        if is_of_spark(error):
            raise  # a worker or the JVM died, so that the check gave no answer; another attempt may get one
        answer = f"it raised {message_of(error)}{line_of(error)}"
    passed = answer is None or answer is True
    observed = answer if isinstance(answer, str) else ("passed" if passed else "it returned " + repr(answer))
    return checks.CheckResult(
        dataset, custom["function"], custom["severity"], passed, mask(observed), "custom check passes"
    )


def _manifest(ctx: Context, item: Written) -> dict[str, Any]:
    """Returns the manifest of what was written; raises WRONG_DATA unless its rows are those that were observed."""
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
            "Spark may have counted a task twice: repeat the attempt",
        )
    return [file.document() for file in found]


def check_inputs_again(order: Order) -> None:
    """Raises if rows of an input table were replaced or deleted while the job read them. Files of a version never change."""
    for source in order.inputs.values():
        if source.dataset.format in formats.TABLES:
            reading.check_unchanged(source, order.allowed_hosts)


def publish_tables(ctx: Context, confirm: Callable[[], bool]) -> None:
    """Moves the rows of tables to where readers look, before the daemon flips the manifest. Files need only the flip."""
    for item in ctx.written().values():
        if item.dataset.format in formats.TABLES and not item.is_adopted:
            writing.publish(item.dataset, ctx.order, item.rows, confirm)
