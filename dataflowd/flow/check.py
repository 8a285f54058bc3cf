"""Turns a flow file into a Flow, or reports all its mistakes at once.

Each table is read and checked in one pass: a wrong key is reported and replaced by a usable value, so that one mistake
hides no other. Rules about several tables (cycles, producers, environments) are checked afterwards (graph.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from dataflowd.flow import checks, code, datasets, graph, mapping
from dataflowd.flow.mistakes import Report
from dataflowd.flow.model import Flow, Job
from dataflowd.flow.section import Section, type_of
from dataflowd.flow.source import read
from dataflowd.model.identifiers import NAME, NAME_REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from dataflowd.flow.mistakes import Mistake
    from dataflowd.flow.model import Dataset, Kind
    from dataflowd.host.settings import Settings

CODE_KINDS: tuple[Kind, ...] = ("python", "sql", "command", "spark_submit")
EXECUTORS = ("daemon", "outside")


def load(
    path: Path,
    settings: Settings,
    lacking: dict[str, Mistake] | None = None,
    elsewhere: dict[str, Mistake] | None = None,
) -> Flow:
    """Raises FlowMistakesError, an InvalidFlowError, with every mistake of the file.

    With `lacking`, jobs whose code is missing or unusable are put there and left out of the flow. With `elsewhere`, the same
    happens to jobs with a dataset that this host may not access.
    """
    source = read(path)
    unreachable: dict[str, Mistake] = {}
    report = Report(source, lacking, None if elsewhere is None else unreachable)
    _check_characters(report, (), source.data)
    top = Section(report, (), source.data)
    head = top.section("flow")
    name, description = head.identifier("name"), head.text("description") or ""
    if "name" not in head:
        report.add(("flow",), "the flow has no name", 'write [flow] and name = "..." at the top')
    head.close()
    found_datasets = {
        section.key[-1]: datasets.parse(section, settings) for section in _named(top, "dataset")
    }
    directory = path.absolute().parent
    found_jobs = {section.key[-1]: _job(section, directory) for section in _named(top, "job")}
    top.close()
    flow = Flow(
        name=name or "",
        description=description,
        path=path,
        datasets=cast("Mapping[str, Dataset]", found_datasets),
        jobs=cast("Mapping[str, Job]", found_jobs),
    )
    graph.check(flow, report)
    report.raise_if_any()
    if elsewhere is not None:
        for name, job in flow.jobs.items():
            used = [dataset for dataset in (*job.inputs, *job.outputs) if dataset in unreachable]
            if used:
                elsewhere[name] = unreachable[used[0]]
    left_out = {*(lacking or ()), *(elsewhere or ())}
    return replace(flow, jobs={name: job for name, job in flow.jobs.items() if name not in left_out})


def _named(top: Section, kind: str) -> Iterator[Section]:
    """The tables [kind.NAME]."""
    tables = top.section(kind)
    for name in tables.names():
        if not NAME.fullmatch(name):
            tables.report.add((*tables.key, name), f"{name!r} cannot name a {kind}", NAME_REMEDY)
        if isinstance(tables.value(name), dict):
            yield tables.section(name)
        else:
            tables.wrong(name, f"is {type_of(tables.value(name))}", f"write a table: [{kind}.{name}]")


def _job(section: Section, directory: Path) -> Job:
    kind, reference = _code(section, directory)
    inputs = _inputs(section)
    outputs = section.words("outputs")
    if not outputs and section.value("outputs") in (None, []):
        section.wrong("outputs", "is missing", "name at least one dataset: the status of a run is kept there")
    data_checks, custom = checks.parse(section.section("checks"), None)
    job = Job(
        name=str(section.key[-1]),
        description=section.text("description") or "",
        kind=kind,
        code=reference,
        inputs=inputs,
        outputs=outputs,
        params=section.data("params"),
        max_running=section.whole("max_running", minimum=0),
        max_attempts=section.whole("max_attempts", minimum=1) or 1,
        max_lost=section.whole("max_lost", minimum=1) or 5,
        retry_delay=section.seconds("retry_delay", default=30) or 0,
        timeout=section.seconds("timeout", minimum=1),
        priority=section.whole("priority") or 0,
        strict_order=section.flag("strict_order", default=False),
        rowwise=section.flag("rowwise", default=False),
        reuse=section.whole("reuse", minimum=1),
        slots=section.whole("slots", minimum=1),
        quarantine=_quarantine(section),
        spark=_spark(section),
        checks=data_checks,
        custom_checks=custom,
    )
    section.close()
    return job


def _code(section: Section, directory: Path) -> tuple[Kind, str | tuple[str, ...]]:
    given = [kind for kind in CODE_KINDS if section.value(kind) is not None]
    if section.word("executor", EXECUTORS, "daemon") == "outside":
        if given:
            section.wrong(
                "executor",
                f'is "outside", and the job names code ({", ".join(given)})',
                "remove one of the two",
            )
        return "outside", ""
    if len(given) != 1:
        what = f"names its code {len(given)} times ({', '.join(given)})" if given else "names no code"
        section.report.add(
            section.key,
            f"{section.title} {what}",
            f'write exactly one of {", ".join(CODE_KINDS)}, or executor = "outside" if something else executes it',
        )
        return "python", ""
    kind = given[0]
    try:
        if kind in {"python", "sql"}:
            name = section.filled(kind)
            if name is not None:
                (code.check_python if kind == "python" else code.check_sql)(name, directory)
            return kind, name or ""
        words = _command(section, kind)
        if words:
            (code.check_command if kind == "command" else code.check_spark_submit)(words, directory)
    except code.MissingCodeError as error:
        key = (*section.key, kind)
        section.report.lacks_code(
            key, f"{'.'.join(map(str, key))} cannot be used: {error.what}", error.remedy
        )
        return kind, ""
    return kind, words


def _command(section: Section, kind: str) -> tuple[str, ...]:
    """Words may repeat and may be empty, but the first word must name a program."""
    value = section.value(kind)
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        section.wrong(kind, "is no array of strings", 'write each word as a string: ["./load.sh", "--fast"]')
        return ()
    if not value or not value[0]:
        section.wrong(kind, "names no program", 'write at least the program: ["./load.sh"]')
        return ()
    return tuple(value)


def _inputs(section: Section) -> dict[str, dict[str, Any]]:
    value = section.value("inputs")
    if isinstance(value, dict):
        inputs = section.section("inputs")
        return {name: mapping.parse(inputs, name) for name in inputs.names()}
    return dict.fromkeys(section.words("inputs"), mapping.IDENTITY)


def _quarantine(section: Section) -> int | float | None:
    value = section.value("quarantine")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if isinstance(value, float) and 0 <= value <= 1:
        return value
    section.wrong(
        "quarantine",
        f"is {value!r}",
        "write how many records may be bad: a count (100) or a share (0.01 is one in a hundred)",
    )
    return None


def _spark(section: Section) -> dict[str, str]:
    """Spark configuration. TOML reads a dotted key without quotes as a nested table; both spellings mean the same."""
    settings = dict(_flattened("", section.data("spark")))
    for name, value in settings.items():
        if not name.startswith("spark."):
            section.wrong(
                "spark",
                f"has the key {name!r}",
                'write Spark\'s own names: "spark.sql.shuffle.partitions" = 8',
            )
        if not isinstance(value, str | int | float):
            section.wrong(
                "spark", f"has {type_of(value)} at {name!r}", "write a string, a number or a boolean"
            )
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


def _flattened(prefix: str, table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(f"{prefix}{name}.", value)
        else:
            yield prefix + name, value


def _check_characters(report: Report, key: tuple[str | int, ...], value: Any) -> None:
    """Reports every NUL, in keys and values: Postgres cannot store it."""
    if isinstance(value, dict):
        for name, element in value.items():
            _check_characters(report, (*key, name), name)
            _check_characters(report, (*key, name), element)
    elif isinstance(value, list):
        for index, element in enumerate(value):
            _check_characters(report, (*key, index), element)
    elif isinstance(value, str) and "\0" in value:
        report.add(key, "a string holds the character NUL", "remove it")
