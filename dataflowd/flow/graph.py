"""Checks rules about several tables of a flow file: which job reads and writes which dataset, and whether it can ever run."""

from __future__ import annotations

import graphlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from dataflowd.flow import command_words, script_variables
from dataflowd.flow.datasets import BUILT_IN
from dataflowd.flow.mapping import grain, misfit
from dataflowd.model.formats import FILES
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dataflowd.flow.mistakes import Report
    from dataflowd.flow.model import Flow, Job
    from dataflowd.flow.source import Key

SCRIPTS = ("command", "spark_submit")


def check(flow: Flow, report: Report) -> None:
    producers = _producers(flow)
    _check_producers(flow, producers, report)
    for job in flow.jobs.values():
        _check_names(flow, job, report)
        _check_inputs(flow, job, producers, report)
        _check_environment(flow, job, report)
        _check_row_counts(flow, job, report)
        _check_script(flow, job, report)
        _check_words(job, report)
        _check_tables(flow, job, report)
    _check_locations(flow, producers, report)
    _check_cycles(flow, producers, report)


def _producers(flow: Flow) -> dict[str, list[str]]:
    producers: dict[str, list[str]] = defaultdict(list)
    for job in flow.jobs.values():
        for output in job.outputs:
            producers[output].append(job.name)
    return producers


def _check_tables(flow: Flow, job: Job, report: Report) -> None:
    """The SDK replaces the rows of a chunk in a table, so it needs a column with the dataid. A command does not."""
    for name in job.outputs if job.kind in {"python", "sql"} else ():
        dataset = flow.datasets.get(name)
        if dataset is not None and dataset.format == "postgres" and "dataid_column" not in dataset.options:
            report.add(
                ("dataset", name),
                f"job {job.name!r} writes the table of {name!r}, whose chunks cannot be told apart",
                'name the column that holds the dataid: options = { dataid_column = "day" }',
            )


def element_key(report: Report, job: str, field: str, dataset: str) -> Key:
    """Where an input or output is named: a key of the table [job.x.inputs], or an element of an array."""
    value = report.source.data["job"][job][field]
    return ("job", job, field, value.index(dataset) if isinstance(value, list) else dataset)


def _check_producers(flow: Flow, producers: Mapping[str, list[str]], report: Report) -> None:
    for dataset, jobs in producers.items():
        for job in jobs[1:]:
            report.add(
                element_key(report, job, "outputs", dataset),
                f"dataset {dataset!r} has two producers: job {jobs[0]!r} and job {job!r}",
                "a dataset has one producer; give one of them an output of its own",
            )
        if dataset in BUILT_IN or (dataset in flow.datasets and flow.datasets[dataset].calendar):
            report.add(
                element_key(report, jobs[0], "outputs", dataset),
                f"job {jobs[0]!r} writes {dataset!r}, which is a calendar",
                "the chunks of a calendar become READY by themselves; name another output",
            )


def _check_names(flow: Flow, job: Job, report: Report) -> None:
    known = flow.datasets.keys() | BUILT_IN
    named = [(name, element_key(report, job.name, "inputs", name)) for name in job.inputs]
    named += [(name, element_key(report, job.name, "outputs", name)) for name in job.outputs]
    for name, key in named:
        if name not in known:
            report.add(
                key,
                f"job.{job.name}.{key[2]} names the unknown dataset {name!r}{did_you_mean(name, known)}",
                f"declare [dataset.{name}] in this file",
            )


def _check_inputs(flow: Flow, job: Job, producers: Mapping[str, list[str]], report: Report) -> None:
    # `inputs = []` is no mistake: such a job runs when a person asks for a new run.
    is_asked_for = report.source.data["job"][job.name].get("inputs") == []
    if not is_asked_for and all(mapping["kind"] == "fixed" for mapping in job.inputs.values()):
        what = "has only fixed inputs" if job.inputs else "has no inputs"
        report.add(
            ("job", job.name, "inputs"),
            f"job {job.name!r} {what}: nothing says which dataids it runs for",
            'add an input that is not fixed, such as the calendar "today"; inputs = [] if it runs only by `dataflowctl run JOB --new`',
        )
    grains: dict[str, str] = {}
    for name, mapping in job.inputs.items():
        if name in job.outputs and not _looks_back(mapping):
            report.add(
                element_key(report, job.name, "inputs", name),
                f"job {job.name!r} reads its own output {name!r} of the same dataid",
                'read an earlier one: {kind = "offset", by = -1, unit = "day"}',
            )
        if name in flow.datasets and (why := misfit(mapping, flow.datasets[name])):
            report.add(
                element_key(report, job.name, "inputs", name),
                f"the mapping of {name!r} in job {job.name!r} {why}",
                "correct one of the two",
            )
        if found := grain(mapping):
            grains.setdefault(found, name)
    _check_beside_all(flow, job, producers, report)
    if len(grains) > 1:
        said = ", ".join(f"{found} by {name}" for found, name in grains.items())
        report.add(
            ("job", job.name, "inputs"),
            f"the inputs of job {job.name!r} disagree on what its dataids are: {said}",
            "make the mappings agree, or split the job",
        )


def _check_beside_all(flow: Flow, job: Job, producers: Mapping[str, list[str]], report: Report) -> None:
    """A job with the mapping `all` has one dataid. An identity input without a chunk of that dataid is never ready."""
    gathered = _gathered(job)
    if gathered is None:
        return
    dataset, dataid = gathered
    for name, mapping in job.inputs.items():
        if mapping["kind"] == "identity" and not _makes(flow, producers, name, dataid):
            report.add(
                element_key(report, job.name, "inputs", name),
                f"job {job.name!r} has one run, {dataid!r}, because it reads all of {dataset!r};"
                f" {name!r} is read by identity, and would need a chunk {dataid!r}",
                f'name the chunk of {name!r} that it reads: {{kind = "fixed", dataid = "..."}}, or split the job',
            )


def _gathered(job: Job) -> tuple[str, str] | None:
    """The input with the mapping `all`, and the dataid of the job's only run."""
    found = [(name, mapping) for name, mapping in job.inputs.items() if mapping["kind"] == "all"]
    return (found[0][0], found[0][1]["dataid"]) if found else None


def _makes(flow: Flow, producers: Mapping[str, list[str]], dataset: str, dataid: str) -> bool:
    """Whether a job of this flow makes that chunk: a job with the mapping `all`, or one that follows it by identity."""
    seen: set[str] = set()
    while dataset in producers and dataset not in seen:
        seen.add(dataset)
        job = flow.jobs[producers[dataset][0]]
        gathered = _gathered(job)
        if gathered is not None:
            return gathered[1] == dataid
        follows = [name for name, mapping in job.inputs.items() if mapping["kind"] == "identity"]
        if not follows:
            return False
        dataset = follows[0]
    return False


def _check_script(flow: Flow, job: Job, report: Report) -> None:
    """Reports checks that are never run: of what a script writes, only files can be checked, by Spark."""
    if job.kind not in (*SCRIPTS, "outside"):
        return
    maker, remedy = (
        ("what executes", "tell its result with `end --report`")
        if job.kind == "outside"
        else ("the script of", "let the script report it")
    )
    for name in job.outputs:
        dataset = flow.datasets.get(name)
        if dataset is None or (job.kind != "outside" and dataset.format in FILES):
            continue
        for check in flow.checks_inside(job, name):
            report.add(
                element_key(report, job.name, "outputs", name),
                f"the check {check} of dataset {name!r} cannot be made of what {maker} job {job.name!r} writes"
                + ("" if job.kind == "outside" else f": format {dataset.format!r} is not looked into"),
                f"{remedy}, or let a job with dataflowd.jobs:validate follow it",
            )


def _check_words(job: Job, report: Report) -> None:
    """Reports names in a command's words that would not be replaced. No shell runs that could replace them."""
    if job.kind not in SCRIPTS or not job.code:
        return
    known = script_variables.names(job.inputs, job.outputs, job.params)
    executed = command_words.executed_places(job.code)
    for place, word in enumerate(job.code):
        for what, remedy in _mistakes_of(word, known, is_executed=place in executed):
            key = ("job", job.name, job.kind, place)
            report.add(key, f"job.{job.name}.{job.kind} has {what} in {word!r}", remedy)


def _mistakes_of(word: str, known: Mapping[str, bool], *, is_executed: bool) -> Iterator[tuple[str, str]]:
    for name in command_words.names(word):
        if is_executed:
            if name in known:
                yield (
                    f"{{{name}}}, where nothing is replaced because the word says what is executed,",
                    f'let a later word have it; a text for a shell reads "${name}"',
                )
        elif name not in known:
            yield (
                f"{{{name}}}{did_you_mean(name, known)}, which the script's environment has not,",
                f"known are dataid, jobid, param_NAME and DATASET_COLUMN of its datasets; the text {{{name}}} is written {{{{{name}}}}}",
            )
        elif not known[name]:
            yield (
                f"{{{name}}}, a password, which everybody on the host could read there,",
                f"let the script take {name} from its environment",
            )
    for name in () if is_executed else command_words.shell_names(word):
        if name in known:
            yield f"${name}, which no shell is there to replace,", f"write {{{name}}}"


def _looks_back(mapping: Mapping[str, Any]) -> bool:
    return mapping["kind"] == "offset" and (mapping["by"] or 0) < 0


def _check_environment(flow: Flow, job: Job, report: Report) -> None:
    bound: dict[str, str] = {}
    for name in [*job.inputs, *job.outputs]:
        environment = flow.datasets[name].environment if name in flow.datasets else None
        if environment is not None:
            bound.setdefault(environment, name)
    if len(bound) > 1:
        said = ", ".join(f"{name} is bound to {environment!r}" for environment, name in bound.items())
        report.add(
            ("job", job.name),
            f"job {job.name!r} mixes environments: {said}",
            "use datasets of one environment in a job",
        )


def _check_row_counts(flow: Flow, job: Job, report: Report) -> None:
    checked: list[tuple[Key, Mapping[str, Any]]] = [(("job", job.name, "checks", "row_count"), job.checks)]
    checked += [
        (("dataset", name, "checks", "row_count"), flow.datasets[name].checks)
        for name in job.outputs
        if name in flow.datasets
    ]
    for key, declared in checked:
        source = declared.get("row_count", {}).get("input")
        if source is not None and source not in job.inputs:
            report.add(
                key,
                f"row_count compares with {source!r}, which job {job.name!r} does not read{did_you_mean(source, job.inputs)}",
                f"name one of its inputs: {', '.join(job.inputs)}",
            )


def _check_locations(flow: Flow, producers: Mapping[str, list[str]], report: Report) -> None:
    """Reports two written datasets with one location: they would overwrite each other."""
    taken: dict[str, str] = {}
    for name, dataset in flow.datasets.items():
        if name not in producers or dataset.location is None:
            continue
        first = taken.setdefault(dataset.location.rstrip("/"), name)
        if first != name:
            report.add(
                ("dataset", name, "location"),
                f"datasets {first!r} and {name!r} are written to the same location",
                "give each its own",
            )


def _check_cycles(flow: Flow, producers: Mapping[str, list[str]], report: Report) -> None:
    """Reports jobs that wait for each other. An input of an earlier dataid makes no cycle of runs.

    _check_inputs reports a job that reads its own output.
    """
    needs = {
        name: {
            producers[dataset][0]
            for dataset, mapping in job.inputs.items()
            if dataset in producers and not _looks_back(mapping) and name not in producers[dataset]
        }
        for name, job in flow.jobs.items()
    }
    for cycle in _cycles(needs):
        first = min(cycle, key=lambda name: report.source.line(("job", name, "inputs")))
        start = cycle.index(first)
        ring = [*cycle[start:], *cycle[:start], first]
        report.add(
            ("job", first, "inputs"),
            f"jobs wait for each other in a cycle: {' -> '.join(ring)}",
            "remove one of the inputs, or read an earlier dataid with an offset",
        )


def _cycles(needs: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yields one cycle after the other. The jobs of a found cycle are removed before the next search."""
    while True:
        try:
            graphlib.TopologicalSorter(needs).prepare()
        except graphlib.CycleError as error:
            cycle = list(error.args[1][:-1])
            yield cycle
            needs = {name: wanted - set(cycle) for name, wanted in needs.items() if name not in cycle}
        else:
            return
